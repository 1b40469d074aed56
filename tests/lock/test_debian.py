"""The closure of Debian packages: what it takes, in which order, and what it refuses. Pure."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebuilder.errors import Unresolvable
from imagebuilder.facts.image_tree import ImageTree
from imagebuilder.index.debian_packages import PackageIndex, installed
from imagebuilder.lock.debian import base_packages, check_python, debian_suite, resolve_closure
from imagebuilder.values import Release
from tests.support.debian import packages_text, stanza


def index(*stanzas: str) -> PackageIndex:
    return PackageIndex.from_text(packages_text(*stanzas), "test")


def names(offers: PackageIndex, *wanted: str, essential: bool = False, present: bytes = b"") -> list[str]:
    found = resolve_closure(offers, wanted, essential=essential, present=installed(present))
    return [deb.name for deb in found]


def test_what_a_package_needs_comes_before_it() -> None:
    offers = index(
        stanza("app", Depends="lib (>= 1), tool"),
        stanza("lib", "1.0", Pre_Depends="libc"),
        stanza("libc"),
        stanza("tool", Depends="lib", Recommends="extra"),
        stanza("extra"),
    )
    assert names(offers, "app") == ["libc", "lib", "tool", "app"]


def test_the_first_alternative_that_can_be_had() -> None:
    offers = index(stanza("a", Depends="gone | b (>= 2) | c | d"), stanza("b", "1"), stanza("c"), stanza("d"))
    assert names(offers, "a") == ["c", "a"]


def test_an_alternative_that_is_taken_already() -> None:
    offers = index(stanza("a", Depends="b | c"), stanza("b"), stanza("c"))
    assert names(offers, "a", "c") == ["c", "a"]


@pytest.mark.parametrize(
    ("wanted", "target", "seen", "hint"),
    [
        (["python3"], "3.11", None, ""),
        (["python3"], "3.11.2", None, ""),
        (["python3"], "3.14", "Python 3.11", 'python = "3.11"'),
        (["python3"], "3.1", "Python 3.11", 'python = "3.11"'),
        (["lib"], "3.11", "no Python", 'add "python3"'),
    ],
)
def test_a_base_has_the_python_of_its_environment(
    wanted: list[str], target: str, seen: str | None, hint: str
) -> None:
    offers = index(
        stanza("python3", Depends="python3.11"),
        stanza("python3.11", Depends="python3.11-minimal"),
        stanza("python3.11-minimal"),
        stanza("lib"),
    )
    closure = resolve_closure(offers, wanted, essential=False)
    if seen is None:
        check_python(closure, Release(target), "bookworm")
        return
    with pytest.raises(Unresolvable) as failed:
        check_python(closure, Release(target), "bookworm")
    assert failed.value.seen == seen and hint in failed.value.hint


def test_usr_is_merged_before_usrmerge() -> None:
    offers = index(
        stanza("i", Depends="usrmerge | usr-is-merged"),
        stanza("usrmerge", Depends="perl"),
        stanza("usr-is-merged"),
    )
    assert names(offers, "i") == ["usr-is-merged", "i"]


@pytest.mark.parametrize(
    ("depends", "provides", "there"),
    [
        ("v", "v", True),
        ("v (>= 1)", "v", False),
        ("v (>= 1)", "v (= 2)", True),
        ("v (>= 3)", "v (= 2)", False),
    ],
)
def test_provides(depends: str, provides: str, there: bool) -> None:
    offers = index(stanza("a", Depends=depends), stanza("p", Provides=provides))
    if there:
        assert names(offers, "a") == ["p", "a"]
    else:
        with pytest.raises(Unresolvable):
            names(offers, "a")


def test_the_provider_of_the_highest_priority() -> None:
    offers = index(
        stanza("a", Depends="awk"),
        stanza("gawk", Provides="awk"),
        stanza("mawk", Provides="awk", Priority="required"),
    )
    assert names(offers, "a") == ["mawk", "a"]


def test_essential_packages_come_first() -> None:
    offers = index(
        stanza("aaa"),
        stanza("dpkg", Essential="yes", Pre_Depends="libc"),
        stanza("libc", Depends="gcc-base"),
        stanza("gcc-base"),
        stanza("apt", Priority="required", Depends="libc"),
        stanza("other"),
    )
    assert names(offers, "aaa", essential=True) == ["gcc-base", "libc", "apt", "dpkg", "aaa"]


def test_circles() -> None:
    offers = index(stanza("a", Depends="b"), stanza("b", Depends="c"), stanza("c", Depends="a"))
    assert names(offers, "a") == ["c", "b", "a"]


def test_pre_depends_hold_in_a_circle() -> None:
    offers = index(stanza("a", Depends="b"), stanza("b", Pre_Depends="a"))
    assert names(offers, "a") == ["a", "b"]


def test_one_version_of_several_is_the_newest() -> None:
    offers = index(stanza("a", "1.0~rc1"), stanza("a", "1.0"), stanza("a", "0.9"))
    (found,) = resolve_closure(offers, ["a"], essential=False)
    assert found.version == "1.0"
    assert found.path == "pool/main/a/a/a_1.0_amd64.deb"
    (older,) = resolve_closure(offers, ["a=0.9"], essential=False)
    assert older.version == "0.9"


STATUS = (
    b"Package: libc\nStatus: install ok installed\nVersion: 2\nArchitecture: amd64\n\n"
    b"Package: mawk\nStatus: install ok installed\nVersion: 1\nArchitecture: amd64\nProvides: awk\n"
)


def test_what_a_base_has_is_not_taken_again() -> None:
    offers = index(
        stanza("a", Depends="libc (>= 2), awk, b"),
        stanza("b"),
        stanza("libc", "3"),
        stanza("gawk", Provides="awk"),
    )
    assert names(offers, "a", "libc", present=STATUS) == ["b", "a"]


REFUSED = {
    "a name that is none": ([stanza("python3.11")], ["python3.12"], "", "python3.12 is not a package"),
    "a virtual name": ([stanza("p", Provides="v")], ["v"], "p", "virtual package"),
    "a version that is none": ([stanza("a", "1")], ["a=2"], "", "no version 2"),
    "a dependency that is gone": (
        [stanza("a", Depends="b"), stanza("b", Depends="c (>= 2)"), stanza("c", "1")],
        ["a"],
        "c 1",
        "a → b needs c \\(>= 2\\)",
    ),
    "a conflict": (
        [stanza("a", Conflicts="b"), stanza("b")],
        ["a", "b"],
        "b 1.0",
        "a cannot be together with b",
    ),
    "a break": (
        [stanza("a", Breaks="b (<< 2)"), stanza("b", "1.5")],
        ["a", "b"],
        "b 1.5",
        "a cannot be together with b",
    ),
    "a conflict with a provider": (
        [stanza("a", Conflicts="v"), stanza("b", Provides="v")],
        ["a", "b"],
        "b 1.0",
        "cannot be together",
    ),
    "two versions": ([stanza("a", "1"), stanza("a", "2")], ["a=1", "a=2"], "1 and 2", "two versions"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be(case: str) -> None:
    stanzas, wanted, seen, message = REFUSED[case]
    with pytest.raises(Unresolvable, match=message) as caught:
        names(index(*stanzas), *wanted)
    assert seen in caught.value.seen + caught.value.wanted
    assert caught.value.hint


def test_a_near_name_is_named() -> None:
    with pytest.raises(Unresolvable) as caught:
        names(index(stanza("python3.11"), stanza("zsh")), "python3.12")
    assert "python3.11" in caught.value.wanted


def test_a_package_may_conflict_with_what_it_provides() -> None:
    offers = index(stanza("a", Provides="v", Conflicts="v"))
    assert names(offers, "a") == ["a"]


def test_a_base_may_not_be_changed() -> None:
    offers = index(stanza("a", Depends="libc (>= 3)"), stanza("libc", "3"))
    with pytest.raises(Unresolvable) as caught:
        names(offers, "a", present=STATUS)
    assert caught.value.seen == "libc 2"


def test_a_base_that_is_not_debian() -> None:
    with pytest.raises(Unresolvable) as caught:
        debian_suite(ImageTree())
    assert "no os-release" in caught.value.seen
    assert base_packages(ImageTree()) == ()


@settings(deadline=None)
@given(st.integers(min_value=0, max_value=10_000))
def test_any_graph(seed: int) -> None:
    """Complete, without doubles, the same whatever order is asked in; acyclic needs come first."""
    chance = random.Random(seed)
    count = 12
    needs = {n: sorted(chance.sample(range(count), chance.randint(0, 3))) for n in range(count)}
    offers = index(
        *(stanza(f"p{n}", Depends=", ".join(f"p{m}" for m in some if m != n)) for n, some in needs.items())
    )
    wanted = [f"p{n}" for n in chance.sample(range(count), 3)]
    order = names(offers, *wanted)
    assert sorted(order) == sorted(set(order))
    for name in order:
        for other in needs[int(name[1:])]:
            assert f"p{other}" in order
            if other < int(name[1:]) and all(m < n for n, some in needs.items() for m in some):
                assert order.index(f"p{other}") < order.index(name)
    assert names(offers, *reversed(wanted)) == order
