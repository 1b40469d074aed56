"""`imagebuilder accept`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from imagebuilder.cli.context import Context, json_option, say, say_json, stack_argument, verb
from imagebuilder.errors import ChecksFailed, MachineLacks, NotAccepted, SectionMissing, UsageProblem

if TYPE_CHECKING:
    from imagebuilder.accept.model import RunResult, Scenario, SmokeReport
    from imagebuilder.accept.prompts import Prompt
    from imagebuilder.accept.results import Stored
    from imagebuilder.accept.run import Order
    from imagebuilder.accept.server import Runtime
    from imagebuilder.cli.cluster import Subject
    from imagebuilder.cli.prepare import Prepared
    from imagebuilder.publish.built import BuiltImage
    from imagebuilder.stack.model import Acceptance, Gpus, Stack

RESULTS = "results"


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What the command line asks for besides the stack."""

    runtime: str
    smoke_only: bool
    if_needed: bool
    extend: bool
    results: Path
    cluster: str | None = None


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is asked of the servers."""

    acceptance: Acceptance
    scenario: Scenario
    prompts: tuple[Prompt, ...]
    tasks: tuple[Prompt, ...]


@verb()
@stack_argument
@click.option(
    "--runtime",
    "--on",
    "runtime",
    type=click.Choice(["docker", "kubernetes", "process", "auto"]),
    default="docker",
    help="docker: containers here. kubernetes: one pod in a cluster, as [deploy.kubernetes] says. process: "
    "processes here, without the image; a rehearsal, it accepts nothing. auto: docker where an engine "
    "answers, else process.",
)
@click.option(
    "--image",
    metavar="REF@DIGEST",
    help="With kubernetes: what is accepted. Default: the built image, in the stack's [image] repository.",
)
@click.option(
    "--context", "cluster", metavar="NAME", help="With kubernetes: the cluster, as kubectl knows it."
)
@click.option("--gpus", metavar="all|none|0,1,…", help="GPUs of each server. Default: the stack's.")
@click.option("--smoke-only", is_flag=True, help="Look whether the image works, and start no server.")
@click.option(
    "--if-needed",
    is_flag=True,
    help="Where the latest result is a pass of the same, show it only.",
)
@click.option(
    "--extend/--no-extend",
    default=True,
    show_default=True,
    help="Where it stays unclear, measure as many units again.",
)
@click.option(
    "--results",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    default=RESULTS,
    help="Where results are kept.  [default: results]",
)
@click.option(
    "--dry-run", is_flag=True, help="Say what would be run (with kubernetes: the manifests), and run nothing."
)
@json_option
def command(
    context: Context, *, stack: str, gpus: str | None, image: str | None, dry_run: bool, as_json: bool,
    **wishes: Any,
) -> None:  # fmt: skip
    """Prove the built image (images/STACK): smoke, baseline, EAGLE-3, verdict. Prints the report's path.

    Ends with status 8 unless it passes. Results are kept in ./results, bound to the image's config digest.
    """
    from imagebuilder.accept.results import check_results_place
    from imagebuilder.cli.prepare import prepare

    prepared = prepare(context, stack)
    wish = _resolved(context, prepared.stack, Wish(**wishes))
    if (image or wish.cluster) and wish.runtime != "kubernetes":
        raise UsageProblem("--image and --context are for a cluster", wanted="--on kubernetes")
    asked = _asked(prepared.stack, _gpus(gpus))
    _lint(context, prepared.stack, asked.acceptance, wish)
    if dry_run and wish.runtime != "kubernetes":
        _describe(asked, wish)
        return
    subject = _subject(context, prepared, asked, wish, image)
    if dry_run and subject.job:
        subject.job.tell(as_json)
        return
    subject = subject.resolved(context)
    if wish.if_needed and not wish.smoke_only and (stored := _known(context, asked, wish, subject)):
        _tell(stored, as_json)
        return
    if not wish.smoke_only:
        check_results_place(context.cwd / wish.results, subject.config)
    with _runtime(context, prepared, subject, wish) as runtime:
        order = _order(context, prepared, asked, wish, subject)
        result = _run(context, order, runtime)
    if wish.smoke_only:
        _tell_smoke(result, as_json)
    else:
        _tell_result(context, result, wish, as_json)


# ---------------------------------------------------------------- what is asked


def _asked(stack: Stack, gpus: Gpus | None) -> Asked:
    from imagebuilder.accept.prompts import known_answers, load_set, select
    from imagebuilder.accept.scenario import make_scenario

    if stack.acceptance is None:
        raise SectionMissing(stack.name, "acceptance", "what it must do to be accepted")
    acceptance = stack.acceptance if gpus is None else replace(stack.acceptance, gpus=gpus)
    prompts = select(load_set(acceptance.load.prompts), acceptance.load.requests)
    tasks = known_answers()
    scenario = make_scenario(stack, acceptance, (*prompts, *tasks))
    return Asked(acceptance=acceptance, scenario=scenario, prompts=prompts, tasks=tasks)


def _gpus(text: str | None) -> Gpus | None:
    if text is None:
        return None
    if text == "all":
        return "all"
    if text == "none":
        return "none"
    numbers = text.split(",")
    if not all(n.isdigit() for n in numbers) or len(set(numbers)) < len(numbers):
        raise UsageProblem("--gpus", seen=text, wanted="all, none, or numbers such as 0,1")
    return tuple(int(n) for n in numbers)


def _lint(context: Context, stack: Stack, acceptance: Acceptance, wish: Wish) -> None:
    """Findings about the scenario: warnings are told, errors end it before anything is started."""
    from imagebuilder.accept.lint import Hosted, hosted, lint
    from imagebuilder.checks.registry import failing

    here = hosted(acceptance) if wish.runtime == "docker" else Hosted()
    # A cluster has secrets of its own: the Job refers to them.
    known = dict.fromkeys(acceptance.secrets, "-") if wish.runtime == "kubernetes" else os.environ
    findings = lint(stack, acceptance, here, known)
    wrong = failing(findings)
    for finding in findings:
        if finding.waived is None and finding not in wrong:
            context.reporter.warn(f"{finding.code}: {finding.what}; {finding.fix}")
    if wrong:
        raise ChecksFailed(
            f"the acceptance of {stack.name} cannot work",
            seen="\n          ".join(
                " ".join([f"{f.code}: {f.what}", *(f"({e})" for e in f.evidence)]) for f in wrong
            ),
            hint=wrong[0].fix,
        )


def _describe(asked: Asked, wish: Wish) -> None:
    from imagebuilder.accept.looks import first_units, most_units

    scenario, load = asked.scenario, asked.scenario.load
    say(f"baseline  {shlex.join(scenario.baseline)}")
    say(f"eagle3    {shlex.join(scenario.eagle3)}")
    for what, why in scenario.equalised:
        say(f"equal     {what}  ({why})")
    levels = ", ".join(map(str, load.concurrency))
    say(f"load      {load.requests} {load.prompts} requests, {levels} at a time, {load.output_tokens} tokens")
    say(f"answers   {len(asked.tasks)} tasks with known answers")
    units = first_units(load), most_units(load, extend=wish.extend)
    unit = (
        "rounds of both servers side by side"
        if load.pairing == "rounds"
        else "starts of each server, A-B-B-A"
    )
    say(f"units     {units[0]}, at most {units[1]}: {unit}")
    say(f"prompts   {scenario.prompts}")


# ---------------------------------------------------------------- running


def _order(context: Context, prepared: Prepared, asked: Asked, wish: Wish, subject: Subject) -> Order:
    from imagebuilder.accept import results
    from imagebuilder.accept.looks import most_units
    from imagebuilder.accept.run import Order
    from imagebuilder.accept.verdict import settled

    root = context.cwd / wish.results
    reference = asked.scenario.require.no_regression_against
    earlier = results.find_run(root, reference) if reference else None

    def keep(result: RunResult) -> None:
        if not wish.smoke_only:
            results.keep(root, result)

    return Order(
        stack=prepared.stack,
        acceptance=asked.acceptance,
        lock=prepared.lock,
        scenario=asked.scenario,
        prompts=asked.prompts,
        tasks=asked.tasks,
        planned_units=most_units(asked.scenario.load, extend=wish.extend),
        config_digest=subject.config,
        manifest_digest=subject.manifest,
        secrets={} if subject.job else {name: os.environ[name] for name in asked.acceptance.secrets},
        smoke_only=wish.smoke_only,
        keep=keep,
        more=lambda result: not settled(result, earlier),
    )


def _run(context: Context, order: Order, runtime: Runtime) -> RunResult:
    from imagebuilder.accept.run import run

    return run(order, runtime, context.reporter)


@contextmanager
def _runtime(context: Context, prepared: Prepared, subject: Subject, wish: Wish) -> Iterator[Runtime]:
    """Where the servers run: in containers of the image here, in a cluster, or without it as processes."""
    if subject.job is not None:
        with subject.job.runtime(context, wish.cluster) as pod:
            yield pod
        return
    if subject.built is None:
        from imagebuilder.accept.process import ProcessRuntime

        context.reporter.warn("a rehearsal without the image: it accepts nothing")
        with ProcessRuntime(prepared.stack, os.environ) as process:
            yield process
        return
    from imagebuilder.accept.container import DockerRuntime, owner_now
    from imagebuilder.builders.docker.engine import Engine

    try:
        engine = Engine.connect(os.environ)
    except MachineLacks as error:
        error.hint += "; `--runtime process` rehearses without Docker"
        raise
    with engine:
        image = _loaded(context, prepared, subject.built, engine)
        yield DockerRuntime(engine, image, prepared.stack.name, owner_now(), context.reporter)


def _resolved(context: Context, stack: Stack, wish: Wish) -> Wish:
    """`auto` decided, and said."""
    from imagebuilder.accept.container import runs_here
    from imagebuilder.builders.docker.engine import Engine

    if wish.runtime != "auto":
        return wish
    try:
        with Engine.connect(os.environ) as engine:
            if runs_here(engine, stack.target.platform.machine):
                return replace(wish, runtime="docker")
            why = f"the engine at {engine.facts.host} runs elsewhere or on another machine type"
    except MachineLacks as error:
        why = error.what
    context.reporter.note(f"{why}: a rehearsal in processes")
    return replace(wish, runtime="process")


def _known(context: Context, asked: Asked, wish: Wish, subject: Subject) -> Stored | None:
    """The result that makes another run needless."""
    from imagebuilder.accept.results import still_passes

    stored = still_passes(context.cwd / wish.results, subject.config, asked.scenario)
    if stored and stored.record:
        context.reporter.note(f"nothing to do: passed at {stored.record.started}")
    return stored


def _subject(context: Context, prepared: Prepared, asked: Asked, wish: Wish, image: str | None) -> Subject:
    """What is to be accepted. UsageProblem, StackInvalid where there is nothing."""
    from imagebuilder.cli.cluster import Subject, cluster_job

    if wish.runtime == "kubernetes":
        job = cluster_job(context, prepared.stack, asked.acceptance, asked.scenario, image)
        return Subject(job=job, manifest=str(job.image.digest))
    if wish.runtime == "process":
        return Subject()
    built = _built(context, prepared)
    return Subject(built=built, config=built.image.config_digest.text, manifest=built.image.digest.text)


def _built(context: Context, prepared: Prepared) -> BuiltImage:
    from imagebuilder.cli.prepare import argument_of
    from imagebuilder.publish.built import is_image, read_built

    place = context.cwd / "images" / prepared.stack.name
    if not is_image(place):
        raise UsageProblem(
            f"{prepared.stack.name} is not built",
            wanted=f"an image in {place}",
            hint=f"imagebuilder build {argument_of(context, prepared.stack)}",
        )
    return read_built(place, context.cache)


def _loaded(context: Context, prepared: Prepared, built: BuiltImage, engine: Any) -> str:
    """The engine's id of the image; brought there first where it has it not."""
    from imagebuilder.builders.output import DEFAULT_REPOSITORY
    from imagebuilder.values import ImageRef

    tagged = tuple(ImageRef.parse(name) for name in built.names if ":" in name)
    names = tagged or (ImageRef.parse(f"{DEFAULT_REPOSITORY}:{prepared.stack.name}"),)
    if engine.id_of(names[0]) not in (built.image.config_digest, built.image.digest):
        engine.load(built.image, names, context.reporter)
    return str(engine.id_of(names[0]))


