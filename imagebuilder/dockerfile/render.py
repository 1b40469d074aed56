"""Plan + template → Dockerfile. Pure: the template's text is passed in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from imagebuilder.dockerfile import quoting
from imagebuilder.dockerfile.model import BASE_TAR, FILES_TAR
from imagebuilder.dockerfile.steps import wheel_steps
from imagebuilder.errors import Problem, StackInvalid, UsageProblem
from imagebuilder.plan import VENV, LayerKind, Plan, PlannedLayer
from imagebuilder.plan.config import DEFAULT_COMMAND
from imagebuilder.stack.model import Stack
from imagebuilder.values import ImageRef


def render(
    plan: Plan, stack: Stack, template: str, *, vendored: bool = False, template_name: str = ""
) -> str:
    """The Dockerfile of this plan.

    vendored: the wheels are in the context, so that the build needs no network. Raises StackInvalid with all
    texts of the stack that a Dockerfile cannot hold, and UsageProblem for a template that cannot be used.
    """
    import jinja2

    problems: list[Problem] = []
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # not HTML: the filters quote, each for its place
    )
    environment.filters.update(_filters(problems))
    name = template_name or "the template"
    try:
        text = environment.from_string(template).render(variables(plan, stack, vendored=vendored))
    except jinja2.TemplateSyntaxError as error:
        raise UsageProblem(
            f"{name}, line {error.lineno}: {error.message}", hint="see docs/65-dockerfile.md"
        ) from None
    except jinja2.TemplateError as error:
        raise UsageProblem(
            f"{name}: {error}", hint="docs/65-dockerfile.md lists what a template can use"
        ) from None
    if problems:
        raise StackInvalid(stack.name, problems)
    return text


def variables(plan: Plan, stack: Stack, *, vendored: bool) -> dict[str, Any]:
    """What a template can use; docs/65-dockerfile.md explains each."""
    by_kind: dict[LayerKind, PlannedLayer] = {layer.kind: layer for layer in plan.layers}
    base, system, files = (by_kind.get(k) for k in (LayerKind.BASE, LayerKind.SYSTEM, LayerKind.FILES))
    snapshot = stack.apt_snapshot
    run = plan.run
    return {
        "name": stack.name,
        "summary": stack.summary,
        "platform": str(plan.platform),
        "epoch": int(plan.created.timestamp()),
        "created": plan.created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "venv": VENV,
        "python": str(plan.python),
        "interpreter": plan.interpreter,
        "base": {
            "title": base.title if base else "",
            "image": _name_and_tag(base.image.ref) if base and base.image and base.image.ref else "",
            "digest": str(base.image.index) if base and base.image else "",
            "tar": BASE_TAR if base and base.debs else "",
        },
        "system": {
            "packages": system.packages if system else (),
            "snapshot": snapshot.strftime("%Y%m%dT%H%M%SZ") if snapshot else "",
        },
        "wheels": wheel_steps(plan, stack, vendored=vendored),
        "vendored": vendored,
        "files": {
            "tar": FILES_TAR if files else "",
            "paths": [f"{f.path} ({f.mode:04o})" for f in files.files] if files else [],
        },
        "environment": run.environment,
        "labels": run.labels,
        "ports": run.ports,
        "user": run.user,
        "workdir": run.workdir,
        "entrypoint": run.entrypoint,
        "command": run.command or (DEFAULT_COMMAND if base and base.debs and not run.entrypoint else ()),
        "sets_path": any(key == "PATH" for key, _ in run.environment),
    }


def _name_and_tag(ref: ImageRef) -> str:
    return f"{ref.name}:{ref.tag}" if ref.tag else ref.name


def _filters(problems: list[Problem]) -> dict[str, Callable[..., str]]:
    """The quoting filters. A text that cannot be quoted is noted, so that all are reported at once."""

    def noting(quote: Callable[..., str]) -> Callable[..., str]:
        def filtered(text: Any, key: str = "the stack") -> str:
            try:
                return quote(text)
            except quoting.NotExpressible as error:
                problems.append(Problem(key=key, message=str(error), hint="--builder direct can hold it"))
                return ""

        return filtered

    return {
        "value": noting(quoting.value),
        "json": noting(quoting.exec_form),
        "word": noting(quoting.shell_word),
        "comment": quoting.comment,
    }
