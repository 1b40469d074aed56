"""Recognising what must not stand in a stack file, because an image would show it: tokens, keys, passwords.

Judged by the name of a variable and by the well-known forms of tokens. Nothing here shows a value.
"""

from __future__ import annotations

import re

_NAME = re.compile(
    r"(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|APIKEY|API_KEY|ACCESS_KEY|PRIVATE_KEY|"
    r"SECRET_KEY|ENCRYPTION_KEY|AUTH_KEY)(?:$|_)"
)
_NOT_THE_VALUE = re.compile(r"_(?:FILE|PATH|DIR|NAME|URL|ID|TYPE|LIFETIME|TIMEOUT|TTL)$")

# form of token → who gives out such
_FORMS = {
    r"\bhf_[A-Za-z0-9]{20,}": "Hugging Face",
    r"\b(?:ghp|gho|ghu|ghs|ghr)_[A-Za-z0-9]{30,}|\bgithub_pat_[A-Za-z0-9_]{30,}": "GitHub",
    r"\bglpat-[A-Za-z0-9_-]{20,}": "GitLab",
    r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b": "AWS",
    r"\bnvapi-[A-Za-z0-9_-]{20,}": "NVIDIA",
    r"\bsk-(?:[a-z]+-)*[A-Za-z0-9_-]{20,}": "OpenAI or alike",
    r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}": "Slack",
    r"\bpypi-[A-Za-z0-9_-]{50,}": "PyPI",
    r"\bdckr_pat_[A-Za-z0-9_-]{20,}": "Docker",
    r"\bAIza[A-Za-z0-9_-]{35}": "Google",
    r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.": "a JSON Web Token",
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----": "a private key",
    r"://[^/\s:@]*:[^/\s@]+@": "a password in a URL",
}
_FLAG = re.compile(r"--(?:[a-z0-9-]+-)?(?:api-key|token|password|secret|access-key)")


def secret_form(text: str) -> str | None:
    """A problem in words when the text holds something of the form of a secret."""
    for form, giver in _FORMS.items():
        if re.search(form, text):
            return f"holds what looks like a secret ({giver}): it would be readable in every image"
    return None


def secret_variable(name: str, value: str) -> str | None:
    """A problem in words when a variable carries a secret by its name or by the form of its value.

    `HF_TOKEN_PATH`, `TOKENIZERS_PARALLELISM`, an empty value, a number or a switch are none.
    """
    upper = name.upper()
    harmless = not value or re.fullmatch(r"\d{1,9}|true|false|yes|no|on|off", value.lower())
    if _NAME.search(upper) and not _NOT_THE_VALUE.search(upper) and not harmless:
        return "is a secret by its name: it would be readable in every image"
    return secret_form(value)


def secret_argument(text: str) -> str | None:
    """A problem in words when a server's argument is, or asks for, a secret on the command line."""
    if _FLAG.fullmatch(text.partition("=")[0]):
        return f"{text.partition('=')[0]} puts a secret on a command line, where every process can read it"
    return secret_form(text)