# ---------------------------------------------------------------- telling


def _tell_result(context: Context, result: RunResult, wish: Wish, as_json: bool) -> None:
    from imagebuilder.accept import results
    from imagebuilder.accept.record import require_pass

    stored = results.save(context.cwd / wish.results, result)
    assert stored.record is not None, "a result that was just saved has a verdict"
    _tell(stored, as_json)
    if result.failure:
        raise NotAccepted(
            f"the acceptance of {result.stack} was broken off: {result.failure}",
            hint=f"what was measured before is in {stored.report}",
        )
    require_pass(stored.record, str(stored.report))


def _tell(stored: Stored, as_json: bool) -> None:
    from imagebuilder.accept import codec

    record = stored.record
    assert record is not None
    if as_json:
        say_json("accept", {"folder": str(stored.folder), "record": codec.to_json(record)})
    else:
        say(f"{record.outcome}: {record.headline}")
        say(str(stored.report))


def _tell_smoke(result: RunResult, as_json: bool) -> None:
    from imagebuilder.accept import codec

    report: SmokeReport | None = result.smoke
    if as_json:
        say_json("smoke", {"stack": result.stack, "smoke": codec.to_json(report) if report else None})
    else:
        for check in report.checks if report else ():
            say(f"{check.status:<8} {check.code:<24} {check.subject}: {check.detail}")
    if result.failure:
        raise NotAccepted(result.failure)
