"""`imagebuilder show`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from imagebuilder.cli.context import Context, json_option, say, say_json, stack_argument, verb

if TYPE_CHECKING:
    from imagebuilder.cli.prepare import Prepared
    from imagebuilder.plan import Plan


@verb()
@stack_argument
@click.option("--plan", "layers_only", is_flag=True, help="Only the layers, with their wheels.")
@json_option
def command(context: Context, stack: str, layers_only: bool, as_json: bool) -> None:
    """Print a stack, its lock and its layers with sizes."""
    from imagebuilder.cli.prepare import prepare

    prepared = prepare(context, stack)
    if as_json:
        say_json("show", _as_json(prepared))
        return
    if not layers_only:
        for line in _head(prepared):
            say(line)
    for line in _layers(prepared.plan, wheels=layers_only):
        say(line)


def _head(prepared: Prepared) -> list[str]:
    from imagebuilder.cli.report import human

    stack, lock = prepared.stack, prepared.lock
    lines = [f"{stack.name}: {stack.summary}".rstrip(": ")]
    gpus = ", ".join(str(g) for g in stack.target.gpus) or "none named"
    driver = f", driver {stack.target.driver} or newer" if stack.target.driver else ""
    lines.append(f"  target   {lock.platform}, Python {lock.python}, glibc {lock.glibc}, GPUs {gpus}{driver}")
    if lock.base:
        lines.append(f"  base     {lock.base.ref or lock.base.path} {lock.base.index}")
    as_of = f", as of {lock.as_of:%Y-%m-%d %H:%M}Z" if lock.as_of else ""
    lines.append(f"  lock     {prepared.lock_file} by {lock.resolver}{as_of}")
    debs = f", {len(lock.debs)} Debian packages" if lock.debs else ""
    lines.append(f"  content  {len(lock.wheels)} wheels{debs}, {human(lock.download_size)} to download")
    lines += [f"  override {o.requirement}: {o.reason}" for o in lock.overrides]
    lines += [f"  patch    {p.package}: {p.path}" for p in lock.patches]
    lines += [f"  waived   {w.code}: {w.reason}" for w in stack.waivers]
    return lines


def _layers(plan: Plan, *, wheels: bool) -> list[str]:
    from imagebuilder.cli.report import human

    lines = []
    for number, layer in enumerate(plan.layers):
        size = human(layer.size) if layer.size else "–"
        lines.append(f"{number:3} {size:>8}  {layer.title}  [{layer.key.short}]")
        if wheels and len(layer.wheels) > 1:
            for planned in sorted(layer.wheels, key=lambda p: p.wheel.name):
                lines.append(
                    f"    {human(planned.wheel.size):>8}    {planned.wheel.name} {planned.wheel.version}"
                )
    return lines


def _as_json(prepared: Prepared) -> dict[str, object]:
    lock = prepared.lock
    layers = [
        {
            "kind": layer.kind.value,
            "name": layer.name,
            "group": layer.group,
            "key": layer.key.text,
            "size": layer.size,
            "wheels": [
                {
                    "name": p.wheel.name,
                    "version": p.wheel.version,
                    "size": p.wheel.size,
                    "patches": len(p.patches),
                }
                for p in layer.wheels
            ],
            "debs": len(layer.debs),
        }
        for layer in prepared.plan.layers
    ]
    return {
        "stack": prepared.stack.name,
        "summary": prepared.stack.summary,
        "platform": str(lock.platform),
        "python": str(lock.python),
        "glibc": str(lock.glibc),
        "gpus": [str(g) for g in prepared.stack.target.gpus],
        "lock": str(prepared.lock_file),
        "download-size": lock.download_size,
        "overrides": [{"requirement": o.requirement, "reason": o.reason} for o in lock.overrides],
        "patches": [{"package": p.package, "path": p.path, "sha256": p.sha256.hex} for p in lock.patches],
        "layers": layers,
    }
