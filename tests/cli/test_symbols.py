"""C++ symbols for people."""

from __future__ import annotations

import cxxfilt
import pytest

from imagebuilder.cli.symbols import cxx_name, with_cxx_names

SYMBOL = "_ZNK3c106IValue4dumpEv"


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        (SYMBOL, "c10::IValue::dump() const"),
        ("cudaMalloc", "cudaMalloc"),
        ("_Z", "_Z"),
        ("_Znonsense", "_Znonsense"),
        ("", ""),
    ],
)
def test_one(symbol: str, name: str) -> None:
    assert cxx_name(symbol) == name


def test_within_a_text() -> None:
    assert with_cxx_names(f"a.so needs {SYMBOL}, and cudaMalloc") == (
        f"a.so needs {SYMBOL} [c10::IValue::dump() const], and cudaMalloc"
    )


def test_a_machine_without_a_cxx_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(symbol: str) -> str:
        raise cxxfilt.LibraryNotFound

    monkeypatch.setattr(cxxfilt, "demangle", none)
    assert with_cxx_names(SYMBOL) == SYMBOL
