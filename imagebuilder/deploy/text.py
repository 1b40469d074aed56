"""Manifests and compose files as YAML that every parser reads alike."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

# YAML 1.1 (PyYAML) and Go's parsers disagree on what is a number, a switch or a date: `1e3`, `0o7`, `on`. So
# a text stands bare only where it can be nothing else: it starts with a letter, and is no word of theirs.
_BARE = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_WORDS = frozenset(("y", "n", "yes", "no", "true", "false", "on", "off", "null"))


def yaml_documents(documents: Iterable[Mapping[str, Any]]) -> str:
    """Several documents, each after `---`, keys in the order they have."""
    return "".join(f"---\n{yaml_document(document)}" for document in documents)


def yaml_document(document: Mapping[str, Any]) -> str:
    """One document, keys in the order they have."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

        def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
            super().increase_indent(flow, False)

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        bare = _BARE.fullmatch(value) and value.lower() not in _WORDS
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if bare else '"')

    Dumper.add_representer(str, text)
    return yaml.dump(dict(document), Dumper=Dumper, sort_keys=False, width=1 << 20, allow_unicode=True)
