"""`imagebuilder deploy docker` and `imagebuilder deploy kubernetes`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from imagebuilder.cli.context import Context, json_option, say, say_json, stack_argument, verb
from imagebuilder.errors import LockUnusable, NotAccepted, UsageProblem

if TYPE_CHECKING:
    from imagebuilder.builders.docker.engine import Engine
    from imagebuilder.deploy.container import Container
    from imagebuilder.publish.built import BuildRecord
    from imagebuilder.stack import Stack
    from imagebuilder.stack.model import Pairs
    from imagebuilder.values import Digest, ImageRef

unaccepted_option = click.option(
    "--unaccepted", is_flag=True, help="Deploy an image that has no passing acceptance."
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """An accepted image → a running service."""


# ---------------------------------------------------------------- docker


@verb()
@stack_argument
@click.option("--image", metavar="REF", help="Default: the image that `build` made of the stack.")
@click.option("--dry-run", is_flag=True, help="Print the command, and start nothing.")
@click.option("--format", "form", type=click.Choice(["run", "compose"]), default="run",
              help="What is printed: a `docker run` line, or a compose file (starts nothing).")  # fmt: skip
@click.option("--rollback", is_flag=True, help="Start the container that served before.")
@unaccepted_option
@json_option
def docker(
    context: Context, *, stack: str, image: str | None, dry_run: bool, form: str, rollback: bool,
    unaccepted: bool, as_json: bool,
) -> None:  # fmt: skip
    """Start the image with the engine as [deploy.docker] says, and print the container's id.

    What serves now is stopped, kept until the new container is healthy, and put back where it does not
    become so; afterwards it stays, stopped, for --rollback. Nothing happens where the same runs already.
    """
    from imagebuilder.cli.prepare import stack_of
    from imagebuilder.deploy.container import container_of

    found = stack_of(context, stack)
    ref = reference(image) if image else None
    if rollback and (image or dry_run or form != "run"):
        raise UsageProblem("--rollback goes alone: it starts the container that is there")
    if rollback:
        _rollback(context, container_of(found, ""), as_json)
        return
    wanted = container_of(found, _shown(ref) if ref else _built_name(context, found))
    if dry_run or form == "compose":
        if not unaccepted:
            _forewarn(context, found, ref, wanted)
        _print(wanted, form, as_json)
        return
    secrets = _secrets(wanted)
    with _connect() as engine:
        known = _bring(context, engine, found, ref, wanted)
        if not unaccepted:
            config = known or config_of(context, found, ref or reference(wanted.image))
            _require_acceptance(context, found, config, wanted.words, wanted.env)
        _start(context, engine, wanted, secrets, as_json)


def _forewarn(context: Context, stack: Stack, ref: ImageRef | None, wanted: Container) -> None:
    """Say why the deployment itself would be refused: what is printed may be meant for later."""
    from imagebuilder.errors import ImagebuilderError

    try:
        config = config_of(context, stack, ref) if ref else _record(context, stack).config
        _require_acceptance(context, stack, config, wanted.words, wanted.env)
    except ImagebuilderError as error:
        would = "would be refused" if isinstance(error, NotAccepted) or ref is None else "may be refused"
        why = "; ".join(text for text in (error.what, error.seen, error.hint) if text)
        context.reporter.warn(f"the deployment itself {would} (exit code {error.exit_code}): {why}")


def _print(wanted: Container, form: str, as_json: bool) -> None:
    from imagebuilder.deploy.container import compose_file, run_line, run_words
    from imagebuilder.deploy.text import yaml_document

    if form == "compose":
        if as_json:
            say_json("deploy-compose", {"compose": compose_file(wanted)})
        else:
            click.echo(yaml_document(compose_file(wanted)), nl=False)
    elif as_json:
        say_json("deploy-run", {"command": list(run_words(wanted)), "secrets": list(wanted.secrets)})
    else:
        say(run_line(wanted))


def _secrets(wanted: Container) -> dict[str, str]:
    missing = [name for name in wanted.secrets if not os.environ.get(name)]
    if missing:
        raise UsageProblem(
            f"the service needs {', '.join(missing)}, which this environment does not have",
            hint=f"export {missing[0]}=…",
        )
    return {name: os.environ[name] for name in wanted.secrets}


def _connect() -> Engine:
    from imagebuilder.cli.docker import connect

    return connect()


def _start(
    context: Context, engine: Engine, wanted: Container, secrets: dict[str, str], as_json: bool
) -> None:
    from imagebuilder.deploy.switch import Switch

    switch = Switch(engine=engine, wanted=wanted, secrets=secrets, reporter=context.reporter)
    outcome = switch.deploy()
    host = wanted.address if wanted.address not in ("", "0.0.0.0", "::") else "127.0.0.1"
    url = f"http://{f'[{host}]' if ':' in host else host}:{wanted.host_port}"
    context.reporter.note(f"{wanted.name} serves at {url}")
    _say_outcome(wanted, outcome, as_json, url=url)


def _rollback(context: Context, wanted: Container, as_json: bool) -> None:
    from imagebuilder.deploy.switch import Switch

    with _connect() as engine:
        outcome = Switch(engine=engine, wanted=wanted, reporter=context.reporter).rollback()
    _say_outcome(wanted, outcome, as_json)


def _say_outcome(wanted: Container, outcome: Any, as_json: bool, **more: str) -> None:
    if as_json:
        say_json("deploy", {
            "stack": wanted.stack, "name": wanted.name, "outcome": outcome.what,
            "container": outcome.container, "image": outcome.image, **more,
        })  # fmt: skip
    else:
        say(outcome.container)


# ---------------------------------------------------------------- kubernetes


@verb()
@stack_argument
@click.option(
    "--image", metavar="REF@DIGEST", help="Default: the built image, in the stack's [image] repository."
)
@click.option(
    "--apply", "applying", is_flag=True, help="Apply with kubectl (server-side) instead of printing."
)
@click.option(
    "--dry-run", is_flag=True, help="With --apply: only ask the cluster whether it takes all of it."
)
@click.option("--wait", "waiting", is_flag=True, help="With --apply: wait until it is rolled out.")
@click.option("--force-conflicts", is_flag=True, help="With --apply: take over fields that others changed.")
@click.option("--context", "cluster", metavar="NAME", help="With --apply: the cluster, as kubectl knows it.")
@click.option("--service-monitor", is_flag=True, help="Add a ServiceMonitor, for the Prometheus operator.")
@unaccepted_option
@json_option
def kubernetes(
    context: Context, *, stack: str, image: str | None, applying: bool, service_monitor: bool,
    unaccepted: bool, as_json: bool, **wishes: Any,
) -> None:  # fmt: skip
    """Print the manifests that run the image as [deploy.kubernetes] says, or apply them.

    The image is named by its digest, which the cluster must be able to pull: push it first.
    """
    from imagebuilder.cli.prepare import stack_of
    from imagebuilder.deploy.kubernetes import manifests
    from imagebuilder.deploy.text import yaml_documents

    given = [name for name, wish in wishes.items() if wish]
    if given and not applying:
        words = {"waiting": "--wait", "cluster": "--context"}
        names = ", ".join(words.get(name, f"--{name.replace('_', '-')}") for name in given)
        raise UsageProblem(f"{names}: only with --apply")
    found = stack_of(context, stack)
    ref = reference(image) if image else pushed_reference(context, found)
    documents = manifests(found, ref, service_monitor=service_monitor)
    if not unaccepted and found.deploy_kubernetes:
        config = config_of(context, found, ref)
        _require_acceptance(
            context, found, config, found.deploy_kubernetes.command, found.deploy_kubernetes.env
        )
    if applying:
        said = _apply(context, found, documents, **wishes)
        if as_json:
            say_json("deploy-kubernetes", {"applied": list(said), "image": str(ref)})
        else:
            for line in said:
                say(line)
    elif as_json:
        say_json("deploy-kubernetes", {"documents": list(documents), "image": str(ref)})
    else:
        click.echo(yaml_documents(documents), nl=False)


def _apply(
    context: Context, stack: Stack, documents: tuple[dict[str, Any], ...], *, dry_run: bool, waiting: bool,
    force_conflicts: bool, cluster: str | None,
) -> tuple[str, ...]:  # fmt: skip
    from imagebuilder.deploy.kubectl import Cluster, subprocess_runner

    target = Cluster(run=subprocess_runner(os.environ), context=cluster, force=force_conflicts)
    said = target.apply(documents, context.reporter, dry_run=dry_run)
    if waiting and not dry_run:
        assert stack.deploy_kubernetes is not None
        for line in said:
            context.reporter.note(line)
        target.wait(documents, stack.deploy_kubernetes.startup_timeout + 600, context.reporter)
    return said


command.add_command(docker, "docker")
command.add_command(kubernetes, "kubernetes")


# ---------------------------------------------------------------- which image


def reference(text: str) -> ImageRef:
    """What `--image` names. UsageProblem."""
    from imagebuilder.values import ImageRef

    try:
        return ImageRef.parse(text)
    except ValueError as error:
        raise UsageProblem(f"--image: {error}") from None


def _shown(ref: ImageRef) -> str:
    """For docker's command line: a digest decides alone."""
    return f"{ref.name}@{ref.digest}" if ref.digest else str(ref)


