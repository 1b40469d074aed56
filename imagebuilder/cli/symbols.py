"""C++ symbols as people write them, where this machine has what can say so. Only for what people read."""

from __future__ import annotations

import re

_MANGLED = re.compile(r"\b_Z[A-Za-z0-9_.$]+")


def cxx_name(symbol: str) -> str:
    """`c10::IValue::dump() const` for its mangled name; any other symbol as it is.

    As it is, too, on a machine without libstdc++ or libc++.
    """
    if not symbol.startswith("_Z"):
        return symbol
    import cxxfilt

    try:
        name: str = cxxfilt.demangle(symbol)
    except cxxfilt.Error:
        return symbol
    return name


def with_cxx_names(text: str) -> str:
    """The text with each mangled name's meaning in brackets behind it."""

    def explained(found: re.Match[str]) -> str:
        name = cxx_name(found[0])
        return found[0] if name == found[0] else f"{found[0]} [{name}]"

    return _MANGLED.sub(explained, text)
