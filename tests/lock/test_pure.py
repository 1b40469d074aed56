"""The small pure parts: edges, passed-over versions, changes, freshness, patches, uv's words."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from imagebuilder.errors import ArtefactUnusable, LockUnusable, Unresolvable, UsageProblem
from imagebuilder.lock.changes import describe
from imagebuilder.lock.edges import find_edges
from imagebuilder.lock.explain import explain_failure
from imagebuilder.lock.fresh import check_fresh
from imagebuilder.lock.kept import kept_debs, kept_versions
from imagebuilder.lock.metadata import Metadata, metadata_from
from imagebuilder.lock.model import Lock
from imagebuilder.lock.passed_over import Chosen, find_passed_over
from imagebuilder.lock.patched import changed_paths, locked_patches
from imagebuilder.lock.target import TargetFacts
from imagebuilder.lock.uv import parse_answer
from imagebuilder.stack import Stack, load_stack, resolution_hash, resolution_parts, shipped_stacks
from imagebuilder.stack.model import (
    DebianBase,
    Index,
    Layer,
    Override,
    Patch,
    Resolve,
    System,
    Target,
    Waiver,
)
from imagebuilder.values import Digest, Platform, Release
from tests.lock.test_choose import file
from tests.lock.test_pylock import FULL, wheel

TARGET = TargetFacts(python=Release("3.12"), platform=Platform.parse("linux/amd64"), glibc=Release("2.36"))
NEW_FILE = b"--- /dev/null\n+++ b/app/new.py\n@@ -0,0 +1 @@\n+c\n"
PATCH = b"--- a/app/x.py\t2026\n+++ b/app/x.py\n@@ -1 +1 @@\n-a\n+b\n" + NEW_FILE


def metadata(name: str, *requires: str, version: str = "1.0") -> Metadata:
    return Metadata(name=name, version=version, requires=tuple(map(Requirement, requires)))


def stack(**changes: object) -> Stack:
    base = Stack(
        name="s",
        target=Target(python=Release("3.12")),
        base=DebianBase(suite="bookworm"),
        system=System(packages=("python3.11",), resolve="lock"),
        layers=(
            Layer(
                name="all",
                requirements=(Requirement("App>=1"), Requirement("kernel")),
                patches=(Patch(path="p.patch", content=PATCH),),
            ),
        ),
        overrides=(Override(requirement=Requirement("kernel==1"), reason="r"),),
        indexes=(Index(name="vendor", url="https://example.org/simple", explicit=True),),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def lock_of(made: Stack, **changes: object) -> Lock:
    lock = replace(FULL, stack_hash=resolution_hash(made), stack_parts=resolution_parts(made))
    return replace(lock, **changes)  # type: ignore[arg-type]


# ---------------------------------------------------------------- edges


def test_edges_follow_extras_until_nothing_changes() -> None:
    found = find_edges(
        [Requirement("a[x]")],
        {
            canonicalize_name("a"): metadata(
                "a", "b; extra == 'x'", "never; extra == 'y'", "a[z]; extra == 'x'"
            ),
            canonicalize_name("b"): metadata("b", "c[Deep_Extra]", "a"),
            canonicalize_name("c"): metadata("c", "d; extra == 'deep-extra'"),
            canonicalize_name("d"): metadata("d", "gone; sys_platform == 'win32'"),
        },
        [],
        TARGET,
    )
    assert found.requires == {"a": ("b",), "b": ("a", "c"), "c": ("d",), "d": ()}
    assert found.extras == {"a": ("x", "z"), "b": (), "c": ("deep-extra",), "d": ()}
    assert found.missing == ()


def test_edges_say_what_the_resolver_left_out_unless_an_override_removes_it() -> None:
    known = {canonicalize_name("a"): metadata("a", "gone>=1", "removed")}
    removed = Requirement("removed; sys_platform == 'win32'")
    assert find_edges([Requirement("a")], known, [removed], TARGET).missing == (("a", "gone>=1"),)


def test_metadata_that_cannot_be_read() -> None:
    fields = {"name": "A", "version": "1", "requires_dist": ["ok>=1", "broken (>=1"]}
    found = metadata_from(fields, "f.whl")
    assert [str(r) for r in found.requires] == ["ok>=1"] and found.unreadable == ("broken (>=1",)
    with pytest.raises(ArtefactUnusable, match="no usable METADATA"):
        metadata_from({"name": "a"}, "f.whl")


# ---------------------------------------------------------------- passed over


def chosen(**changes: object) -> Chosen:
    app, torch = canonicalize_name("app"), canonicalize_name("torch")
    made = Chosen(
        versions={app: Version("1"), torch: Version("2.9.1+cu130")},
        asked=[("the stack asks for", Requirement("app"))],
        overridden=frozenset(),
        metadata={},
        kept=frozenset(),
        target=TARGET,
        as_of=None,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


APP = canonicalize_name("app")
OLD, NEW = file("app-1-py3-none-any.whl"), file("app-2-py3-none-any.whl")


@pytest.mark.parametrize(
    ("files", "changes", "why"),
    [
        ([OLD, NEW], {"asked": [("the stack asks for", Requirement("app<2"))]}, "the stack asks for app<2"),
        ([OLD, file("app-2.tar.gz", version=Version("2"))], {}, "only a source distribution"),
        ([OLD, file("app-2-py3-none-any.whl", requires_python=">=3.13")], {}, "requires Python >=3.13"),
        ([OLD, file("app-2-cp312-cp312-manylinux_2_39_x86_64.whl")], {}, "need glibc 2.39"),
        ([OLD, file("app-2-py3-none-any.whl", yanked="broken")], {}, "yanked"),
        ([OLD, NEW], {"metadata": {canonicalize_name("torch"): metadata("torch", "app==1")}},
         "torch 2.9.1+cu130 requires app==1"),
        ([OLD, NEW], {"kept": frozenset({APP})}, "--upgrade=app"),
        ([OLD, NEW], {}, "does not go together"),
    ],
)  # fmt: skip
def test_why_a_newer_one_was_not_taken(files: list[object], changes: dict[str, object], why: str) -> None:
    found, later = find_passed_over(APP, files, chosen(**changes), lambda f: None)  # type: ignore[arg-type]
    assert found is not None and found.version == "2" and found.chosen == "1" and later is None
    assert why in found.why


def test_what_the_newer_one_needs_is_not_there() -> None:
    found, _ = find_passed_over(APP, [OLD, NEW], chosen(), lambda f: metadata("app", "torch==2.11.0"))
    assert found is not None and found.why == "it requires torch==2.11.0, locked is 2.9.1+cu130"


def test_an_override_is_nobodys_fault() -> None:
    pins = {canonicalize_name("torch"): metadata("torch", "app==1")}
    asked = [("the stack overrides it as", Requirement("app==1"))]
    found, _ = find_passed_over(
        APP, [OLD, NEW], chosen(metadata=pins, asked=asked, overridden=frozenset({APP})), lambda f: None
    )
    assert found is not None and found.why == "the stack overrides it as app==1"


def test_what_came_after_as_of_is_told_apart() -> None:
    day = datetime(2025, 1, 1, tzinfo=timezone.utc)
    late = file("app-3-py3-none-any.whl", upload_time=day.replace(year=2026))
    found, later = find_passed_over(APP, [OLD, NEW, late], chosen(as_of=day), lambda f: None)
    assert found is not None and found.version == "2" and later == "3"
    assert find_passed_over(APP, [OLD, late], chosen(as_of=day), lambda f: None) == (None, "3")


def test_a_prerelease_is_no_news_unless_one_was_chosen() -> None:
    ahead = file("app-2rc1-py3-none-any.whl")
    assert find_passed_over(APP, [OLD, ahead], chosen(), lambda f: None) == (None, None)
    versions = {APP: Version("2rc0")}
    found, _ = find_passed_over(APP, [OLD, ahead], chosen(versions=versions), lambda f: None)
    assert found is not None and found.version == "2rc1"


# ---------------------------------------------------------------- changes


def test_changes() -> None:
    old = replace(FULL, wheels=(wheel("a"), wheel("b", "2.0"), wheel("c"), wheel("d"), wheel("e")))
    rebuilt = wheel("c", filename="c-1.0-2-py3-none-any.whl", sha256=Digest.of(b"2"))
    new = replace(
        FULL,
        wheels=(wheel("a", "1.1"), wheel("b", "1.0"), rebuilt, wheel("d", index="vendor"), wheel("f")),
        debs=(replace(FULL.debs[0], version="2.36-9+deb12u14"),),
        base=replace(FULL.base, index=Digest.of(b"9")) if FULL.base else None,
        overrides=(),
        patches=(replace(FULL.patches[0], sha256=Digest.of(b"7")),),
        python=Release("3.12"),
    )
    found = [(c.kind, c.what, c.name) for c in describe(old, new)]
    assert found == [
        ("upgraded", "wheel", "a"), ("downgraded", "wheel", "b"), ("rebuilt", "wheel", "c"),
        ("moved", "index", "d"), ("removed", "wheel", "e"), ("added", "wheel", "f"),
        ("changed", "deb", "libc6"), ("changed", "base", "base"), ("removed", "override", "kernel==1"),
        ("changed", "patch", "app: patches/a.patch"), ("changed", "python", "python"),
    ]  # fmt: skip
    lines = [str(c) for c in describe(old, new)]
    assert lines[0] == "↑ a 1.0 → 1.1" and lines[1] == "↓ b 2.0 → 1.0" and lines[4] == "- e 1.0"
    assert lines[2] == "~ c c-1.0-py3-none-any.whl → c-1.0-2-py3-none-any.whl"


def test_no_changes_and_a_first_lock() -> None:
    assert describe(FULL, FULL) == ()
    assert [c.kind for c in describe(None, FULL)] == ["added"] * 3


def test_a_replaced_file_of_the_same_name_is_a_change() -> None:
    other = replace(FULL, wheels=(replace(FULL.wheels[0], sha256=Digest.of(b"x")), *FULL.wheels[1:]))
    (change,) = describe(FULL, other)
    assert change.kind == "rebuilt" and change.old != change.new


# ---------------------------------------------------------------- freshness, and what is kept


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"target": Target(python=Release("3.11"))}, "target"),
        ({"base": DebianBase(suite="trixie")}, "base"),
        ({"system": System(packages=("python3.11", "git"), resolve="lock")}, "system"),
        ({"resolve": Resolve(as_of=datetime(2026, 1, 1, tzinfo=timezone.utc))}, "as-of"),
        ({"indexes": ()}, "indexes"),
        ({"layers": (Layer(name="all", requirements=(Requirement("app>=2"),)),)}, "requirements"),
        ({"overrides": ()}, "overrides"),
    ],
)
def test_a_stale_lock_says_what_changed(changes: dict[str, object], part: str) -> None:
    with pytest.raises(LockUnusable, match="stale") as caught:
        check_fresh(stack(**changes), lock_of(stack()))
    assert part in caught.value.seen and caught.value.hint == "imagebuilder lock s"


def test_a_changed_patch_makes_it_stale() -> None:
    layer = stack().layers[0]
    changed = replace(layer, patches=(Patch(path="p.patch", content=PATCH + b"\n"),))
    with pytest.raises(LockUnusable) as caught:
        check_fresh(stack(layers=(changed,)), lock_of(stack()))
    assert caught.value.seen == "changed: patches"


def test_what_resolution_does_not_read_leaves_it_fresh() -> None:
    lock = lock_of(stack())
    renamed = replace(
        stack().layers[0], name="other", requirements=(Requirement("app >= 1"), Requirement("kernel"))
    )
    for same in (
        stack(),
        stack(summary="x", env=(("A", "b"),), waivers=(Waiver(code="gpu.none", reason="r"),)),
        stack(overrides=(Override(requirement=Requirement("kernel == 1"), reason="another reason"),)),
        stack(layers=(renamed,)),
    ):
        check_fresh(same, lock)


def test_kept_versions() -> None:
    assert kept_versions(None, None) == {}
    assert kept_versions(FULL, True) == {}
    assert kept_versions(FULL, None) == {"app": "1.0", "kernel": "0.3.21+cu130"}
    assert kept_versions(FULL, {"App"}) == {"kernel": "0.3.21+cu130"}
    assert kept_versions(FULL, {"libc6"}) == kept_versions(FULL, None)
    with pytest.raises(UsageProblem, match="nothing cannot be upgraded"):
        kept_versions(FULL, {"nothing", "app"})


def test_debian_packages_are_kept_all_or_none() -> None:
    lock = lock_of(stack())
    more = replace(stack().layers[0], requirements=(Requirement("app>=2"),))
    assert kept_debs(stack(layers=(more,)), lock, None) == lock.debs
    assert kept_debs(stack(layers=(more,)), lock, {"app"}) == lock.debs
    assert kept_debs(stack(), lock, {"libc6"}) is None
    assert kept_debs(stack(), lock, True) is None
    assert kept_debs(stack(), None, None) is None
    assert kept_debs(stack(system=System(packages=("git",), resolve="lock")), lock, None) is None


# ---------------------------------------------------------------- patches


def test_a_patch_belongs_to_the_wheel_that_holds_its_files() -> None:
    assert changed_paths(PATCH) == ("app/x.py",)
    members = {"app": {"app/x.py", "app/y.py"}, "kernel": {"kernel/x.py"}}
    (found,) = locked_patches(stack(), lambda name: members[name])
    assert (found.package, found.path, found.sha256) == ("app", "p.patch", Digest.of(PATCH))


@pytest.mark.parametrize(
    ("members", "content", "problem"),
    [
        ({"app": set(), "kernel": set()}, PATCH, "belongs to no package"),
        ({"app": {"app/x.py"}, "kernel": {"app/x.py"}}, PATCH, "belongs to several package"),
        ({"app": {"app/x.py"}, "kernel": set()}, b"not a diff", "changes no file"),
        (
            {"app": {"app/x.py"}, "kernel": set()},
            b"--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+x\n",
            "changes no file",
        ),
    ],
)
def test_a_patch_that_belongs_nowhere(members: dict[str, set[str]], content: bytes, problem: str) -> None:
    layer = replace(stack().layers[0], patches=(Patch(path="p.patch", content=content),))
    with pytest.raises(Unresolvable, match=problem):
        locked_patches(stack(layers=(layer,)), lambda name: members[name])


def test_the_shipped_patches_name_files() -> None:
    patches = [p for path in shipped_stacks() for layer in load_stack(path).layers for p in layer.patches]
    assert patches and all(changed_paths(p.content) for p in patches)


# ---------------------------------------------------------------- uv's words


def test_uvs_answer() -> None:
    text = """a==1.0
    # from https://one.example/simple
