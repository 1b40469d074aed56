"""What the world does to a Docker build: a clear error, the right exit code, and nothing left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.builders.with_docker.conftest import Made, Workplace
from tests.support.command import WAIT, Machine, Outcome, leftovers, outcome_of
from tests.support.engine import SCRIPT, TestEngine, private_engine
from tests.support.registry import run_registry

pytestmark = [pytest.mark.docker, pytest.mark.network]

BUILD = ("build", "stack/real.toml", "--locked", "--builder", "docker", "--tag", "imagebuilder-test:fault")


OwnEngine = Callable[[TestEngine], TestEngine]


@pytest.fixture(scope="module")
def own_engine() -> Iterator[OwnEngine]:
    """An engine of this module's own, of the same kind.

    A step that two builds share BuildKit runs once: what one of them suffers, or breaks off, the other would.
    """
    made: dict[str, TestEngine] = {}
    with ExitStack() as stack:

        def like(engine: TestEngine) -> TestEngine:
            if engine.kind not in made:
                made[engine.kind] = stack.enter_context(private_engine(engine, f"faults{len(made)}"))
            return made[engine.kind]

        yield like


def check(outcome: Outcome, machine: Machine, code: int, *says: str) -> None:
    assert outcome.code == code, outcome.err
    for words in says:
        assert words in outcome.err, outcome.err
    assert "Traceback" not in outcome.err
    assert leftovers(machine.cache) == []
    assert not (machine.work / "images" / "real").exists()


def processes_with(text: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in command and "imagebuilder" not in command.split(" ")[2:3]:
            found.append(command)
    return found


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.05)


def building(machine: Machine) -> subprocess.Popen[str]:
    """A build that has given its context to the engine."""
    process = machine.start(*BUILD, "--no-cache")
    wait_until(lambda: bool(processes_with(f"{machine.cache}/tmp")) or process.poll() is not None)
    time.sleep(1.0)  # somewhere in the build; nothing depends on where
    return process


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(
    each_store: TestEngine, own_engine: OwnEngine, workplace: Workplace, direct: Made, how: signal.Signals
) -> None:
    engine = own_engine(each_store)
    machine = workplace.machine(f"interrupted-{each_store.kind}-{how}", engine)
    process = building(machine)
    process.send_signal(how)
    check(outcome_of(process), machine, 130, "interrupted")
    wait_until(lambda: not processes_with(f"{machine.cache}/tmp"))
    engine.wait_until_gone("image", "ls", "--format", "{{.Repository}}:{{.Tag}}", "imagebuilder-build")


def test_killed_at_once(
    containerd_engine: TestEngine, own_engine: OwnEngine, workplace: Workplace, direct: Made
) -> None:
    machine = workplace.machine("killed", own_engine(containerd_engine))
    process = building(machine)
    process.kill()
    process.communicate()
    wait_until(lambda: not processes_with(f"{machine.cache}/tmp"))
    made = workplace.build(machine, "--builder", "direct")  # what is left over does no harm
    assert made.record["manifest"] == direct.record["manifest"]


def test_the_engine_stops_while_it_builds(
    containerd_engine: TestEngine, workplace: Workplace, direct: Made
) -> None:
    with private_engine(containerd_engine, "stops") as engine:
        machine = workplace.machine("stops", engine)
        process = building(machine)
        subprocess.run([sys.executable, str(SCRIPT), "stop", engine.name], check=True, capture_output=True)
        check(outcome_of(process), machine, 6, "while it was building", "start it again")


def test_the_engines_disk_is_full(each_store: TestEngine, workplace: Workplace, direct: Made) -> None:
    with private_engine(each_store, "full", size="120m") as engine:
        machine = workplace.machine(f"full-{each_store.kind}", engine)
        check(machine.run(*BUILD), machine, 6, "the engine's disk is full", "docker builder prune")


def test_no_network_inside_the_build(
    containerd_engine: TestEngine, own_engine: OwnEngine, workplace: Workplace, direct: Made
) -> None:
    machine = workplace.machine("no network", own_engine(containerd_engine))
    machine.environment["IMAGEBUILDER_INDEX_DEFAULT_URL"] = "https://127.0.0.1:9/simple"
    check(machine.run(*BUILD, "--no-cache"), machine, 7, "no network inside the build", "--vendored")


def test_an_authority_that_the_build_does_not_know(
    containerd_engine: TestEngine, own_engine: OwnEngine, workplace: Workplace, direct: Made, tmp_path: Path
) -> None:
    key, other = tmp_path / "key.pem", tmp_path / "other.pem"
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=other"]
    subprocess.run([*request, "-keyout", str(key), "-out", str(other)], check=True, capture_output=True)
    machine = workplace.machine("other authority", own_engine(containerd_engine))
    machine.environment["IMAGEBUILDER_CA_BUNDLE"] = str(other)
    outcome = machine.run(*BUILD, "--no-cache")
    check(outcome, machine, 7, "certificate is not trusted", "IMAGEBUILDER_CA_BUNDLE")


def test_no_buildx(containerd_engine: TestEngine, workplace: Workplace, tmp_path: Path) -> None:
    machine = workplace.machine("no buildx", containerd_engine)
    machine.environment["DOCKER_CONFIG"] = str(tmp_path)
    outcome = machine.run(*BUILD)
    if outcome.code == 0:
        pytest.skip("docker finds a buildx of the system")
    check(outcome, machine, 6, "no buildx plugin", "--builder direct")


def test_no_engine(workplace: Workplace, tmp_path: Path) -> None:
    machine = workplace.machine("no engine")
    machine.environment["DOCKER_HOST"] = f"unix://{tmp_path}/none.sock"
    check(machine.run(*BUILD), machine, 6, "no Docker Engine answers", "systemctl start docker")


def test_pushed_and_pulled(
    each_store: TestEngine, workplace: Workplace, with_engine: Callable[[TestEngine], Made], tmp_path: Path
) -> None:
    made = with_engine(each_store)
    machine = workplace.machine(each_store.kind, each_store)
    with run_registry(tmp_path) as registry:
        name = f"{registry.host}/team/real:1"
        record = machine.build("stack/real.toml", "--locked", "--builder", "docker", "--tag", name, "--push")
        assert record["config"] == made.record["config"]
        each_store.docker("image", "rm", name)
        each_store.docker("pull", "--quiet", name)
        try:
            assert each_store.docker("run", "--rm", name, "again") == "hello again\n"
        finally:
            each_store.docker("image", "rm", name)


def test_a_registry_that_wants_a_login(
    containerd_engine: TestEngine,
    workplace: Workplace,
    with_engine: Callable[[TestEngine], Made],
    tmp_path: Path,
) -> None:
    with_engine(containerd_engine)
    machine = workplace.machine(containerd_engine.kind, containerd_engine)
    with run_registry(tmp_path, login="basic") as registry:
        name = f"{registry.host}/team/real:1"
        arguments = ("build", "stack/real.toml", "--locked", "--builder", "docker", "--tag", name, "--push")
        outcome = machine.run(*arguments)
        assert outcome.code == 9, outcome.err
        assert f"docker login {registry.host}" in outcome.err
        login = registry.docker_config(tmp_path / "login")
        (login / "cli-plugins").symlink_to(Path(machine.environment["DOCKER_CONFIG"]) / "cli-plugins")
        machine.environment["DOCKER_CONFIG"] = str(login)
        outcome = machine.run(*arguments)
        containerd_engine.docker("image", "rm", name)
        assert outcome.code == 0, outcome.err
        assert registry.password not in outcome.err + outcome.out
