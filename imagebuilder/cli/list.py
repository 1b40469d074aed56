"""`imagebuilder list`, and what it shares with `clean`."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from imagebuilder.cli.context import Context, json_option, say, say_json, verb

if TYPE_CHECKING:
    from imagebuilder.doctor.storage import Item, Own, Survey


@verb()
@json_option
def command(context: Context, as_json: bool) -> None:
    """What lies here: images and results below this folder, and the cache, with sizes.

    An image's layers are shared with the cache where the file system allows it, and are counted there.
    """
    found = surveyed(context, older_than=0.0)
    if as_json:
        say_json("list", {
            "images": [_as_json(item) for item in found.of("image")],
            "results": [_as_json(item) for item in found.of("result")],
            "cache": {"path": str(context.cache.root), "folders": dict(found.folders), **_records(found)},
        })  # fmt: skip
        return
    from imagebuilder.cli.report import human
    from imagebuilder.doctor.storage import day

    for heading, kind in (("images", "image"), ("results", "result")):
        items = found.of(kind)
        say(f"{heading}: {len(items) or 'none'}")
        for item in items:
            kept = f"  [{item.keep}]" if item.keep and kind == "image" else ""
            shared = f" (+ {human(item.shared)} in the cache)" if item.shared else ""
            say(f"  {human(item.size):>8}  {day(item.used)}  {item.name}  {item.detail}{shared}{kept}")
    say(f"cache: {context.cache.root}, {human(sum(size for _, size in found.folders))}")
    for name, size in found.folders:
        say(f"  {human(size):>8}  {name}")


def surveyed(context: Context, *, older_than: float) -> Survey:
    """What lies here."""
    from imagebuilder.cli.acceptance import RESULTS
    from imagebuilder.doctor.storage import survey

    return survey(
        context.cwd,
        context.cwd / RESULTS,
        context.cache,
        own_locks(context),
        now=time.time(),
        older_than=older_than,
    )


def own_locks(context: Context) -> list[Own]:
    """The locks of this folder, and the shipped ones; those that cannot be read are told."""
    from imagebuilder.doctor.storage import Own
    from imagebuilder.errors import LockUnusable
    from imagebuilder.lock.pylock import read_lock
    from imagebuilder.stack import shipped_folder
    from imagebuilder.stack.find import FOLDER
    from imagebuilder.values import Digest

    found = []
    shipped = shipped_folder()
    for folder in dict.fromkeys((context.cwd / FOLDER, shipped)):
        for path in sorted(folder.glob("pylock.*.toml")):
            try:
                lock = read_lock(path)
            except LockUnusable as error:
                context.reporter.warn(f"{path}: {error.what}; what it needs is not known")
                continue
            digest = Digest.of(path.read_bytes())
            found.append(Own(stack=lock.stack_name, digest=digest, lock=lock, shipped=folder == shipped))
    return found


def _records(found: Survey) -> dict[str, Any]:
    sizes: Counter[str] = Counter()
    for item in found.of("record"):
        sizes[item.detail] += item.size
    return {"records": dict(sizes)}


def _as_json(item: Item) -> dict[str, Any]:
    return {
        "name": item.name,
        "path": str(item.paths[0]),
        "size": item.size,
        "shared": item.shared,
        "detail": item.detail,
        "keep": item.keep,
    }
