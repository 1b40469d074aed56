"""What `measure.function` runs in a fresh interpreter. Prints its cost as JSON."""

from __future__ import annotations

import hashlib
import json
import re
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from benchmarks import subject
from imagebuilder.builders.direct.build import Built, build
from imagebuilder.builders.direct.install import write_wheels_layer
from imagebuilder.builders.direct.layers import Inputs
from imagebuilder.builders.direct.venv import VenvLayout
from imagebuilder.cache import Cache
from imagebuilder.facts.wheel import Wheel
from imagebuilder.lock.fetch import fetch
from imagebuilder.oci.layer import LayerWriter
from imagebuilder.oci.layout import write_layout
from imagebuilder.oci.push import push_image
from imagebuilder.oci.registry import Registry
from imagebuilder.plan import Plan, make_plan
from imagebuilder.progress import Silent
from imagebuilder.publish.built import read_built
from imagebuilder.publish.push import publish
from imagebuilder.stack import Stack
from imagebuilder.values import Digest, ImageRef, Release


def floor(wheel: str) -> Callable[[], None]:
    """What no way of making a layer can avoid: inflate every file with isal, hash both sides."""
    import mmap
    import zipfile

    from isal import isal_zlib

    def run() -> None:
        packed, plain = hashlib.sha256(), hashlib.sha256()
        with Path(wheel).open("rb") as file, zipfile.ZipFile(file) as archive:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            for info in archive.infolist():
                start = info.header_offset + 30
                start += int.from_bytes(data[start - 4 : start - 2], "little") + int.from_bytes(
                    data[start - 2 : start], "little"
                )
                raw = data[start : start + info.compress_size]
                packed.update(raw)
                if info.compress_type == zipfile.ZIP_DEFLATED:
                    stream = isal_zlib.decompressobj(-15)
                    for begin in range(0, len(raw), 1 << 18):
                        rest: bytes | memoryview = raw[begin : begin + (1 << 18)]
                        while rest:
                            plain.update(stream.decompress(rest, 1 << 18))
                            rest = stream.unconsumed_tail
                else:
                    plain.update(raw)

    return run


def layer(wheel: str, filename: str, out: str) -> Callable[[], None]:
    """One layer of this wheel, written to a file."""
    named = Path(out).with_name(filename)
    if not named.exists():
        named.symlink_to(wheel)

    def run() -> None:
        with Path(out).open("wb") as file, Wheel.open(named) as opened:
            writer = LayerWriter(file)
            write_wheels_layer(writer, [(opened, Digest.of(b"any"))], VenvLayout(python=Release("3.11")))
            writer.finish()

    return run


def layers(folder: str, workers: str, *names: str) -> Callable[[], Built]:
    """All layers of these wheels into an empty layer cache, wheels from this user's."""
    stack, plan = subject.plan_of(names)
    return _build(folder, int(workers), stack, plan, names)


def patched(folder: str, line: str) -> Callable[[], Built]:
    """SGLang's layers after one line of a patch was changed; the others are in the cache already."""
    names = ("sglang",)
    stack, lock = subject.stack_and_lock(names)
    old = next(p for x in stack.layers for p in x.patches)
    new = replace(old, content=re.sub(rb"\n\+(?!\+\+)", f"\n+# {line}\n+".encode(), old.content, count=1))
    new = replace(new, content=_recounted(new.content))
    changed = tuple(
        replace(x, patches=tuple(new if p == old else p for p in x.patches)) for x in stack.layers
    )
    stack = replace(stack, layers=changed)
    lock = replace(
        lock,
        patches=tuple(replace(p, sha256=new.digest) if p.sha256 == old.digest else p for p in lock.patches),
    )
    plan = make_plan(stack, lock)
    plan = replace(plan, layers=tuple(x for x in plan.layers if x.wheels))
    return _build(folder, 1, stack, plan, names)


def _recounted(patch: bytes) -> bytes:
    """The first hunk's header with one more added line."""
    head, _, rest = patch.partition(b"\n@@ ")
    ranges, _, tail = rest.partition(b" @@")
    old, new = ranges.split(b" ")
    start, _, count = new.partition(b",")
    return head + b"\n@@ " + old + b" " + start + b"," + str(int(count or b"1") + 1).encode() + b" @@" + tail


def push(folder: str, host: str, *names: str) -> Callable[[], None]:
    """All layers of these wheels into an empty layer cache, and from there into a registry."""
    stack, plan = subject.plan_of(names)
    make = _build(folder, 2, stack, plan, names)

    def run() -> None:
        push_image(Registry(host, subject.settings()), "ours", make().image, ["latest"])

    return run


def layout(folder: str, target: str, *names: str) -> Callable[[], None]:
    """An image of these wheels in a layout, named imagebuilder:push."""
    stack, plan = subject.plan_of(names)
    make = _build(folder, 2, stack, plan, names)

    def run() -> None:
        write_layout(Path(target), make().image, [ImageRef.parse("imagebuilder:push")])

    return run


def push_layout(cache: str, layout: str, host: str) -> Callable[[], None]:
    """What `imagebuilder push` does with a layout: blobs, manifest, proof, tag."""

    def run() -> None:
        here, kept = subject.settings(), Cache(Path(cache) / "push" / host.replace(":", "-"))
        image = read_built(Path(layout), kept).image
        publish(Registry(host, here), "bench", image, ["push"], cache=kept, reporter=Silent())

    return run


def _build(
    folder: str, workers: int, stack: Stack, plan: Plan, names: tuple[str, ...]
) -> Callable[[], Built]:
    here = subject.settings()
    own_stack, lock = subject.stack_and_lock(names)
    files = fetch(lock, own_stack, here, Cache(here.cache_dir), Silent())

    def run() -> Built:
        return build(
            plan,
            Inputs(stack=stack, plan=plan, workers=workers),
            obtain=lambda wheels, debs: files,
            cache=Cache(Path(folder)),
            reporter=Silent(),
            workers=workers,
        )

    return run


_WORK: dict[str, Callable[..., Callable[[], object]]] = {
    "floor": floor,
    "layer": layer,
    "layers": layers,
    "patched": patched,
    "layout": layout,
    "push": push,
    "push_layout": push_layout,
}


def main() -> None:
    name, *arguments = sys.argv[1:]
    run = _WORK[name](*arguments)
    cpu, begun = time.process_time(), time.perf_counter()
    run()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    cost = {"wall": time.perf_counter() - begun, "cpu": time.process_time() - cpu, "memory": memory}
    print(json.dumps(cost))


if __name__ == "__main__":
    main()
