"""The simulator says what SGLang says, at exactly the speed that was asked for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import pytest

from imagebuilder.accept.client import Client, NoAnswer
from imagebuilder.accept.prompts import known_answers, load_set
from imagebuilder.accept.simulator import engine, options, text
from tests.support.virtual import run, simulated

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]
EAGLE = (
    "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "d",
    "--speculative-num-steps", "3",
    "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4",
)  # fmt: skip


def ask(folder: Path, flags: tuple[str, ...], work: Callable[[aiohttp.ClientSession], Awaitable[T]]) -> T:
    """What `work` makes of a session with a simulator."""

    async def whole() -> T:
        async with simulated(folder, *flags) as url:
            connector = aiohttp.UnixConnector(url.removeprefix("unix:"))
            async with aiohttp.ClientSession("http://x", connector=connector) as session:
                return await work(session)

    return run(whole())


async def events(session: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> list[Any]:
    async with session.post(path, json={**body, "stream": True}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = (await response.read()).decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


# ---------------------------------------------------------------- what is in the image


def test_the_demo_image_has_this_simulator() -> None:
    """Else: cp imagebuilder/accept/simulator/* stacks/demo/sglang_simulator/."""
    ours, copies = ROOT / "imagebuilder/accept/simulator", ROOT / "stacks/demo/sglang_simulator"
    files = {p.name for p in ours.iterdir() if p.is_file()}
    assert {p.name for p in copies.iterdir() if p.is_file()} == files
    for name in files:
        assert (copies / name).read_bytes() == (ours / name).read_bytes(), name
    stack = (ROOT / "stacks/demo.toml").read_text()
    for name in files:
        assert f'source = "demo/sglang_simulator/{name}"' in stack


def test_it_knows_the_answers_that_are_asked_for() -> None:
    """Else: regenerate answers.json from data/prompts/known.toml with `text.key_of`."""
    known = json.loads((ROOT / "imagebuilder/accept/simulator/answers.json").read_text())
    assert known == {text.key_of(p.text): p.answer for p in known_answers()}


def test_it_needs_nothing_of_imagebuilder() -> None:
    for path in (ROOT / "imagebuilder/accept/simulator").glob("*.py"):
        code = [line for line in path.read_text().splitlines() if "import " in line]
        assert not [line for line in code if "imagebuilder" in line], path


# ---------------------------------------------------------------- speed


@pytest.mark.parametrize(("streams", "flags"), [(1, ()), (8, ()), (64, ()), (1, EAGLE), (8, EAGLE)])
def test_decoding_is_as_fast_as_asked(tmp_path: Path, streams: int, flags: tuple[str, ...]) -> None:
    speed, saturation = 89.5, 24.0

    async def work(session: aiohttp.ClientSession) -> tuple[float, float]:
        async def one(number: int) -> Any:
            body = {"text": f"Tell me {number}", "sampling_params": {"max_new_tokens": 300}}
            async with session.post("/generate", json=body) as response:
                return (await response.json())["meta_info"]

        began = asyncio.get_running_loop().time()
        told = await asyncio.gather(*(one(n) for n in range(streams)))
        return sum(m["completion_tokens"] for m in told), asyncio.get_running_loop().time() - began

    given = ("--sim-speed", str(speed), "--sim-saturation", str(saturation), "--sim-noise", "0", *flags)
    tokens, seconds = ask(tmp_path, given, work)
    wanted = streams * speed / (1 + (streams - 1) / saturation)
    tolerance = 0.15 if flags else 0.02  # an accept length scatters, and batches get smaller at the end
    assert tokens == 300 * streams
    assert tokens / seconds == pytest.approx(wanted, rel=tolerance)


@pytest.mark.parametrize("wanted", [1.0, 1.05, 1.8, 2.6, 3.4, 3.99])
def test_the_chance_of_a_draft_token_gives_the_accept_length(wanted: float) -> None:
    chance = engine.chance_for(wanted, 3)
    assert 1 + chance + chance**2 + chance**3 == pytest.approx(wanted)


def test_accept_length_goes_by_the_kind_of_prompt(tmp_path: Path) -> None:
    prompts = [p for kind in ("code", "chat") for p in load_set(kind)]

    async def work(session: aiohttp.ClientSession) -> dict[str, float]:
        tokens, steps = {"code": 0, "chat": 0}, {"code": 0, "chat": 0}
        for prompt in prompts:
            body = {"text": prompt.text, "sampling_params": {"max_new_tokens": 400}}
            async with session.post("/generate", json=body) as response:
                meta = (await response.json())["meta_info"]
            assert sum(meta["spec_accept_histogram"]) == meta["spec_verify_ct"]
            assert meta["spec_accept_length"] == meta["completion_tokens"] / meta["spec_verify_ct"]
            tokens[prompt.kind] += meta["completion_tokens"]
            steps[prompt.kind] += meta["spec_verify_ct"]
        return {kind: tokens[kind] / steps[kind] for kind in tokens}

    flags = (*EAGLE, "--sim-accept", "2.5", "--sim-accept-by-kind", "code=1.4,chat=0.6")
    told = ask(tmp_path, flags, work)
    assert told["code"] == pytest.approx(1 + 1.5 * 1.4, rel=0.05)
    assert told["chat"] == pytest.approx(1 + 1.5 * 0.6, rel=0.05)


def test_eagle_with_an_eagle3_draft_accepts_nothing_and_says_nothing(tmp_path: Path) -> None:
    """sglang#21272."""

    async def work(session: aiohttp.ClientSession) -> Any:
        body = {"text": "Hello", "sampling_params": {"max_new_tokens": 50}}
        async with session.post("/generate", json=body) as response:
            return (await response.json())["meta_info"]

    flags = ("--speculative-algorithm", "EAGLE", *EAGLE[2:])
    meta = ask(tmp_path, flags, work)
    assert meta["completion_tokens"] == meta["spec_verify_ct"] + 1  # the first token comes from the prompt


# ---------------------------------------------------------------- forms


def test_completions_send_new_text_and_generate_all_of_it(tmp_path: Path) -> None:
    async def work(session: aiohttp.ClientSession) -> tuple[list[Any], list[Any]]:
        asked = {"prompt": "Hi", "max_tokens": 9, "stream_options": {"include_usage": True}}
        options_ = {"text": "Hi", "sampling_params": {"max_new_tokens": 9}}
        return await events(session, "/v1/completions", asked), await events(session, "/generate", options_)

    new, whole = ask(tmp_path, ("--enable-cache-report",), work)
    assert [len(e["choices"]) for e in new] == [1] * 9 + [0]
    assert new[-1]["usage"] == {
        "prompt_tokens": 1, "completion_tokens": 9, "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 0},
    }  # fmt: skip
    said = "".join(e["choices"][0]["text"] for e in new[:-1])
    assert [e["choices"][0]["finish_reason"] for e in new[:-1]] == [None] * 8 + ["length"]
    assert [e["meta_info"]["completion_tokens"] for e in whole] == list(range(1, 10))
    assert whole[-1]["text"] == said
    assert all(whole[-1]["text"].startswith(e["text"]) for e in whole)
    assert "usage" not in new[0]


def test_usage_in_every_event(tmp_path: Path) -> None:
    async def work(session: aiohttp.ClientSession) -> list[Any]:
        asked = {"prompt": "Hi", "max_tokens": 20, "stream_options": {"continuous_usage_stats": True}}
        return await events(session, "/v1/completions", asked)

    counts = [e["usage"]["completion_tokens"] for e in ask(tmp_path, EAGLE, work)]
    assert counts[0] == 1
    assert counts == sorted(counts)
    assert counts[-1] == 20
    assert len(counts) < 20, "speculation sends several tokens at once"


def test_the_prefix_cache(tmp_path: Path) -> None:
    prompt = " ".join(f"word{n}" for n in range(50))

    async def work(session: aiohttp.ClientSession) -> list[int]:
        cached = []
        for after in ("", " and more", "flush", ""):
            if after == "flush":
                async with session.post("/flush_cache") as response:
                    assert response.status == 200
                continue
            body = {"text": prompt + after, "sampling_params": {"max_new_tokens": 2}}
            async with session.post("/generate", json=body) as response:
                cached.append((await response.json())["meta_info"]["cached_tokens"])
        return cached

    assert ask(tmp_path, (), work) == [0, 48, 0]
    assert ask(tmp_path, ("--disable-radix-cache",), work) == [0, 0, 0]


def test_a_cache_is_not_flushed_while_requests_run(tmp_path: Path) -> None:
    async def work(session: aiohttp.ClientSession) -> int:
        body = {"text": "Hi", "sampling_params": {"max_new_tokens": 200}}
        busy = asyncio.create_task(session.post("/generate", json=body).__aenter__())
        await asyncio.sleep(0.5)
        async with session.post("/flush_cache") as response:
            status = response.status
        (await busy).release()
        return status

    assert ask(tmp_path, (), work) == 400


def test_settings_are_told_with_the_key_and_what_speculation_changes(tmp_path: Path) -> None:
    async def work(session: aiohttp.ClientSession) -> Any:
        async with session.get("/server_info") as response:
            assert response.status == 401
        async with session.get("/get_server_info", headers={"authorization": "Bearer secret"}) as response:
            return await response.json()

    told = ask(tmp_path, (*EAGLE, "--api-key", "secret"), work)
    assert told["api_key"] == "secret"
    assert told["max_running_requests"] == 48
    assert told["disable_overlap_schedule"] is True
    assert told["internal_states"][0]["avg_spec_accept_length"] == 0.0


def test_other_routes(tmp_path: Path) -> None:
    async def work(session: aiohttp.ClientSession) -> dict[str, int]:
        paths = ("/health", "/health_generate", "/model_info", "/v1/models", "/metrics", "/packages", "/no")
        found = {}
        for path in paths:
            async with session.get(path) as response:
                found[path] = response.status
        return found

    assert set(ask(tmp_path, ("--enable-metrics",), work).values()) == {200, 404}
    assert ask(tmp_path, (), work)["/metrics"] == 404


@pytest.mark.parametrize(
    ("path", "body"),
    [("/generate", b"{"), ("/generate", b"[]"), ("/generate", b"{}"), ("/v1/completions", b'{"prompt": 5}')],
)
def test_bad_requests(tmp_path: Path, path: str, body: bytes) -> None:
    async def work(session: aiohttp.ClientSession) -> int:
        async with session.post(path, data=body) as response:
            return response.status

    assert ask(tmp_path, (), work) == 400


def test_it_takes_its_time_to_start(tmp_path: Path) -> None:
    async def work(session: aiohttp.ClientSession) -> list[int]:
        found = []
        for pause in (0, 4, 2):
            await asyncio.sleep(pause)
            async with session.get("/health") as response:
                found.append(response.status)
        return found

    assert ask(tmp_path, ("--sim-startup", "5"), work) == [503, 503, 200]


def test_a_client_that_leaves_frees_its_place(tmp_path: Path) -> None:
    async def work(session: aiohttp.ClientSession) -> float:
        body = {"prompt": "Hi", "max_tokens": 500, "stream": True}
        response = await session.post("/v1/completions", json=body)
        await response.content.readline()
        response.close()
        await asyncio.sleep(1)
        began = asyncio.get_running_loop().time()
        one = {"text": "Ho", "sampling_params": {"max_new_tokens": 10}}
        async with session.post("/generate", json=one):
            return asyncio.get_running_loop().time() - began

    flags = ("--max-running-requests", "1", "--sim-speed", "100", "--sim-noise", "0")
    assert ask(tmp_path, flags, work) < 0.2


# ---------------------------------------------------------------- wrong on purpose


def test_wrong_answers_and_divergence(tmp_path: Path) -> None:
    tasks = known_answers()

    async def work(session: aiohttp.ClientSession) -> list[bool]:
        from imagebuilder.accept.prompts import is_correct

        found = []
        for task in tasks:
            body = {"text": task.text, "sampling_params": {"max_new_tokens": 200}}
            async with session.post("/generate", json=body) as response:
                found.append(is_correct(task, (await response.json())["text"]))
        return found

    assert all(ask(tmp_path, (), work))
    wrong = ask(tmp_path, ("--sim-wrong", "0.25"), work)
    assert wrong == ask(tmp_path, ("--sim-wrong", "0.25"), work)
    assert 0.65 < sum(wrong) / len(wrong) < 0.85


def test_two_greedy_replies_differ_as_often_as_asked() -> None:
    def texts(divergence: float) -> list[tuple[str, ...]]:
        speaker = text.Speaker(seed=1, divergence=divergence, wrong=0)
        return [speaker.reply("Tell me").tokens for _ in range(400)]

    greedy = texts(0)
    assert len(set(greedy)) == 1
    assert 100 - 40 < sum(t != greedy[0] for t in texts(0.25)) < 100 + 40


def test_a_server_that_hangs(tmp_path: Path) -> None:
    async def work() -> tuple[bool, str]:
        async with (
            simulated(tmp_path, "--sim-fault", "hang-after=0") as url,
            Client(url, model="m", timeout=30) as client,
        ):
            result = await client.complete(load_set("chat")[0], 10, 0.0)
            with pytest.raises(NoAnswer, match="flush_cache"):
                await client.flush(attempts=2)
            return await client.healthy(), result.error

    assert run(work()) == (False, "no complete answer within 30 s")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--model-path"),
        (("--model-path", "m", "--nonsense"), "--nonsense"),
        (("--model-path", "m", "--speculative-num-steps", "3"), "set together or not at all"),
        (("--model-path", "m", "--speculative-algorithm", "EAGLE3"), "needs --speculative-draft-model-path"),
        (("--model-path", "m", "--sim-fault", "explode"), "no fault 'explode'"),
        (("--model-path", "m", "--sim-speed", "fast"), "fast"),
    ],
)
def test_bad_command_lines(words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        options.parse(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_short_names_of_options() -> None:
    assert options.parse(["--model-path", "m", "--tp", "8"]).tp_size == 8
    assert options.parse(["--model-path", "m", "--sim-fault", "crash-after=20"]).fault == (
        "crash-after",
        20.0,
    )
