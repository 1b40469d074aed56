"""What a registry's refusal means to the user, and what to do about it. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from imagebuilder.errors import ArtefactUnusable, ImagebuilderError, PushFailed
from imagebuilder.settings import redact

RETRIED = (408, 425, 429, 500, 502, 503, 504)
"""Statuses after which the same request may succeed a moment later."""

_LIMIT = 300  # characters of a registry's own words that are shown


class Missing(ArtefactUnusable):
    """The registry is there and has no such thing (404)."""


class Interrupted(PushFailed):
    """A push that may succeed when tried again. wait: seconds that the registry asked for."""

    wait: float | None = None


@dataclass(frozen=True, kw_only=True)
class Errand:
    """What a request is for. thing: a noun for messages, such as "the manifest of registry/name:tag"."""

    thing: str
    pushing: bool = False


class Secrets:
    """What must never be shown: replaced wherever it turns up in a text."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def add(self, *secrets: str) -> None:
        """Remember these."""
        self._known |= {secret for secret in secrets if len(secret) >= 3}

    def hide(self, text: str) -> str:
        """The text without them, and without logins and queries in addresses."""
        for secret in sorted(self._known, key=len, reverse=True):
            text = text.replace(secret, "***")
        return redact(text)


def words_of(body: bytes) -> str:
    """What the registry says itself: code and message of its first error, else nothing."""
    try:
        error = json.loads(body)["errors"][0]
        parts = (error.get("code"), error.get("message"))
    except (ValueError, RecursionError, KeyError, IndexError, TypeError, AttributeError):
        return ""
    text = ": ".join(p for p in parts if isinstance(p, str) and p)
    return re.sub(r"[^\x20-\x7e]+", " ", text)[:_LIMIT]


def refused(
    errand: Errand, registry: str, status: int, said: str, *, has_login: bool, wait: float | None = None
) -> ImagebuilderError:
    """The error for a status that a registry ends in. said: its own words."""
    seen = f"HTTP {status}" + (f", {said}" if said else "")
    if not errand.pushing:
        absent = Missing if status == 404 else ArtefactUnusable
        return absent(
            f"{registry} does not give {errand.thing}",
            seen=seen,
            hint=_pull_advice(registry, status, has_login),
        )
    kind = Interrupted if status in RETRIED else PushFailed
    error = kind(
        f"{registry} does not take {errand.thing}", seen=seen, hint=_push_advice(registry, status, has_login)
    )
    if isinstance(error, Interrupted):
        error.wait = wait
    return error


def _pull_advice(registry: str, status: int, has_login: bool) -> str:
    login = f"docker login {registry}"
    known = {
        401: f"the login is not valid, or not any more: {login}" if has_login else login,
        403: f"ask for the right to read this repository, or log in as someone who has it: {login}",
        404: "check repository, tag and digest; tags vanish from registries: keep the digest and a mirror",
        407: "give the proxy's login in HTTPS_PROXY",
    }
    return known.get(status) or _common_advice(registry, status)


def _push_advice(registry: str, status: int, has_login: bool) -> str:
    login = f"docker login {registry}"
    known = {
        400: "run it again; if it stays, the image in the cache is damaged or the registry is too old for it",
        401: f"the login is not valid, or not any more: {login}" if has_login else login,
        403: f"ask for the right to push to this repository, or log in as someone who has it: {login}",
        404: "create the repository or project in the registry first, or correct its name",
        405: "the registry is read-only, or a mirror; push to the registry itself",
        413: (
            "a proxy before the registry, or the registry, limits uploads: raise the limit "
            "(nginx: client_max_body_size 0), or split the stack into more layers"
        ),
    }
    return known.get(status) or _common_advice(registry, status)


def _common_advice(registry: str, status: int) -> str:
    if status == 429:
        return f"wait and try again; a login raises the limit (docker login {registry}), a mirror avoids it"
    if status >= 500:
        return f"the fault is in the registry: try again later, or look at the log of {registry}"
    return f"look at the log of {registry}"


def broken(errand: Errand, registry: str, reason: str) -> ImagebuilderError:
    """The error for a connection that cannot be made, or broke."""
    if not errand.pushing:
        return ArtefactUnusable(
            f"{errand.thing} cannot be had: no connection to {registry}, or it broke",
            seen=reason,
            hint="imagebuilder doctor shows what can be reached; a mirror can be configured (docs/50-oci.md)",
        )
    return Interrupted(
        f"{errand.thing} cannot be pushed: no connection to {registry}, or it broke",
        seen=reason,
        hint=f"check that {registry} is up; where only large layers fail, a proxy cuts long uploads",
    )


def no_way_in(errand: Errand, registry: str, reason: str, *, login_refused: bool) -> ImagebuilderError:
    """The error for a login that is missing or not taken."""
    kind = PushFailed if errand.pushing else ArtefactUnusable
    hint = f"docker login {registry}"
    return kind(
        f"{registry} does not {'take' if errand.pushing else 'give'} {errand.thing}",
        seen=reason,
        hint=f"the login that Docker has stored is not valid: {hint}" if login_refused else hint,
    )


def misbehaves(
    errand: Errand, registry: str, seen: str, wanted: str = "", hint: str = ""
) -> ImagebuilderError:
    """The error for an answer that the protocol does not allow."""
    kind = PushFailed if errand.pushing else ArtefactUnusable
    return kind(
        f"{registry} answers wrongly, asked about {errand.thing}",
        seen=seen,
        wanted=wanted,
        hint=hint or f"look at the log of {registry}",
    )