b-c @ https://files.example/b_c-1-py3-none-any.whl
# a comment
d==2.9.1+cu130
    # from https://two.example/whl/cu130/
"""
    found = {a.name: (str(a.version), a.index_url, a.url) for a in parse_answer(text)}
    assert found == {
        "a": ("1.0", "https://one.example/simple", None),
        "b-c": ("None", None, "https://files.example/b_c-1-py3-none-any.whl"),
        "d": ("2.9.1+cu130", "https://two.example/whl/cu130/", None),
    }
    with pytest.raises(Unresolvable, match="not understood"):
        parse_answer("what is this\n")


EXPLANATIONS = Path(__file__).parent / "uv_explanations"


@pytest.mark.parametrize("path", sorted(EXPLANATIONS.glob("*.txt")), ids=lambda p: p.stem)
def test_explanations(path: Path) -> None:
    """Each file: uv's own words, `----`, then lines that our error must have; the first names its class."""
    said, _, wanted = path.read_text().partition("\n----\n")
    kind, *parts = wanted.strip().splitlines()
    error = explain_failure(said, "cu130", TARGET)
    assert type(error).__name__ == kind
    for part in parts:
        assert part in str(error), str(error)
    for unwanted in ("the-stack", "╰─▶", "your requirements"):
        assert unwanted not in str(error)
    assert len(str(error).splitlines()) <= 9
