"""update-alternatives without running it: `--install` commands are read out of the postinst scripts.

Source: update-alternatives(1); the state files are those of dpkg 1.21 and 1.22 (/var/lib/dpkg/alternatives).
Only literal commands are understood; one with shell variables in it is left for whoever runs the script.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from imagebuilder.builders.direct.debian.tree import SYMLINK, Tree
from imagebuilder.builders.direct.debian.unpack import Unpacked

_STATE = "var/lib/dpkg/alternatives"
_LINKS = "etc/alternatives"
_CONTINUED = re.compile(r"\\\n\s*")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One alternative: what the link would lead to. slaves: name → path."""

    path: str
    priority: int
    slaves: Mapping[str, str]


@dataclass(kw_only=True)
class Group:
    """All alternatives of one link. slaves: name → link."""

    name: str
    link: str
    mode: str = "auto"
    slaves: dict[str, str] = field(default_factory=dict)
    choices: dict[str, Choice] = field(default_factory=dict)

    @property
    def best(self) -> Choice:
        """Of the highest priority; of equal ones the first that was installed."""
        return max(self.choices.values(), key=lambda choice: choice.priority)

    def state(self) -> bytes:
        """The state file."""
        slaves = sorted(self.slaves)
        lines = [self.mode, self.link]
        for name in slaves:
            lines += [name, self.slaves[name]]
        lines.append("")
        for path in sorted(self.choices):
            choice = self.choices[path]
            lines += [path, str(choice.priority), *(choice.slaves.get(name, "") for name in slaves)]
        lines.append("")
        return ("\n".join(lines) + "\n").encode()


def commands(script: str) -> Iterator[tuple[str, str, Choice, dict[str, str]]]:
    """(link, name, choice, links of the slaves) of each literal `--install` command in a script."""
    for line in _CONTINUED.sub(" ", script).splitlines():
        start = line.find("update-alternatives ")
        if start < 0 or "--install" not in line or line.lstrip().startswith("#"):
            continue
        lexer = shlex.shlex(line[start:], posix=True, punctuation_chars=True)
        lexer.wordchars += "%+,@^!:"
        try:
            words = list(lexer)
        except ValueError:  # an unfinished quotation: part of something larger
            continue
        parsed = _parse(words)
        if parsed:
            yield parsed


def _parse(words: list[str]) -> tuple[str, str, Choice, dict[str, str]] | None:
    link = name = path = priority = ""
    slaves: dict[str, str] = {}
    links: dict[str, str] = {}
    at = 1
    while at < len(words):
        if words[at] == "--install" and len(words) >= at + 5:
            link, name, path, priority = words[at + 1 : at + 5]
            at += 5
        elif words[at] == "--slave" and len(words) >= at + 4:
            links[words[at + 2]], slaves[words[at + 2]] = words[at + 1], words[at + 3]
            at += 4
        elif words[at].startswith("--"):
            at += 1
        else:
            break  # `;`, `||`, `&&`: another command
    literal = [link, name, path, *links.values(), *slaves.values()]
    if not re.fullmatch(r"-?\d+", priority) or any(re.search(r"[$`*?{]", word) for word in literal):
        return None
    if not all(word.startswith("/") for word in (link, path, *links.values(), *slaves.values())):
        return None
    return link, name, Choice(path=path, priority=int(priority), slaves=slaves), links


def read_state(name: str, data: bytes) -> Group | None:
    """A state file of a lower layer; None: one that is not understood."""
    lines = iter(data.decode("utf-8", "replace").split("\n"))
    try:
        group = Group(name=name, mode=next(lines), link=next(lines))
        while slave := next(lines):
            group.slaves[slave] = next(lines)
        while path := next(lines):
            priority = int(next(lines))
            paths = {slave: next(lines) for slave in group.slaves}
            group.choices[path] = Choice(
                path=path, priority=priority, slaves={k: v for k, v in paths.items() if v}
            )
    except (StopIteration, ValueError):
        return None
    return group


def make_alternatives(tree: Tree, packages: Mapping[str, Unpacked]) -> None:
    """The links and state of every group that a package of this layer adds to."""
    groups: dict[str, Group] = {}
    for package in packages.values():
        for link, name, choice, links in commands(package.script("postinst")):
            if not tree.exists(choice.path):
                continue
            group = groups.get(name)
            if group is None:
                state = tree.read(f"{_STATE}/{name}")
                group = groups[name] = (read_state(name, state) if state else None) or Group(
                    name=name, link=link
                )
            group.slaves.update(links)
            group.choices.setdefault(choice.path, choice)
    for group in groups.values():
        tree.put_file(f"{_STATE}/{group.name}", group.state())
        if group.mode != "auto":
            continue
        best = group.best
        _link(tree, group.link, group.name, best.path)
        for name, link in group.slaves.items():
            target = best.slaves.get(name)
            if target and tree.exists(target):
                _link(tree, link, name, target)


def _link(tree: Tree, link: str, name: str, target: str) -> None:
    if tree.kind(tree.place(link)) not in {None, SYMLINK}:
        return  # as update-alternatives: a real file is not replaced
    tree.put_link(link, f"/{_LINKS}/{name}")
    tree.put_link(f"{_LINKS}/{name}", target)
