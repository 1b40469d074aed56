"""Was the base seen? Sizes and number of the image's layers, against what registries and engines take."""

from __future__ import annotations

from collections.abc import Iterator

from imagebuilder.checks.model import Check, Code, Finding
from imagebuilder.checks.subject import Subject

LARGE = Code(
    code="image.layer-too-large",
    severity="error",
    meaning="a layer is larger than a registry takes",
    consequence="pushing it fails after the whole upload",
    remedy="split the layer in the stack file",
    tables=("registries",),
)
MANY = Code(
    code="image.too-many-layers",
    severity="error",
    meaning="the image has more layers than engines can mount",
    consequence="it cannot be run: `max depth exceeded`",
    remedy="fewer [[layer]] tables in the stack file",
    tables=("registries",),
)
UNSEEN = Code(
    code="image.base-not-seen",
    severity="note",
    meaning="the base image was not read",
    consequence="its libraries, compilers and drivers in it are assumed by its name, and not checked",
    remedy="imagebuilder check STACK --read-base, where its registry (or a mirror) can be reached",
    tables=("systems", "toolchain"),
)


def run(subject: Subject) -> Iterator[Finding]:
    """The plan's layers; packed sizes are those of the wheels and packages that go in."""
    if subject.base_unseen:
        yield Finding(
            code=UNSEEN.code,
            severity=UNSEEN.severity,
            what=f"the base image was not read: {subject.base_unseen}",
            evidence=(f"base {subject.lock.base.ref or subject.lock.base.path}",)
            if subject.lock.base
            else (),
            fix=UNSEEN.remedy.replace("STACK", subject.stack.name),
            key="base",
        )
    limits = subject.tables.registries
    layers = subject.plan.layers
    for layer in layers:
        refused = [name for name, most in limits.get("layer-bytes", {}).items() if layer.size > most]
        if refused:
            yield Finding(
                code=LARGE.code,
                severity=LARGE.severity,
                what=f"layer {layer.name}: {layer.size / 1e9:.1f} GB, more than {', '.join(refused)} takes",
                evidence=tuple(f"{w.wheel.name} {w.wheel.size / 1e9:.2f} GB" for w in layer.wheels[:5]),
                fix=LARGE.remedy,
                key=f"layer {layer.name}",
            )
    count = subject.base_depth + len(layers)
    if count > limits.get("layers", count):
        base = f", {subject.base_depth} of them of its base" if subject.base_depth else ""
        base = base or (" besides those of its base" if subject.base_unseen else "")
        yield Finding(
            code=MANY.code,
            severity=MANY.severity,
            what=f"the image has {count} layers{base}; engines mount {limits['layers']}",
            fix=MANY.remedy,
            key="layer",
        )


CHECK = Check(run=run, codes=(LARGE, MANY, UNSEEN))
