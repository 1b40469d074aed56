"""One acceptance, from the first container to the last number: smoke, then both servers unit by unit.

Everything that was measured is handed to `keep` after every unit, so what a kill leaves is readable. Whatever
happens, servers are stopped: an exception, Ctrl-C and SIGTERM unwind through here; a SIGKILL leaves
containers, which the next run removes by their labels.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from imagebuilder import __version__
from imagebuilder.accept import smoke, templates
from imagebuilder.accept.host import Sampler
from imagebuilder.accept.measure import Measuring, Run
from imagebuilder.accept.model import (
    ARMS,
    BASELINE,
    EAGLE3,
    ArmName,
    Difference,
    PromptInfo,
    RoundResult,
    RunResult,
    Scenario,
    ServerFacts,
)
from imagebuilder.accept.prompts import Prompt
from imagebuilder.accept.server import Launch, Runtime, Server, wait_healthy
from imagebuilder.checks import acceptance as codes
from imagebuilder.checks.model import Finding
from imagebuilder.checks.registry import matches
from imagebuilder.errors import NotAccepted
from imagebuilder.lock.model import Lock
from imagebuilder.progress import Reporter
from imagebuilder.stack.model import Acceptance, Stack


@dataclass(frozen=True, kw_only=True)
class Order:
    """What is to be accepted and how. prompts: of the load; tasks: with known answers.

    keep: told of everything measured so far, after every unit. more: whether to measure another unit, asked
    after every one while the plan has any. secrets: name → value, of the variables handed through.
    run: carries a coroutine out.
    """

    stack: Stack
    acceptance: Acceptance
    lock: Lock
    scenario: Scenario
    prompts: tuple[Prompt, ...]
    tasks: tuple[Prompt, ...]
    planned_units: int
    config_digest: str | None = None
    manifest_digest: str | None = None
    secrets: Mapping[str, str] = field(default_factory=dict)
    smoke: bool = True
    smoke_only: bool = False
    keep: Callable[[RunResult], None]
    more: Callable[[RunResult], bool]
    run: Run = asyncio.run


def run(order: Order, runtime: Runtime, reporter: Reporter) -> RunResult:
    """Carry it out. A server that fails ends the run with `failure`; MachineLacks and Ctrl-C pass through."""
    with Sampler(idle=runtime.host() is not None) as sampler, _terminated():
        if left := runtime.clean():
            reporter.note(f"removed {left} containers or jobs that a killed run had left")
        return _Run(order, runtime, reporter, sampler).carry_out()


@contextmanager
def _terminated() -> Iterator[None]:
    """SIGTERM unwinds like Ctrl-C, so that containers are removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


@dataclass
class _Started:
    """A server that is up. facts is replaced when it is stopped."""

    server: Server
    launch: Launch
    facts: ServerFacts
    measuring: Measuring


