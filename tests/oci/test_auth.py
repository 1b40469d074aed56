from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebuilder.oci.auth import (
    Authorizer,
    AuthProblem,
    Challenge,
    TokenReply,
    parse_challenges,
    pull_scope,
    push_scope,
)
from imagebuilder.oci.credentials import Credential

REALM = 'Bearer realm="https://auth.example/token?a=b",service="registry.example",scope="repository:x:pull"'
LOGIN = Credential(username="anna", secret="p:w")
PULL = (pull_scope("x"),)


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        ("", ()),
        ('Basic realm="a b"', (("basic", {"realm": "a b"}),)),
        ("Basic", (("basic", {}),)),
        (
            'Bearer realm="https://a/t",service="s",scope="repository:a/b:pull,push"',
            (("bearer", {"realm": "https://a/t", "service": "s", "scope": "repository:a/b:pull,push"}),),
        ),
        (
            'Negotiate, BEARER Realm=plain , error="invalid_token", Basic realm="x\\"y"',
            (
                ("negotiate", {}),
                ("bearer", {"realm": "plain", "error": "invalid_token"}),
                ("basic", {"realm": 'x"y'}),
            ),
        ),
        ("===,,,", ()),
    ],
)
def test_parse_challenges(header: str, wanted: tuple[tuple[str, dict[str, str]], ...]) -> None:
    assert parse_challenges(header) == tuple(Challenge(scheme=s, parameters=p) for s, p in wanted)


@given(st.text(st.characters(max_codepoint=127), max_size=200))
def test_any_header_is_parsed(header: str) -> None:
    parse_challenges(header)


@dataclass
class Server:
    """A token server that is asked without a network, and a clock that stands still."""

    replies: list[TokenReply] = field(default_factory=list)
    asked: list[tuple[str, str | None, Mapping[str, str] | None]] = field(default_factory=list)
    now: float = 1000.0

    def __call__(self, url: str, *, authorization: str | None, form: Mapping[str, str] | None) -> TokenReply:
        self.asked.append((url, authorization, form))
        return self.replies.pop(0) if self.replies else token(f"t{len(self.asked)}")

    def authorizer(self, login: Credential | None = LOGIN) -> Authorizer:
        return Authorizer(
            lambda: login, self, trusted=lambda url: url.startswith("https:"), clock=lambda: self.now
        )


def token(text: str, key: str = "token", **more: object) -> TokenReply:
    return TokenReply(status=200, body=json.dumps({key: text, **more}).encode())


def basic(user: str, secret: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{secret}".encode()).decode()


def test_nothing_is_sent_before_the_registry_asks() -> None:
    assert Server().authorizer().header(PULL) is None


def test_basic() -> None:
    auth = Server().authorizer()
    auth.challenged('Basic realm="x"', PULL, None)
    assert auth.header(PULL) == basic("anna", "p:w")
    with pytest.raises(AuthProblem, match="does not take the login") as caught:
        auth.challenged('Basic realm="x"', PULL, basic("anna", "p:w"))
    assert caught.value.refused


def test_a_token_is_fetched_once_per_set_of_scopes() -> None:
    server = Server()
    auth = server.authorizer()
    auth.challenged(REALM, PULL, None)
    assert auth.header(PULL) == auth.header(PULL) == "Bearer t1"
    assert auth.header((push_scope("y"), pull_scope("x"))) == "Bearer t2"
    assert [url for url, _, _ in server.asked] == [
        "https://auth.example/token?a=b&service=registry.example&scope=repository%3Ax%3Apull",
        "https://auth.example/token?a=b&service=registry.example&scope=repository%3Ax%3Apull"
        "&scope=repository%3Ay%3Apull%2Cpush",
    ]
    assert {login for _, login, _ in server.asked} == {basic("anna", "p:w")}


def test_a_scope_that_the_registry_names_is_asked_for_too() -> None:
    server = Server()
    auth = server.authorizer()
    auth.challenged(REALM.replace("repository:x:pull", "repository:store/x:pull"), PULL, None)
    auth.header(PULL)
    auth.header((pull_scope("other"),))
    assert "scope=repository%3Astore%2Fx%3Apull" in server.asked[0][0]
    assert "store" not in server.asked[1][0]


@pytest.mark.parametrize(
    ("answer", "seconds"),
    [({}, 50), ({"expires_in": 300}, 290), ({"expires_in": 1}, 50), ({"expires_in": "soon"}, 50)],
)
def test_a_token_is_used_until_shortly_before_its_end(answer: dict[str, object], seconds: int) -> None:
    server = Server(replies=[token("first", "access_token", **answer)])
    auth = server.authorizer()
    auth.challenged(REALM, PULL, None)
    assert auth.header(PULL) == "Bearer first"
    server.now += seconds - 1
    assert auth.header(PULL) == "Bearer first"
    server.now += 1
    assert auth.header(PULL) == "Bearer t2"


def test_a_token_that_was_refused_is_fetched_again_but_not_a_newer_one() -> None:
    server = Server()
    auth = server.authorizer()
    auth.challenged(REALM, PULL, None)
    first = auth.header(PULL)
    auth.challenged(REALM, PULL, first)
    second = auth.header(PULL)
    assert (first, second) == ("Bearer t1", "Bearer t2")
    auth.challenged(REALM, PULL, first)  # a slower thread's
    assert auth.header(PULL) == second


def test_an_identity_token_is_posted() -> None:
    server = Server(replies=[token("t", "access_token")])
    auth = server.authorizer(Credential(identity_token="id"))
    auth.challenged(REALM, PULL, None)
    assert auth.header(PULL) == "Bearer t"
    ((url, authorization, form),) = server.asked
    assert (url, authorization) == ("https://auth.example/token?a=b", None)
    assert form and form["grant_type"] == "refresh_token" and form["refresh_token"] == "id"
    assert form["scope"] == "repository:x:pull" and form["service"] == "registry.example"


@pytest.mark.parametrize(
    ("header", "login", "reply", "message", "refused"),
    [
        ("", LOGIN, None, "no way that is known", False),
        ("Negotiate", LOGIN, None, "no way that is known", False),
        ('Basic realm="x"', None, None, "asks for a login", False),
        ('Basic realm="x"', Credential(identity_token="i"), None, "identity token", False),
        ('Bearer service="x"', LOGIN, None, "without a usable address", False),
        ('Bearer realm="file:///etc/passwd"', LOGIN, None, "without a usable address", False),
        ('Bearer realm="http://auth.example/t"', LOGIN, None, "not reached over https", False),
        (REALM, LOGIN, TokenReply(status=401, body=b""), "does not take the login", True),
        (REALM, None, TokenReply(status=401, body=b""), "asks for a login", False),
        (REALM, LOGIN, TokenReply(status=502, body=b""), "status 502", False),
        (REALM, LOGIN, TokenReply(status=200, body=b"<html>"), "cannot be read", False),
        (REALM, LOGIN, TokenReply(status=200, body=b"[" * 10**5), "cannot be read", False),
        (REALM, LOGIN, TokenReply(status=200, body=b"{}"), "holds no token", False),
        (
            REALM,
            LOGIN,
            TokenReply(status=200, body=b'{"token": "a\\r\\nX-Evil: 1"}'),
            "holds no token",
            False,
        ),
    ],
)
def test_no_way_in(
    header: str, login: Credential | None, reply: TokenReply | None, message: str, refused: bool
) -> None:
    auth = Server(replies=[reply] if reply else []).authorizer(login)
    with pytest.raises(AuthProblem, match=message) as caught:
        auth.challenged(header, PULL, None)
        auth.header(PULL)
    assert caught.value.refused is refused
