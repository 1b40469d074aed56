"""What a deployment must know of the server that it starts: SGLang's own options, and inits. Pure.

Facts: SGLang 0.5.9, sglang/srt/server_args.py (options, defaults) and entrypoints/http_server.py (health).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

from imagebuilder.errors import Problem, StackInvalid
from imagebuilder.stack.model import Stack

ANYWHERE = ("0.0.0.0", "::")
HEALTH_GIVES_UP = 20
"""Seconds after which SGLang's /health itself answers that it is not well; it never takes less than 1."""
HEALTH_TIMEOUT = HEALTH_GIVES_UP + 5
"""Seconds that a probe waits: it must outlast the answer."""
DEEP_HEALTH = "/health_generate"
"""Generates a token always; /health can be told not to."""
LEADER_PORT = 20000
"""Where the ranks of a server on several nodes find each other."""
INITS = ("tini", "dumb-init", "docker-init", "catatonit", "s6-svscan")

_TENSOR = ("--tp", "--tp-size", "--tensor-parallel-size")
_PIPELINE = ("--pp", "--pp-size", "--pipeline-parallel-size")
_NODES = ("--nnodes", "--node-rank", "--dist-init-addr", "--nccl-init-addr")


def is_sglang(words: Sequence[str]) -> bool:
    """`python3 -m sglang.launch_server …`, or the newer `sglang serve …`."""
    return "sglang.launch_server" in words or (
        len(words) > 1 and PurePosixPath(words[0]).name == "sglang" and words[1] == "serve"
    )


def has_init(entrypoint: Sequence[str]) -> bool:
    """Whether the image starts with an init, which passes signals on and shows how the server ended.

    As process 1 a server without one ignores SIGTERM while it loads, and exits 0 when it crashes.
    """
    return bool(entrypoint) and PurePosixPath(entrypoint[0]).name in INITS


def option(words: Sequence[str], *names: str) -> str | None:
    """What an option is given, in either spelling, the last one counts; None: it is not there."""
    found = None
    for position, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in names:
            found = value if equals else "".join(words[position + 1 : position + 2])
    return found


def serving_command(
    stack: Stack, table: str, command: Sequence[str], *, port: int, metrics: bool = False
) -> tuple[str, ...]:
    """The words that serve on `port`, where others reach them; empty: the image's own, as they are.

    SGLang serves on the loopback address and port 30000 unless it is told otherwise: what is missing is
    added, what contradicts is a StackInvalid. Other servers' words stay as they are. table: the stack's.
    """
    words = tuple(command) or stack.image.command
    if not is_sglang(words):
        return tuple(command)
    problems = []
    host, own_port = option(words, "--host"), option(words, "--port")
    if host is not None and host not in ANYWHERE:
        problems.append(
            Problem(
                key=f"{table}.command",
                message=f"--host {host}: the server could not be reached from outside its container",
                hint="--host 0.0.0.0",
            )
        )
    if own_port is not None and own_port != str(port):
        problems.append(
            Problem(key=f"{table}.command", message=f"--port {own_port}, but {table}.port is {port}")
        )
    refuse(stack, problems)
    added: tuple[str, ...] = () if host is not None else ("--host", "0.0.0.0")
    added += () if own_port is not None else ("--port", str(port))
    added += ("--enable-metrics",) if metrics and "--enable-metrics" not in words else ()
    return (*words, *added) if command or added else ()


def across_nodes(stack: Stack, words: Sequence[str], table: str) -> tuple[str, ...]:
    """SGLang's options for several nodes, from the variables that a LeaderWorkerSet gives to each pod."""
    problems = []
    if not is_sglang(words):
        problems.append(
            Problem(
                key=f"{table}.command",
                message="how a server spans several nodes is only known of SGLang",
                hint='["python3", "-m", "sglang.launch_server", …], or nodes = 1',
            )
        )
    for name in _NODES:
        if option(words, name) is not None:
            problems.append(
                Problem(
                    key=f"{table}.command", message=f"{name} is set by the deployment", hint="leave it out"
                )
            )
    refuse(stack, problems)
    return (
        "--nnodes", "$(LWS_GROUP_SIZE)", "--node-rank", "$(LWS_WORKER_INDEX)",
        "--dist-init-addr", f"$(LWS_LEADER_ADDRESS):{LEADER_PORT}",
    )  # fmt: skip


def ranks(words: Sequence[str]) -> int:
    """GPUs that one SGLang server takes at least: tensor times pipeline parallelism."""
    sizes = (option(words, *_TENSOR), option(words, *_PIPELINE))
    count = 1
    for size in sizes:
        count *= int(size) if size and size.isdecimal() else 1
    return count


def refuse(stack: Stack, problems: Iterable[Problem]) -> None:
    """StackInvalid with all of them, if there are any."""
    if found := tuple(problems):
        raise StackInvalid(str(stack.path or stack.name), found)
