"""Pulling and pushing against a registry in this process that can misbehave: real HTTP, real sockets."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from imagebuilder.cache import Cache
from imagebuilder.errors import ArtefactUnusable, ImagebuilderError, PushFailed, UsageProblem
from imagebuilder.oci.credentials import Credential, DockerCredentials
from imagebuilder.oci.descriptor import DOCKER_INDEX, OCI_INDEX, OCI_LAYER_GZIP, OCI_MANIFEST, Descriptor
from imagebuilder.oci.image import Image
from imagebuilder.oci.push import push_image
from imagebuilder.oci.registry import Registry
from imagebuilder.oci.upload import FileBody
from imagebuilder.progress import Silent, Task
from imagebuilder.settings import Settings
from imagebuilder.values import Digest, is_loopback
from tests.support.fake_registry import Answer, FakeRegistry, Handler, cut, drop, keep, status

CANARY = "s3cr3t-canary-7f"
DATA = bytes(range(256)) * 4096  # 1 MiB
ADVICE = re.compile(r"next: {3}\S.*\S")


@pytest.fixture
def connect(settings: Settings, pauses: list[float]) -> Callable[..., Registry]:
    def connect(fake: FakeRegistry, login: Credential | None = None, **changes: object) -> Registry:
        class Logins(DockerCredentials):
            def find(self, registry: str) -> Credential | None:
                return login if registry == fake.host else None

        changed = replace(settings, **changes)  # type: ignore[arg-type]
        return Registry(fake.host, changed, Logins(None), pause=pauses.append)

    return connect


def blob_of(data: bytes) -> Descriptor:
    return Descriptor.of(OCI_LAYER_GZIP, data)


# ---------------------------------------------------------------- pulling


def test_a_blob_is_pulled_once(fake: FakeRegistry, connect: Callable[..., Registry], cache: Cache) -> None:
    fake.put_blob("a/b", DATA)
    seen: list[int] = []
    path = connect(fake).blob("a/b", blob_of(DATA), cache, advance=seen.append)
    assert path.read_bytes() == DATA and sum(seen) == len(DATA)
    assert connect(fake).blob("a/b", blob_of(DATA), cache) == path
    assert len(fake.requests("GET /v2/a/b/blobs/")) == 1


@pytest.mark.parametrize("after", [0, 1, 100_000, len(DATA) - 1])
def test_a_broken_download_goes_on_where_it_broke(
    after: int, fake: FakeRegistry, connect: Callable[..., Registry], cache: Cache
) -> None:
    fake.put_blob("a", DATA)
    fake.on("GET /v2/a/blobs/", cut(DATA, after), times=1)
    seen: list[int] = []
    assert connect(fake).blob("a", blob_of(DATA), cache, advance=seen.append).read_bytes() == DATA
    ranges = [s.headers.get("range") for s in fake.requests("GET /v2/a/blobs/")]
    assert ranges == [None, f"bytes={after}-{len(DATA) - 1}" if after else None]
    assert sum(seen) == len(DATA)


def test_a_download_that_gets_further_each_time_is_not_given_up(
    fake: FakeRegistry, connect: Callable[..., Registry], cache: Cache
) -> None:
    fake.on("GET /v2/a/blobs/", cut(DATA, len(DATA) // 20))
    assert connect(fake).blob("a", blob_of(DATA), cache).read_bytes() == DATA
    assert len(fake.requests("GET")) >= 20


def test_a_registry_without_ranges_starts_again(
    fake: FakeRegistry, connect: Callable[..., Registry], cache: Cache
) -> None:
    fake.on("GET /v2/a/blobs/", cut(DATA, 5000), times=1)
    fake.on("GET /v2/a/blobs/", status(200, DATA))
    assert connect(fake).blob("a", blob_of(DATA), cache).read_bytes() == DATA


def test_a_registry_that_gives_no_parts_starts_again(
    fake: FakeRegistry, connect: Callable[..., Registry], cache: Cache
) -> None:
    """It says 416 to a range, as some proxies and go-containerregistry do to one that they do not read."""
    fake.put_blob("a", DATA)
    fake.on("GET /v2/a/blobs/", cut(DATA, 5000), times=1)
    fake.on("GET /v2/a/blobs/", status(416), times=1)
    assert connect(fake).blob("a", blob_of(DATA), cache).read_bytes() == DATA


def test_another_range_than_asked_for_is_not_used(
    fake: FakeRegistry, connect: Callable[..., Registry], cache: Cache
) -> None:
    fake.put_blob("a", DATA)
    fake.on("GET /v2/a/blobs/", cut(DATA, 5000), times=1)
    wrong = status(206, DATA[7:], Content_Range=f"bytes 7-{len(DATA) - 1}/{len(DATA)}")
    fake.on("GET /v2/a/blobs/", wrong, times=1)
    assert connect(fake).blob("a", blob_of(DATA), cache).read_bytes() == DATA


def test_what_an_earlier_run_left_is_used_but_not_trusted(
    fake: FakeRegistry, connect: Callable[..., Registry], cache: Cache
) -> None:
    digest = fake.put_blob("a", DATA)
    with pytest.raises(RuntimeError), cache.put_artefact(digest) as incoming:
        assert incoming
        incoming.write(b"wrong" + DATA[5:1000])
        raise RuntimeError("killed")
    assert connect(fake).blob("a", blob_of(DATA), cache).read_bytes() == DATA
    assert [s.headers.get("range") for s in fake.requests("GET /v2/a/blobs/")] == [
        f"bytes=1000-{len(DATA) - 1}",
        None,
    ]


def test_a_size_that_lies_about_a_cached_file(
    fake: FakeRegistry, connect: Callable[..., Registry], cache: Cache
) -> None:
    fake.put_blob("a", DATA)
    registry = connect(fake)
    registry.blob("a", blob_of(DATA), cache)
    with pytest.raises(ArtefactUnusable, match="answers wrongly"):
        registry.blob("a", replace(blob_of(DATA), size=5), cache)


def test_progress_counts_every_byte_once(
    fake: FakeRegistry, connect: Callable[..., Registry], cache: Cache
) -> None:
    fake.on("GET /v2/a/blobs/", cut(DATA, 5000), times=1)
    fake.on("GET /v2/a/blobs/", status(200, DATA))
    seen: list[int] = []
    connect(fake).blob("a", blob_of(DATA), cache, advance=seen.append)
    assert sum(seen) == len(DATA)


LIES: dict[str, tuple[Answer, str]] = {
    "other bytes": (status(200, bytes(len(DATA))), "something else|is not"),
    "more bytes": (status(200, DATA + b"x"), "answers wrongly"),
    "endless": (status(200, DATA * 3), "answers wrongly"),
    "fewer bytes, again and again": (status(200, DATA[:-1], Connection="close"), "no connection|broke"),
    "nothing": (status(200, b""), "no connection|broke"),
    "404": (status(404), "does not give blob"),
    "401 without a way": (status(401), "asks for a login"),
    "403": (status(403, b'{"errors":[{"code":"DENIED","message":"no"}]}'), "HTTP 403, DENIED: no"),
    "429": (status(429, Retry_After="1"), "HTTP 429"),
    "500": (status(500), "HTTP 500"),
    "drop": (drop(), "no connection|broke"),
    "drop midway": (cut(DATA, 0), "no connection|broke"),
    "redirect in a circle": (status(307, Location="/v2/a/blobs/again"), "redirects"),
    "redirect to a file": (status(307, Location="file:///etc/passwd"), "not http or https|is no server"),
    "redirect to nonsense": (status(307, Location="http://[::1"), "not http or https"),
    "redirect without TLS": (status(307, Location="http://storage.example/x"), "without TLS"),
}


@pytest.mark.parametrize("case", LIES, ids=str)
def test_a_blob_that_cannot_be_had(
    case: str, fake: FakeRegistry, connect: Callable[..., Registry], cache: Cache
) -> None:
    answer, message = LIES[case]
    fake.on("GET /v2/a/blobs/", answer)
    with pytest.raises(ArtefactUnusable, match=message):
        connect(fake).blob("a", blob_of(DATA), cache)
    assert cache.artefact(Digest.of(DATA)) is None
    assert len(fake.seen) < 40


@pytest.mark.parametrize("code", [401, 403, 404, 413, 429, 500, 502, 503])
def test_every_status_has_advice(
    code: int, fake: FakeRegistry, connect: Callable[..., Registry], cache: Cache
) -> None:
    fake.on("(GET|HEAD|POST) /v2/a/", status(code, WWW_Authenticate="Basic"))
    registry = connect(fake)
    acts: tuple[tuple[Callable[[], object], type[ImagebuilderError]], ...] = (
        (lambda: registry.manifest("a", "latest"), ArtefactUnusable),
        (lambda: registry.push_blob("a", Digest.of(b"x"), b"x"), PushFailed),
    )
    for act, kind in acts:
        if code == 404 and kind is PushFailed:
            continue  # HEAD 404 means that the blob is to be pushed; POST 404 is tested below
        with pytest.raises(kind) as caught:
            act()
        assert ADVICE.search(str(caught.value)), str(caught.value)
        assert fake.host in str(caught.value)


# ---------------------------------------------------------------- manifests


def test_manifests_by_tag_and_digest(
    fake: FakeRegistry, connect: Callable[..., Registry], image: Image
) -> None:
    fake.put_manifest("a/b", image.manifest_bytes, OCI_MANIFEST, "v1")
    for reference in ("v1", image.digest):
        document = connect(fake).manifest("a/b", reference)
        assert (document.data, document.digest) == (image.manifest_bytes, image.digest)
        assert document.media_type == OCI_MANIFEST
    accepted = fake.requests("GET /v2/a/b/manifests/v1")[0].headers["accept"]
    assert all(kind in accepted for kind in (OCI_INDEX, DOCKER_INDEX, OCI_MANIFEST))


BAD_MANIFESTS: dict[str, tuple[Answer, str]] = {
    "other bytes": (status(200, b"{}"), "a manifest that is sha256:44136fa3"),
    "huge": (status(200, b" " * (5 << 20)), "a larger manifest"),
    "schema 1": (status(200, b'{"schemaVersion": 1}'), "schema 1"),
    "html": (status(200, b"<html>login"), "not valid JSON"),
    "lying header": (
        status(200, b'{"schemaVersion":2}', Docker_Content_Digest="sha256:0"),
        "a manifest that is",
    ),
    "cut": (cut(DATA, 10), "no connection|broke"),
}


@pytest.mark.parametrize("case", BAD_MANIFESTS, ids=str)
def test_bad_manifests(case: str, fake: FakeRegistry, connect: Callable[..., Registry], image: Image) -> None:
    answer, message = BAD_MANIFESTS[case]
    fake.on("GET /v2/a/manifests/", answer)
    reference = image.digest if case == "other bytes" else "v1"
    with pytest.raises(ArtefactUnusable, match=message):
        connect(fake).manifest("a", reference)


def test_tags_come_in_pages(fake: FakeRegistry, connect: Callable[..., Registry]) -> None:
    fake.on(
        r"GET /v2/a/tags/list\?n=1000$",
        status(200, b'{"tags":["1","2"]}', Link='</v2/a/tags/list?last=2>; rel="next"'),
    )
    fake.on(r"GET /v2/a/tags/list\?last=2$", status(200, b'{"tags":["3"]}'))
    assert connect(fake).tags("a") == ("1", "2", "3")


@pytest.mark.parametrize(
    ("body", "link", "message"),
    [
        (b'{"tags":["1"]}', '<https://evil.example/v2/a/tags/list>; rel="next"', "on another host"),
        (b'{"tags":"x"}', "", "wanted a list"),
        (b"[]", "", "not a JSON object"),
    ],
)
def test_bad_tags(
    body: bytes, link: str, message: str, fake: FakeRegistry, connect: Callable[..., Registry]
) -> None:
    fake.on("GET /v2/a/tags", status(200, body, Link=link))
    with pytest.raises(ArtefactUnusable, match=message):
        connect(fake).tags("a")


# ---------------------------------------------------------------- logins go to the registry only


def need_basic(handler: Handler) -> None:
    wanted = "Basic " + base64.b64encode(f"anna:{CANARY}".encode()).decode()
    if handler.headers.get("Authorization") == wanted:
        handler.serve()
    else:
        handler.body()
        handler.reply(401, WWW_Authenticate='Basic realm="x"')


LOGIN = Credential(username="anna", secret=CANARY)


def test_a_login_is_sent_when_it_is_asked_for(
    fake: FakeRegistry, connect: Callable[..., Registry], cache: Cache
) -> None:
    fake.put_blob("a", DATA)
    fake.on("GET /v2/a/", need_basic)
    assert connect(fake, LOGIN).blob("a", blob_of(DATA), cache).read_bytes() == DATA
    assert [("authorization" in s.headers) for s in fake.requests("GET /v2/a")] == [False, True]


def test_a_login_does_not_follow_a_redirect_to_another_host(
    fake: FakeRegistry, connect: Callable[..., Registry], cache: Cache
) -> None:
    with FakeRegistry() as storage:
        digest = storage.put_blob("bucket", DATA)
        fake.put_manifest("a", b"{}", OCI_MANIFEST, "x")
        target = f"{storage.url}/v2/bucket/blobs/{digest}?X-Signature={CANARY}"

        def redirect(handler: Handler) -> None:
            if "Authorization" in handler.headers:
                handler.reply(307, Location=target)
            else:
                handler.reply(401, WWW_Authenticate='Basic realm="x"')

        fake.on("GET /v2/a/blobs", redirect)
        assert connect(fake, LOGIN).blob("a", blob_of(DATA), cache).read_bytes() == DATA
        (seen,) = storage.seen
        assert "authorization" not in seen.headers and "cookie" not in seen.headers


def test_a_storage_that_asks_for_a_login_gets_none(
    fake: FakeRegistry, connect: Callable[..., Registry], cache: Cache
) -> None:
    with FakeRegistry() as storage:
        storage.on("GET", status(401, WWW_Authenticate=f'Bearer realm="{storage.url}/token"'))
        fake.on("GET /v2/a/blobs", status(302, Location=f"{storage.url}/x?sig={CANARY}"))
        with pytest.raises(ArtefactUnusable, match="HTTP 401") as caught:
            connect(fake, LOGIN).blob("a", blob_of(DATA), cache)
        assert CANARY not in str(caught.value)
        assert not [s for s in storage.seen if "authorization" in s.headers or "token" in s.path]


def test_an_upload_to_another_host_gets_no_login(
    fake: FakeRegistry, connect: Callable[..., Registry]
) -> None:
    with FakeRegistry() as other:
        other.on("PUT /upload", status(201))
        fake.on("HEAD /v2/a/", need_basic)

        def begin(handler: Handler) -> None:
            handler.body()
            handler.reply(202, Location=f"{other.url}/upload")

        fake.on("POST /v2/a/", begin)
        assert connect(fake, LOGIN).push_blob("a", Digest.of(b"x"), b"x") == "pushed"
        assert [s for s in fake.seen if "authorization" in s.headers]
        assert "authorization" not in other.seen[0].headers


class TokenServer:
    """Rules for a registry and a token server in one; tokens are numbered, and refused when told so."""

    def __init__(self, fake: FakeRegistry) -> None:
        self.fake = fake
        self.given: list[str] = []
        self.good = {f"token-{CANARY}-{n}" for n in range(1, 100)}
        fake.on("GET /token", self._token)
        fake.on("(GET|HEAD|POST|PUT) /v2/a/", self._guard)

    def _token(self, handler: Handler) -> None:
        self.given.append(handler.path)
        token = f"token-{CANARY}-{len(self.given)}"
        handler.reply(200, json.dumps({"token": token, "expires_in": 300}).encode())

    def _guard(self, handler: Handler) -> None:
        if handler.headers.get("Authorization", "").removeprefix("Bearer ") in self.good:
            handler.serve()
            return
        handler.body()
        realm = f'Bearer realm="{self.fake.url}/token",service="s",scope="repository:a:pull,push"'
        handler.reply(401, WWW_Authenticate=realm)


def test_a_token_that_ran_out_is_fetched_again_in_the_middle_of_a_push(
    fake: FakeRegistry, connect: Callable[..., Registry], tmp_path: Path
) -> None:
    server = TokenServer(fake)
    (tmp_path / "blob").write_bytes(DATA)

    def expire(handler: Handler) -> None:  # between POST and PUT, as in a long upload
        server.good.discard(f"token-{CANARY}-1")
        server._guard(handler)

    fake.rules.insert(0, fake.rules.pop())
    fake.on("", expire)
    rule = fake.rules.pop()
    rule.pattern, rule.times = re.compile("PUT /v2/a/"), 1
    fake.rules.insert(0, rule)
    body = FileBody(tmp_path / "blob", len(DATA))
    assert connect(fake, LOGIN).push_blob("a", Digest.of(DATA), body) == "pushed"
    assert len(server.given) == 2
    assert fake.blobs[("a", Digest.of(DATA).text)] == DATA


def test_a_mount_asks_for_both_scopes(fake: FakeRegistry, connect: Callable[..., Registry]) -> None:
    server = TokenServer(fake)
    fake.put_blob("base", DATA)
    assert connect(fake, LOGIN).push_blob("a", Digest.of(DATA), DATA, mount_from=["base"]) == "mounted"
    assert any(
        "scope=repository%3Aa%3Apull%2Cpush" in path and "scope=repository%3Abase%3Apull" in path
        for path in server.given
    )


def test_no_secret_is_ever_shown(
    fake: FakeRegistry, connect: Callable[..., Registry], cache: Cache, capfd: pytest.CaptureFixture[str]
) -> None:
    """A registry that echoes every secret it knows in its errors, in every way a call can end."""
    shown: list[str] = []
    server = TokenServer(fake)
    login = Credential(username="anna", secret=CANARY)

    def echo(handler: Handler) -> None:
        known = handler.headers.get("Authorization", "")
        said = f"{known} {known and CANARY} https://x:{CANARY}@h/?t={CANARY}"
        handler.body()
        body = json.dumps({"errors": [{"code": "X", "message": said}]}).encode()
        handler.reply(codes[0], body, Location=f"/x?sig={CANARY}")

    def do(registry: Registry, number: int) -> object:
        if number == 0:
            return registry.manifest("a", "x")
        if number == 1:
            return registry.blob("a", blob_of(DATA), cache)
        if number == 2:
            return registry.push_blob("a", Digest.of(b"x"), b"x")
        return registry.push_manifest("a", b"{}", OCI_MANIFEST)

    for code in (400, 403, 404, 500):
        codes = [code]
        for method in ("GET", "HEAD", "POST", "PUT"):
            server.good = {f"token-{CANARY}-{n}" for n in range(1, 1000)}
            fake.rules = [r for r in fake.rules if r.answer is not echo]
            fake.on(f"{method} /v2/a/.*", echo)
            fake.rules.insert(0, fake.rules.pop())
            registry = connect(fake, login)
            for number in range(4):
                try:
                    do(registry, number)
                except ImagebuilderError as exc:
                    shown += [str(exc), repr(exc), repr(vars(exc))]
            shown += [repr(registry), repr(vars(registry))]
    assert len(shown) > 80
    captured = capfd.readouterr()
    everything = "\n".join([*shown, captured.out, captured.err])
    assert CANARY not in everything, re.findall(f".{{0,200}}{CANARY}", everything)[:3]
    assert base64.b64encode(f"anna:{CANARY}".encode()).decode() not in everything


# ---------------------------------------------------------------- pushing


def test_a_blob_is_pushed_in_one_request(
    fake: FakeRegistry, connect: Callable[..., Registry], tmp_path: Path
) -> None:
    (tmp_path / "blob").write_bytes(DATA)
    seen: list[int] = []
    body = FileBody(tmp_path / "blob", len(DATA), seen.append)
    assert connect(fake).push_blob("a", Digest.of(DATA), body) == "pushed"
    (put,) = fake.requests("PUT")
    assert put.headers["content-length"] == str(len(DATA))
    assert "transfer-encoding" not in put.headers
    assert sum(seen) == len(DATA)
    assert connect(fake).push_blob("a", Digest.of(DATA), body) == "exists"


def test_a_blob_behind_a_redirect_is_there(fake: FakeRegistry, connect: Callable[..., Registry]) -> None:
    """Storage addresses are often signed for GET only, so HEAD is not sent there."""
    fake.on("HEAD /v2/a/blobs/", status(307, Location="https://storage.example/x?X-Signature=1"))
    assert connect(fake).push_blob("a", Digest.of(b"x"), b"x") == "exists"


def test_a_relative_address_for_the_upload(fake: FakeRegistry, connect: Callable[..., Registry]) -> None:
    fake.absolute = False
    assert connect(fake).push_blob("a", Digest.of(b""), b"") == "pushed"
    assert "_state=opaque&digest=sha256:" in fake.requests("PUT")[0].path


BREAKS: dict[str, Answer] = {
    "drop at once": drop(),
    "drop midway": drop(500_000),
    "drop at the end": drop(len(DATA)),
    "500": status(500),
    "502": status(502),
    "503": status(503, Retry_After="7"),
    "429": status(429),
}


@pytest.mark.parametrize("case", BREAKS, ids=str)
@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_a_broken_upload_begins_again(
    method: str, case: str, fake: FakeRegistry, connect: Callable[..., Registry], tmp_path: Path
) -> None:
    (tmp_path / "blob").write_bytes(DATA)
    fake.on(f"{method} /v2/a/blobs/", BREAKS[case], times=2)
    seen: list[int] = []
    body = FileBody(tmp_path / "blob", len(DATA), seen.append)
    assert connect(fake).push_blob("a", Digest.of(DATA), body) == "pushed"
    assert fake.blobs[("a", Digest.of(DATA).text)] == DATA
    assert len(fake.requests("POST")) == 3
    assert sum(seen) == len(DATA)


def parts_pushed(fake: FakeRegistry, connect: Callable[..., Registry], folder: Path) -> list[str]:
    """Push DATA as a file; the Content-Range of each PUT. Progress must end at the total."""
    (folder / "blob").write_bytes(DATA)
    seen: list[int] = []
    body = FileBody(folder / "blob", len(DATA), seen.append)
    assert connect(fake).push_blob("a", Digest.of(DATA), body) == "pushed"
    assert fake.blobs[("a", Digest.of(DATA).text)] == DATA
    assert sum(seen) == len(DATA)
    return [put.headers.get("content-range", "") for put in fake.requests("PUT")]


def test_an_upload_goes_on_where_the_registry_kept_it(
    fake: FakeRegistry, connect: Callable[..., Registry], tmp_path: Path
) -> None:
    """Broken twice, with what came before kept each time."""
    fake.on("PUT /v2/a/blobs/", keep(300_000), times=2)
    end = len(DATA) - 1
    assert parts_pushed(fake, connect, tmp_path) == ["", f"300000-{end}", f"600000-{end}"]
    assert len(fake.requests("POST")) == 1


def finish(handler: Handler) -> None:
    (kept,) = handler.fake.kept.values()
    handler.fake.put_blob("a", kept)
    handler.reply(201)


def test_an_upload_of_which_all_arrived_is_only_finished(
    fake: FakeRegistry, connect: Callable[..., Registry], tmp_path: Path
) -> None:
    fake.on("PUT /v2/a/blobs/", keep(len(DATA)), times=1)
    fake.on("PUT /v2/a/blobs/", finish, times=1)
    (tmp_path / "blob").write_bytes(DATA)
    body = FileBody(tmp_path / "blob", len(DATA))
    assert connect(fake).push_blob("a", Digest.of(DATA), body) == "pushed"
    assert [put.headers["content-length"] for put in fake.requests("PUT")] == [str(len(DATA)), "0"]


@pytest.mark.parametrize(
    "case", ["kept nothing", "kept one byte", "takes no rest", "forgot", "says too much"]
)
def test_an_upload_that_cannot_go_on_begins_again(
    case: str, fake: FakeRegistry, connect: Callable[..., Registry], tmp_path: Path
) -> None:
    amount = {"kept nothing": 0, "kept one byte": 1}.get(case, 300_000)
    fake.on("PUT /v2/a/blobs/", keep(amount), times=1)
    fake.goes_on = case != "takes no rest"
    if case == "forgot":
        fake.on("GET /v2/a/blobs/uploads/", status(404))
    if case == "says too much":
        fake.on("GET /v2/a/blobs/uploads/", status(204, Range=f"0-{len(DATA)}"))
    parts = parts_pushed(fake, connect, tmp_path)
    assert parts == ["", *([f"300000-{len(DATA) - 1}"] if case == "takes no rest" else []), ""]
    assert len(fake.requests("POST")) == 2


def test_the_pause_is_what_the_registry_asks_for(
    fake: FakeRegistry, connect: Callable[..., Registry], pauses: list[float]
) -> None:
    fake.on("PUT /v2/a/blobs/", status(503, Retry_After="7"), times=1)
    fake.on("PUT /v2/a/blobs/", status(429, Retry_After="7000"), times=1)
    fake.on("PUT /v2/a/blobs/", status(500), times=1)
    assert connect(fake).push_blob("a", Digest.of(DATA), DATA) == "pushed"
    assert pauses[:2] == [7.0, 60.0] and 0 < pauses[2] <= 30


def test_a_blob_that_arrived_although_the_answer_was_lost_is_not_sent_again(
    fake: FakeRegistry, connect: Callable[..., Registry]
) -> None:
    def store_and_drop(handler: Handler) -> None:
        fake.put_blob("a", handler.body())
        handler.drop()

    fake.on("PUT /v2/a/blobs/", store_and_drop, times=1)
    assert connect(fake).push_blob("a", Digest.of(DATA), DATA) == "exists"
    assert len(fake.requests("PUT")) == 1


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT"])
def test_an_upload_that_always_breaks_is_given_up(
    method: str, fake: FakeRegistry, connect: Callable[..., Registry]
) -> None:
    fake.on(f"{method} /v2/a/", drop())
    with pytest.raises(PushFailed, match="no connection to") as caught:
        connect(fake).push_blob("a", Digest.of(DATA), DATA)
    assert ADVICE.search(str(caught.value))
    assert len(fake.seen) < 40


REFUSALS: dict[str, tuple[str, Answer, str]] = {
    "413": ("PUT", status(413), "split the stack into more layers"),
    "404": ("POST", status(404), "create the repository"),
    "405": ("POST", status(405), "read-only"),
    "400": ("PUT", status(400, b'{"errors":[{"code":"DIGEST_INVALID"}]}'), "DIGEST_INVALID"),
    "no address": ("POST", status(202), "names no address"),
    "address without TLS": ("POST", status(202, Location="http://h.example/x"), "X-Forwarded-Proto"),
    "address of a file": ("POST", status(202, Location="file:///etc/passwd"), "not http or https"),
    "other digest": ("PUT", status(201, Docker_Content_Digest="sha256:0"), "it stored"),
    "redirect": ("PUT", status(303, Location="/elsewhere"), "HTTP 303"),
}


@pytest.mark.parametrize("case", REFUSALS, ids=str)
def test_an_upload_that_is_refused_is_not_repeated(
    case: str, fake: FakeRegistry, connect: Callable[..., Registry]
) -> None:
    method, answer, message = REFUSALS[case]
    fake.on(f"{method} /v2/a/", answer)
    with pytest.raises(PushFailed, match=message):
        connect(fake).push_blob("a", Digest.of(DATA), DATA)
    assert len(fake.requests(method)) == 1


def test_a_file_that_became_shorter(
    fake: FakeRegistry, connect: Callable[..., Registry], tmp_path: Path
) -> None:
    (tmp_path / "blob").write_bytes(DATA[:1000])
    with pytest.raises(ArtefactUnusable, match="is too short"):
        connect(fake).push_blob("a", Digest.of(DATA), FileBody(tmp_path / "blob", len(DATA)))


def test_a_mount_that_is_refused_becomes_an_upload(
    fake: FakeRegistry, connect: Callable[..., Registry]
) -> None:
    fake.on("POST /v2/a/blobs/uploads/.mount", status(403), times=1)
    registry = connect(fake)
    assert registry.push_blob("a", Digest.of(b"1"), b"1", mount_from=["base", "a"]) == "pushed"
    assert registry.push_blob("a", Digest.of(b"2"), b"2", mount_from=["base"]) == "pushed"  # 202: not there
    fake.put_blob("base", b"3")
    assert registry.push_blob("a", Digest.of(b"3"), b"3", mount_from=["other", "base"]) == "mounted"


def test_a_manifest_that_was_stored_as_something_else(
    fake: FakeRegistry, connect: Callable[..., Registry]
) -> None:
    fake.on("PUT /v2/a/manifests/", status(201, Docker_Content_Digest="sha256:" + "0" * 64))
    with pytest.raises(PushFailed, match="it stored"):
        connect(fake).push_manifest("a", b"{}", OCI_MANIFEST)


def test_offline(fake: FakeRegistry, connect: Callable[..., Registry], cache: Cache) -> None:
    registry = connect(fake, offline=True)
    with pytest.raises(ArtefactUnusable, match="offline"):
        registry.manifest("a", "x")
    with pytest.raises(PushFailed, match="offline"):
        registry.push_manifest("a", b"{}", OCI_MANIFEST)
    assert not fake.seen


def test_nobody_is_there(fake: FakeRegistry, connect: Callable[..., Registry], pauses: list[float]) -> None:
    fake.__exit__()
    with pytest.raises(ArtefactUnusable, match="no connection to 127"):
        connect(fake).manifest("a", "x")
    with pytest.raises(PushFailed, match="no connection to 127"):
        connect(fake).push_manifest("a", b"{}", OCI_MANIFEST)
    fake.__enter__()


# ---------------------------------------------------------------- a whole image


def test_push_image(fake: FakeRegistry, connect: Callable[..., Registry], image: Image) -> None:
    pushed = push_image(connect(fake), "team/demo", image, ["1.0", "latest"])
    assert (pushed.sent, pushed.mounted, pushed.existing) == (3, 0, 0)
    assert pushed.digest == image.digest
    assert connect(fake).manifest("team/demo", "1.0").data == image.manifest_bytes
    order = [s.path for s in fake.requests("PUT /v2/team/demo/manifests")]
    assert order == [f"/v2/team/demo/manifests/{r}" for r in (image.digest, "1.0", "latest")]
    again = push_image(connect(fake), "team/demo", image, ["1.0"])
    assert (again.sent, again.existing, again.sent_bytes) == (0, 3, 0)


def test_layers_that_are_not_here_are_mounted_or_fetched(
    fake: FakeRegistry, connect: Callable[..., Registry], image: Image
) -> None:
    away = replace(image, layers=tuple(replace(layer, path=None) for layer in image.layers))
    first, second = image.layers
    assert first.path
    fake.put_blob("base", first.path.read_bytes())
    with pytest.raises(PushFailed, match="neither on this machine nor in"):
        push_image(connect(fake), "demo", away, mount_from=["base"])
    fetched = []

    def fetch(layer: object) -> Path:
        fetched.append(layer)
        assert second.path
        return second.path

    pushed = push_image(connect(fake), "new", away, mount_from=["base"], fetch=fetch)
    assert (pushed.sent, pushed.mounted) == (2, 1)
    assert fetched == [away.layers[1]]


class Counting(Silent):
    """A reporter that adds up what it hears."""

    def __init__(self, limit: float = float("inf")) -> None:
        self.total: int | None = None
        self.done = 0
        self._limit = limit

    def task(self, label: str, *, total: int | None = None, unit: str = "B") -> Task:
        self.total = total
        outer = self

        class Counter:
            def advance(self, amount: int) -> None:
                outer.done += amount
                if outer.done > outer._limit:
                    raise KeyboardInterrupt

            def __enter__(self) -> Counter:
                return self

            def __exit__(self, *_: object) -> None:
                pass

        return Counter()


def test_progress_of_a_push_ends_at_its_total(
    fake: FakeRegistry, connect: Callable[..., Registry], make_image: Callable[..., Image]
) -> None:
    image = make_image(*(bytes([n]) * 600_000 for n in range(4)))
    fake.on("PUT /v2/demo/blobs/", drop(10), times=3)
    fake.put_blob("base", image.layers[0].path.read_bytes())  # type: ignore[union-attr]
    for _ in range(2):  # the second time everything is there
        heard = Counting()
        push_image(connect(fake), "demo", image, mount_from=["base"], reporter=heard)
        assert heard.done == heard.total


def test_an_interrupted_push_ends_and_names_nothing(
    fake: FakeRegistry, connect: Callable[..., Registry], make_image: Callable[..., Image]
) -> None:
    image = make_image(*(bytes([n]) * 600_000 for n in range(8)))
    with pytest.raises(KeyboardInterrupt):
        push_image(connect(fake), "demo", image, ["latest"], reporter=Counting(limit=1))
    assert not fake.manifests


def test_nothing_is_named_when_a_blob_fails(
    fake: FakeRegistry, connect: Callable[..., Registry], make_image: Callable[..., Image]
) -> None:
    image = make_image(*(bytes([n]) * 200_000 for n in range(8)))
    victim = image.layers[5].descriptor.digest
    fake.on(f"PUT /v2/demo/blobs/.*{victim}", status(413))
    with pytest.raises(PushFailed, match="HTTP 413"):
        push_image(connect(fake), "demo", image, ["latest"])
    assert not fake.manifests


# ---------------------------------------------------------------- mirrors and hosts


def test_a_mirror_is_asked_first_and_under_its_prefix(
    fake: FakeRegistry, connect: Callable[..., Registry], cache: Cache, image: Image
) -> None:
    with FakeRegistry() as mirror:
        mirror.put_blob("hub/a", DATA)
        mirror.put_manifest("hub/a", image.manifest_bytes, OCI_MANIFEST, "v1")
        registry = connect(fake, registry_mirrors={fake.host: f"{mirror.host}/hub"})
        assert registry.blob("a", blob_of(DATA), cache).read_bytes() == DATA
        assert registry.manifest("a", "v1").digest == image.digest
        assert not fake.seen


@pytest.mark.parametrize("answer", [status(404), status(500), drop(), status(200, b"wrong")])
def test_what_the_mirror_has_not_comes_from_the_registry(
    answer: Answer, fake: FakeRegistry, connect: Callable[..., Registry], cache: Cache
) -> None:
    fake.put_blob("a", DATA)
    with FakeRegistry() as mirror:
        mirror.on("GET /v2/a", answer)
        registry = connect(fake, registry_mirrors={fake.host: mirror.host})
        assert registry.blob("a", blob_of(DATA), cache).read_bytes() == DATA
        assert mirror.seen


def test_where_both_fail_both_are_told(fake: FakeRegistry, connect: Callable[..., Registry]) -> None:
    with FakeRegistry() as mirror:
        mirror.on("GET /v2/a", status(403))
        registry = connect(fake, registry_mirrors={fake.host: mirror.host})
        with pytest.raises(ArtefactUnusable, match=f"HTTP 404.*mirror {mirror.host}: HTTP 403"):
            registry.manifest("a", "v1")


def test_a_push_does_not_go_to_the_mirror(
    fake: FakeRegistry, connect: Callable[..., Registry], image: Image
) -> None:
    with FakeRegistry() as mirror:
        push_image(connect(fake, registry_mirrors={fake.host: mirror.host}), "a", image, ["v1"])
        assert not mirror.seen


@pytest.mark.parametrize("mirror", ["http://mirror.example", "/x"])
def test_bad_mirrors(mirror: str, fake: FakeRegistry, connect: Callable[..., Registry]) -> None:
    with pytest.raises(UsageProblem, match="cannot be used"):
        connect(fake, registry_mirrors={fake.host: mirror})


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost", True),
        ("localhost:5000", True),
        ("127.0.0.1:5000", True),
        ("127.8.9.1", True),
        ("[::1]:5000", True),
        ("127.example.com", False),
        ("127.0.0.1.example.com", False),
        ("registry.example:5000", False),
        ("10.0.0.1", False),
        ("[::]:5000", False),
        ("localhost.example", False),
    ],
)
def test_only_this_machine_is_spoken_to_without_tls(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