class _Run:
    """The state of a run: its result so far."""

    def __init__(self, order: Order, runtime: Runtime, reporter: Reporter, sampler: Sampler) -> None:
        self.order, self.runtime, self.reporter, self.sampler = order, runtime, reporter, sampler
        self.prompts, self.tasks = order.prompts, order.tasks
        self.starts: dict[ArmName, int] = dict.fromkeys(ARMS, 0)
        self.result = RunResult(
            imagebuilder=__version__,
            stack=order.stack.name,
            config_digest=order.config_digest,
            manifest_digest=order.manifest_digest,
            runtime=runtime.kind,
            scenario=order.scenario,
            prompts=tuple(
                PromptInfo(id=p.id, kind=p.kind, text=p.text, answer=p.answer)
                for p in (*order.prompts, *order.tasks)
            ),
            planned_units=order.planned_units,
            started=_now(),
        )

    def carry_out(self) -> RunResult:
        try:
            if self.order.smoke:
                self._smoke()
            if not self.order.smoke_only:
                self._template()
                if self.order.scenario.load.pairing == "rounds":
                    self._side_by_side()
                else:
                    self._in_turns()
        except NotAccepted as error:
            self._keep(failure=str(error), ended=_now())
            return self.result
        except BaseException as error:
            interrupted = isinstance(error, KeyboardInterrupt)
            self._keep(failure="interrupted" if interrupted else str(error), ended=_now())
            raise
        self._keep(ended=_now())
        return self.result

    def _keep(self, **changes: Any) -> None:
        self.result = replace(self.result, host=self.runtime.host() or self.sampler.facts, **changes)
        self.order.keep(self.result)

    # ---------------------------------------------------------------- before the load

    def _smoke(self) -> None:
        with self.reporter.task("smoke: packages, GPUs, folders"):
            told = smoke.probe(self.order.stack, self.order.lock, self._launch(BASELINE), self.runtime)
        report = smoke.judge(
            self.order.stack, self.order.lock, self.order.acceptance, told, self.runtime.kind
        )
        self._keep(smoke=report)
        if report.failed:
            shown = "\n          ".join(f"{c.code} {c.subject}: {c.detail}" for c in report.failed[:12])
            raise NotAccepted(
                f"the image of {self.order.stack.name} fails {len(report.failed)} smoke checks",
                seen=shown,
                hint=f"imagebuilder check {self.order.stack.name}; or waive them in the stack, with a reason",
            )

    def _template(self) -> None:
        """Puts the chat template on, with the image's own tokenizer: both servers get the same token ids."""
        told = templates.ask(
            self.order.acceptance, (*self.prompts, *self.tasks), self._launch(BASELINE), self.runtime
        )
        templates.check_draft(self.order.stack, told)
        if told.why:
            self.reporter.warn(f"prompts are sent without a chat template: {told.why}")
        self.prompts, self.tasks = told.apply(self.prompts), told.apply(self.tasks)

    def _launch(self, arm: ArmName) -> Launch:
        scenario, acceptance = self.order.scenario, self.order.acceptance
        return Launch(
            arm=arm,
            command=scenario.command(arm),
            port=scenario.port,
            env=scenario.env(arm),
            secrets=self.order.secrets,
            gpus=scenario.gpus,
            shm=scenario.shm,
            mounts=acceptance.mounts,
        )

    # ---------------------------------------------------------------- servers

    @contextmanager
    def _server(self, arm: ArmName) -> Iterator[_Started]:
        """A server of this arm, healthy and asked for its settings; stopped and removed afterwards."""
        launch, number = self._launch(arm), self.starts[arm]
        self.starts[arm] += 1
        server = self.runtime.start(launch)
        try:
            with self.reporter.task(f"{arm}: starting the server (start {number + 1})"):
                limit = self.order.acceptance.startup_timeout
                took = self.order.run(wait_healthy(server, launch, limit, self.reporter))
            measuring = Measuring(
                server=server,
                launch=launch,
                model=self.order.scenario.model,
                timeout=self.order.acceptance.request_timeout,
                reporter=self.reporter,
                run=self.order.run,
            )
            info = measuring.preflight(self.prompts[0])
            facts = ServerFacts(arm=arm, start=number, command=launch.command, startup_s=took, info=info)
            self.result = replace(self.result, servers=(*self.result.servers, facts))
            self._compare()
            yield _Started(server=server, launch=launch, facts=facts, measuring=measuring)
        finally:
            server.stop()

    def _compare(self) -> None:
        """Once both arms have run: what differs between them without having been asked for."""
        from imagebuilder.accept.differences import differences

        first = {s.arm: s for s in reversed(self.result.servers)}
        if len(first) < len(ARMS) or self.result.differences:
            return
        found = tuple(self._declared(d) for d in differences(first[BASELINE].info, first[EAGLE3].info))
        self._keep(differences=found)
        if unfair := [d for d in found if d.weight == "unfair"]:
            raise NotAccepted(
                "the two servers cannot be compared: they differ in more than speculation",
                seen="\n          ".join(
                    f"{d.setting}: baseline {d.baseline}, eagle3 {d.eagle3} ({d.why})" for d in unfair
                ),
                hint="give both the same in [acceptance] arguments, or declare it: "
                f'[[waive]] code = "{codes.UNEQUAL.code}", path = "{unfair[0].setting}", with a reason',
            )

    def _declared(self, difference: Difference) -> Difference:
        finding = Finding(code=codes.UNEQUAL.code, severity="error", what="", path=difference.setting)
        waiver = next((w for w in self.order.stack.waivers if matches(w, finding)), None)
        if waiver is None or difference.weight != "unfair":
            return difference
        return replace(difference, weight="noted", why=f"{difference.why}; declared: {waiver.reason}")

    # ---------------------------------------------------------------- units

    def _side_by_side(self) -> None:
        """Both servers stand; a unit is a round of each, the order changing from round to round."""
        with self._server(BASELINE) as baseline, self._server(EAGLE3) as eagle3:
            pair = (baseline, eagle3)
            self._survey(pair, 0)
            for unit in range(self.order.planned_units):
                for level in self.order.scenario.load.concurrency:
                    for started in pair if unit % 2 == 0 else reversed(pair):
                        self._load(started, level=level, unit=unit, index=0, warm=unit == 0)
                if not self._finished(unit + 1):
                    break
            self._survey(pair, self.result.units - 1)
            self._note_accept_lengths(pair)

    def _in_turns(self) -> None:
        """One server at a time, A-B-B-A…: a unit is a start of each."""
        load = self.order.scenario.load
        rounds = max(1, load.rounds // load.starts)
        for unit in range(self.order.planned_units):
            for arm in ARMS if unit % 2 == 0 else reversed(ARMS):
                with self._server(arm) as started:
                    self._survey((started,), unit)
                    for index in range(rounds):
                        for level in load.concurrency:
                            self._load(started, level=level, unit=unit, index=index, warm=index == 0)
                    self._note_accept_lengths((started,))
            if not self._finished(unit + 1):
                break

    def _finished(self, units: int) -> bool:
        """A unit is done in both arms; whether there is to be another."""
        self._keep(units=units)
        return units < self.order.planned_units and self.order.more(self.result)

    def _survey(self, servers: Sequence[_Started], unit: int) -> None:
        """Every prompt once, untimed. Also a thorough warm-up, and the same one for both arms."""
        load = self.order.scenario.load
        limits = dict.fromkeys((t.id for t in self.tasks), self.order.scenario.answer_tokens)
        for started in servers:
            measured = started.measuring.survey(
                (*self.prompts, *self.tasks),
                max(load.concurrency),
                lambda p: limits.get(p.id, load.output_tokens),
            )
            self._add(started, replace(measured, unit=unit, start=started.facts.start))

    def _load(self, started: _Started, *, level: int, unit: int, index: int, warm: bool) -> None:
        load = self.order.scenario.load
        measured = started.measuring.load(
            self.prompts, level, load.output_tokens, warmup=load.warmup_requests if warm else 0
        )
        self._add(started, replace(measured, unit=unit, index=index, start=started.facts.start))

    def _add(self, started: _Started, measured: RoundResult) -> None:
        self.result = replace(self.result, rounds=(*self.result.rounds, measured))
        if measured.requests and all(r.error for r in measured.requests):
            raise NotAccepted(
                f"the {started.launch.arm} server answered none of {len(measured.requests)} requests",
                seen=measured.requests[0].error,
            )

    def _note_accept_lengths(self, servers: Sequence[_Started]) -> None:
        """The server's own running average, before it is stopped."""
        for started in servers:
            told = started.measuring.accept_length()
            changed = replace(started.facts, accept_length=told)
            self.result = replace(
                self.result,
                servers=tuple(changed if s is started.facts else s for s in self.result.servers),
            )