def _place(context: Context, stack: Stack) -> Path:
    return context.cwd / "images" / stack.name


def _built_name(context: Context, stack: Stack) -> str:
    """What `build` calls the image of this stack and lock: the name that does not move."""
    from imagebuilder.builders.output import image_names
    from imagebuilder.cli.prepare import fresh_lock
    from imagebuilder.values import Digest

    lock, path = fresh_lock(context, stack)
    return str(image_names(stack.name, stack.image.repository, lock, Digest.of(path.read_bytes()))[-1])


def _record(context: Context, stack: Stack) -> BuildRecord:
    """Of the image in images/STACK, made from the stack's present lock. UsageProblem, LockUnusable."""
    from imagebuilder.cli.prepare import argument_of, fresh_lock
    from imagebuilder.publish.built import read_record
    from imagebuilder.values import Digest

    _, path = fresh_lock(context, stack)
    record = read_record(_place(context, stack))
    hint = f"imagebuilder build {argument_of(context, stack)}"
    if record is None:
        raise UsageProblem(
            f"{stack.name} is not built",
            wanted=f"an image in {_place(context, stack)}, or --image",
            hint=hint,
        )
    if record.lock != Digest.of(path.read_bytes()):
        raise LockUnusable(
            f"the image in {_place(context, stack)} was built from another lock than {path}",
            seen=record.lock.text,
            wanted=Digest.of(path.read_bytes()).text,
            hint=hint,
        )
    return record


