"""Server arguments wherever a stack has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from imagebuilder.stack.model import Stack


def commands(stack: Stack) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(key, arguments as one server gets them) for every server that the stack starts."""
    if stack.acceptance:
        both = stack.acceptance.arguments
        yield "acceptance.baseline.arguments", (*both, *stack.acceptance.baseline.arguments)
        yield "acceptance.eagle3.arguments", (*both, *stack.acceptance.eagle3.arguments)
    if stack.deploy_docker:
        yield "deploy.docker.command", stack.deploy_docker.command
    if stack.deploy_kubernetes:
        yield "deploy.kubernetes.command", stack.deploy_kubernetes.command
    yield "image.command", stack.image.command


def keys_with(stack: Stack, wanted: str) -> list[str]:
    """The keys of the stack file under which `--flag`, or `--option=value`, stands."""
    acceptance = stack.acceptance
    written = {
        "acceptance.arguments": acceptance.arguments if acceptance else (),
        "acceptance.baseline.arguments": acceptance.baseline.arguments if acceptance else (),
        "acceptance.eagle3.arguments": acceptance.eagle3.arguments if acceptance else (),
        "deploy.docker.command": stack.deploy_docker.command if stack.deploy_docker else (),
        "deploy.kubernetes.command": stack.deploy_kubernetes.command if stack.deploy_kubernetes else (),
        "image.command": stack.image.command,
    }
    return [key for key, arguments in written.items() if has(arguments, wanted)]


def value_of(arguments: Sequence[str], option: str) -> str | None:
    """What an option is given, `--option value` or `--option=value`; empty: a bare flag; None: not there."""
    for i, argument in enumerate(arguments):
        if argument == option:
            following = arguments[i + 1] if i + 1 < len(arguments) else ""
            return "" if following.startswith("--") else following
        if argument.startswith(f"{option}="):
            return argument.partition("=")[2]
    return None


def has(arguments: Sequence[str], wanted: str) -> bool:
    """Is `--flag`, or `--option=value` in either spelling, among them?"""
    option, equals, value = wanted.partition("=")
    given = value_of(arguments, option)
    return given is not None and (not equals or given == value)