def pushed_reference(context: Context, stack: Stack) -> ImageRef:
    """The built image, where the stack says that it is pushed to."""
    from dataclasses import replace

    from imagebuilder.values import ImageRef

    if stack.image.repository is None:
        raise UsageProblem(
            "which image?",
            wanted="--image REF@DIGEST, as `imagebuilder push` prints it, or [image] repository in the stack",
        )
    record = _record(context, stack)
    ref = replace(ImageRef.parse(stack.image.repository), tag=None, digest=record.manifest)
    context.reporter.note(f"image: {ref}, as built here; the cluster finds it once it is pushed")
    return ref


def _bring(
    context: Context, engine: Engine, stack: Stack, ref: ImageRef | None, wanted: Container
) -> Digest | None:
    """See that the engine has the image; its config's digest, where engine or build record tell it."""
    from imagebuilder.deploy.images import bring
    from imagebuilder.oci.credentials import DockerCredentials
    from imagebuilder.publish.built import read_built, read_record
    from imagebuilder.values import ImageRef

    if ref is None:
        record = _record(context, stack)
        name = ImageRef.parse(wanted.image)
        if engine.id_of(name) not in (record.config, record.manifest):
            built = read_built(_place(context, stack), context.cache)
            engine.load(built.image, (name,), context.reporter)
        return record.config
    login = DockerCredentials.of(context.settings).find(ref.registry)
    known = bring(engine, ref, login, context.reporter)
    built_here = read_record(_place(context, stack))
    if built_here is not None and known in (built_here.config, built_here.manifest):
        return built_here.config
    return None if engine.facts.has_containerd_store else known


def config_of(context: Context, stack: Stack, ref: ImageRef) -> Digest:
    """What acceptance binds to: from the build record where it is this image, else from its registry."""
    from imagebuilder.oci.base import resolve_base
    from imagebuilder.publish.built import read_record

    record = read_record(_place(context, stack))
    if record is not None and ref.digest == record.manifest:
        return record.config
    found = resolve_base(ref, stack.target.platform, settings=context.settings, cache=context.cache)
    return found.image.config_digest


def _require_acceptance(
    context: Context, stack: Stack, config: Digest, words: tuple[str, ...], env: Pairs
) -> None:
    """NotAccepted where the image is not; a warning where another server of it is deployed than accepted.

    words: empty where the image's own command serves.
    """
    from imagebuilder.cli.acceptance import accepted_scenario, why_not_accepted
    from imagebuilder.cli.prepare import argument_of
    from imagebuilder.deploy.accepted import other_than_accepted

    if why := why_not_accepted(context.cwd, config):
        raise NotAccepted(
            f"the image {config.short} of {stack.name} is not deployed: it has no passing acceptance",
            seen=why,
            hint=f"imagebuilder accept {argument_of(context, stack)}, with a Docker engine; or --unaccepted",
        )
    scenario = accepted_scenario(context.cwd, config)
    if scenario and (found := other_than_accepted(scenario, words or stack.image.command, env)):
        context.reporter.warn(f"another server is deployed than was accepted: {'; '.join(found)}")
