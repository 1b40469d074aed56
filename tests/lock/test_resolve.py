"""Locking against real indexes on loopback, with the real uv."""

from __future__ import annotations

import re
import stat
from datetime import datetime, timezone
from pathlib import Path

import pytest

from imagebuilder.errors import ArtefactUnusable, MachineLacks, StackInvalid, Unresolvable, UsageProblem
from imagebuilder.index.http import Denied
from imagebuilder.lock.model import HASH_COMPUTED, HASH_FROM_INDEX
from imagebuilder.lock.pylock import format_lock, parse_lock
from imagebuilder.settings import Login
from imagebuilder.values import Digest
from tests.lock.conftest import World
from tests.support.http_server import Fault
from tests.support.mirror import publish_sdist


def versions(lock: object) -> dict[str, str]:
    return {w.name: w.version for w in lock.wheels}  # type: ignore[attr-defined]


def bound(world: World, name: str = "vendor", **index: object) -> tuple[object, str]:
    """An explicit index and the TOML that binds a layer to it."""
    made = world.server.index(f"/{name}", form="html")
    toml = f"""
[[index]]
name = "{name}"
url = "{made.url}"
explicit = true
"""
    return made, toml


def bound_layer(name: str, *requirements: str) -> str:
    return f'\n[[layer]]\nname = "{name}-layer"\nindex = "{name}"\nrequirements = {list(requirements)!r}\n'


def test_a_closure_with_markers_and_extras(world: World) -> None:
    world.put(
        "app", "1.0", requires=["lib[fast]>=1", "win; sys_platform == 'win32'", "old; python_version < '3.9'"]
    )
    world.put(
        "lib", "1.5", requires=["speed; extra == 'fast'", "docs; extra == 'docs'"], extras=["fast", "docs"]
    )
    world.put("speed", "2.0")
    lock = world.lock(world.stack("app"))
    assert versions(lock) == {"app": "1.0", "lib": "1.5", "speed": "2.0"}
    assert lock.by_name["app"].requires == ("lib",)
    assert lock.by_name["lib"].requires == ("speed",)
    assert lock.by_name["lib"].extras == ("fast",)
    assert lock.by_name["lib"].hash_origin == HASH_FROM_INDEX
    assert lock.by_name["lib"].path == "wheels/s/lib-1.5-py3-none-any.whl"
    assert lock.base is not None and lock.base.manifest is None
    assert re.fullmatch(r"uv \d+\.\d+\.\d+", lock.resolver)
    assert parse_lock(format_lock(lock)) == lock


def test_a_lock_names_no_host(world: World) -> None:
    made, toml = bound(world)
    world.put("kernel", "1+cu130", index=made)
    world.put("app", "1.0")
    text = format_lock(world.lock(world.stack("app", top=toml + bound_layer("vendor", "kernel"))))
    assert "://" not in text and "127.0.0.1" not in text


def test_another_mirror_gives_the_same_lock(world: World) -> None:
    mirror = world.server.index("/mirror", form="json", relative=True)
    for index in (None, mirror):
        world.put("app", "1.0", index=index, requires=["lib"], upload_time="2025-06-01T00:00:00Z")
        world.put("lib", "1.0", index=index, upload_time="2025-06-01T00:00:00Z")
    other = world.elsewhere(default_index=mirror.url)
    stack = world.stack("app")
    assert format_lock(world.lock(stack)) == format_lock(other.lock(stack))


def test_a_bound_package_never_comes_from_another_index(world: World) -> None:
    made, toml = bound(world)
    world.put("kernel", "1.0+cu130", index=made)
    world.put("kernel", "9.0")
    world.put("app", "1.0", requires=["kernel"])
    lock = world.lock(world.stack("app", top=toml + bound_layer("vendor", "kernel")))
    assert (lock.by_name["kernel"].version, lock.by_name["kernel"].index) == ("1.0+cu130", "vendor")
    assert lock.by_name["app"].index == "default"


def test_an_override_does_not_undo_the_binding(world: World) -> None:
    """uv forgets the index of a package that is overridden, and would take the attacker's."""
    made, toml = bound(world)
    world.put("kernel", "0.6.4+cu130", index=made, requires=["runtime"])
    world.put("kernel", "0.6.5+cu130", index=made)
    world.put("kernel", "0.6.4")
    world.put("kernel", "9.0")
    world.put("runtime", "1.0")
    world.put("app", "1.0", requires=["kernel==0.6.3"])
    override = '\n[[override]]\nrequirement = "kernel==0.6.4"\nreason = "a test"\n'
    lock = world.lock(world.stack("app", top=toml + bound_layer("vendor", "kernel") + override))
    assert (lock.by_name["kernel"].version, lock.by_name["kernel"].index) == ("0.6.4+cu130", "vendor")
    assert lock.by_name["kernel"].requires == ("runtime",)
    assert lock.by_name["kernel"].url is None
    assert lock.overrides[0].reason == "a test"


def test_an_override_of_a_bound_package_that_its_index_has_not(world: World) -> None:
    made, toml = bound(world)
    world.put("kernel", "0.6.3+cu130", index=made)
    world.put("kernel", "0.6.4")
    world.put("app", "1.0", requires=["kernel"])
    override = '\n[[override]]\nrequirement = "kernel==0.6.4"\nreason = "a test"\n'
    with pytest.raises(Unresolvable, match="has no wheel for the target on index vendor") as caught:
        world.lock(world.stack("app", top=toml + bound_layer("vendor", "kernel") + override))
    assert "0.6.3+cu130" in caught.value.seen


def test_the_local_version_is_part_of_the_pin(world: World) -> None:
    made, toml = bound(world)
    for index, version in ((made, "2.9.1+cu130"), (made, "2.10.0+cu130"), (None, "2.9.1"), (None, "2.10.0")):
        world.put("torch", version, index=index)
    world.put("vision", "0.24", requires=["torch==2.9.1"])
    lock = world.lock(world.stack("vision", top=toml + bound_layer("vendor", "torch==2.9.1+cu130")))
    assert lock.by_name["torch"].filename == "torch-2.9.1+cu130-py3-none-any.whl"


def test_an_override_replaces_what_wheels_ask_for(world: World) -> None:
    world.put("torch", "2.9.1", requires=["cudnn==9.10"])
    world.put("cudnn", "9.10")
    world.put("cudnn", "9.16")
    top = '\n[[override]]\nrequirement = "cudnn==9.16"\nreason = "SGLang refuses less than 9.15"\n'
    lock = world.lock(world.stack("torch", top=top))
    assert versions(lock) == {"torch": "2.9.1", "cudnn": "9.16"}
    assert lock.by_name["torch"].requires == ("cudnn",)


def test_an_index_without_hashes_is_hashed_here(world: World) -> None:
    made, toml = bound(world)
    world.put("kernel", "1.0+cu130", index=made, hashed=False, sized=False)
    world.put("app", "1.0")
    stack = world.stack("app", top=toml + bound_layer("vendor", "kernel"))
    wheel = world.lock(stack).by_name["kernel"]
    data = (world.folder / "made" / wheel.filename).read_bytes()
    assert (wheel.hash_origin, wheel.sha256, wheel.size) == (HASH_COMPUTED, Digest.of(data), len(data))
    assert world.cache.artefact(wheel.sha256) is not None
    path = f"/files/kernel/{wheel.filename}"
    before = world.server.sent(path)
    assert world.lock(stack).by_name["kernel"] == wheel
    assert world.server.sent(path) == before, "hashed once, not again"


def test_hashing_survives_a_broken_connection_and_a_server_without_ranges(world: World) -> None:
    made, toml = bound(world)
    big = {"kernel/blob.bin": bytes(range(256)) * 2000}
    address = world.put("kernel", "1.0", index=made, hashed=False, sized=False, files=big)
    world.put("app", "1.0")
    stack = world.stack("app", top=toml + bound_layer("vendor", "kernel"))
    path = address.removeprefix(world.server.url)
    world.server.fail(path, Fault(), Fault(), Fault(drop_after=100))
    one = world.lock(stack).by_name["kernel"]
    world.server.ranges = False
    assert world.elsewhere().lock(stack).by_name["kernel"] == one


def test_as_of_bounds_what_has_a_date_and_exempts_what_has_none(world: World) -> None:
    made, toml = bound(world)
    world.put("kernel", "1.0", index=made)
    world.put("app", "1.0", upload_time="2025-01-01T00:00:00Z")
    world.put("app", "1.1", upload_time="2026-01-01T00:00:00Z")
    as_of = "\n[resolve]\nas-of = 2025-06-01T00:00:00Z\n"
    lock = world.lock(world.stack("app", top=toml + bound_layer("vendor", "kernel") + as_of))
    assert versions(lock) == {"app": "1.0", "kernel": "1.0"}
    assert lock.as_of == datetime(2025, 6, 1, tzinfo=timezone.utc)
    assert any("no upload times on vendor" in text for text in world.told.warnings)
    assert any("app 1.1 is newer than" in text for text in world.told.notes)
    assert lock.passed_over == ()


def test_as_of_is_an_instant_and_counts_for_each_file(world: World) -> None:
    world.put("app", "1.0", tag="py3-none-any", upload_time="2025-06-01T10:00:00Z")
    world.put("app", "1.0", tag="cp312-cp312-manylinux_2_17_x86_64", upload_time="2025-06-01T12:00:00Z")
    as_of = "\n[resolve]\nas-of = 2025-06-01T11:00:00Z\n"
    assert world.lock(world.stack("app", top=as_of)).by_name["app"].filename.endswith("py3-none-any.whl")
    later = "\n[resolve]\nas-of = 2025-06-01T12:00:00Z\n"
    assert "cp312" in world.lock(world.stack("app", top=later)).by_name["app"].filename


def test_a_default_index_without_dates_is_not_emptied(world: World) -> None:
    world.put("app", "1.0", upload_time=None)
    as_of = "\n[resolve]\nas-of = 2025-06-01T00:00:00Z\n"
    assert versions(world.lock(world.stack("app", top=as_of))) == {"app": "1.0"}
    assert any("no upload times on default" in text for text in world.told.warnings)


def test_one_version_under_several_build_tags(world: World) -> None:
    for build in ("", "2", "3"):
        world.put("torch", "2.10.0", tag="cp312-cp312-manylinux_2_28_x86_64", build=build)
    lock = world.lock(world.stack("torch"))
    assert lock.by_name["torch"].filename == "torch-2.10.0-3-cp312-cp312-manylinux_2_28_x86_64.whl"


def test_the_targets_python_and_glibc_decide_not_this_machines(world: World) -> None:
    for tag in ("cp39-cp39-manylinux_2_17_x86_64", "cp313-cp313-manylinux_2_34_x86_64"):
        world.put("kernel", "1.0", tag=tag)
    assert "cp39" in world.lock(world.stack("kernel", python="3.9")).by_name["kernel"].filename
    assert "cp313" in world.lock(world.stack("kernel", python="3.13")).by_name["kernel"].filename
    with pytest.raises(Unresolvable, match="has no wheel for CPython 3") as caught:
        world.lock(world.stack("kernel", python="3.13", target='glibc = "2.31"'))
    assert "manylinux_2_34" in caught.value.hint


def test_versions_are_kept_until_an_upgrade_is_asked_for(world: World) -> None:
    for name in ("one", "two"):
        world.put(name, "1.0")
    stack = world.stack("one", "two")
    first = world.lock(stack)
    for name in ("one", "two"):
        world.put(name, "2.0")
    world = world.elsewhere()
    kept = world.lock(stack, previous=first)
    assert versions(kept) == {"one": "1.0", "two": "1.0"}
    assert "--upgrade=one" in kept.passed_over[0].why
    assert versions(world.lock(stack, previous=first, upgrade={"two"})) == {"one": "1.0", "two": "2.0"}
    assert versions(world.lock(stack, previous=first, upgrade=True)) == {"one": "2.0", "two": "2.0"}
    assert versions(world.lock(stack)) == {"one": "2.0", "two": "2.0"}
    with pytest.raises(UsageProblem, match="three cannot be upgraded"):
        world.lock(stack, previous=first, upgrade={"three"})


def test_a_kept_version_with_a_local_part(world: World) -> None:
    made, toml = bound(world)
    world.put("kernel", "1.0+cu130", index=made)
    world.put("app", "1.0")
    stack = world.stack("app", top=toml + bound_layer("vendor", "kernel"))
    first = world.lock(stack)
    world.put("kernel", "1.1+cu130", index=made)
    assert versions(world.elsewhere().lock(stack, previous=first))["kernel"] == "1.0+cu130"


def test_a_version_inside_that_is_not_the_file_names(world: World) -> None:
    made, toml = bound(world)
    world.put("kernel", "0.3.21+cu130", index=made, inner_version="0.3.21")
    world.put("app", "1.0")
    lock = world.lock(world.stack("app", top=toml + bound_layer("vendor", "kernel==0.3.21+cu130")))
    assert lock.by_name["kernel"].metadata_version == "0.3.21"
    assert lock.by_name["kernel"].version == "0.3.21+cu130"
    assert any("says inside that its version is 0.3.21" in text for text in world.told.warnings)


def test_a_file_that_is_no_wheels_name_is_passed_over(world: World) -> None:
    world.default.add("kernel", "kernel_cp312_cu130.whl", b"?", upload_time="2025-06-01T00:00:00Z")
    world.put("kernel", "1.0")
    assert versions(world.lock(world.stack("kernel"))) == {"kernel": "1.0"}


def test_a_requirement_with_an_address(world: World) -> None:
    elsewhere = world.server.index("/nowhere", form="html")
    url = world.put("kernel", "1.0+mine", index=elsewhere, requires=["lib"])
    world.put("lib", "1.0")
    stack = world.stack(f"kernel @ {url}")
    wheel = world.lock(stack).by_name["kernel"]
    assert (wheel.url, wheel.index, wheel.hash_origin) == (url, None, HASH_COMPUTED)
    assert wheel.requires == ("lib",)
    pinned = world.lock(world.stack(f"kernel @ {url}#sha256={wheel.sha256.hex}")).by_name["kernel"]
    assert (pinned.hash_origin, pinned.url, pinned.sha256) == (HASH_FROM_INDEX, url, wheel.sha256)


def test_a_login_reaches_the_index_and_nothing_else(world: World) -> None:
    made, toml = bound(world)
    world.server.login("/vendor", "me", "hunter2")
    world.server.login("/files/kernel", "me", "hunter2")
    world.put("kernel", "1.0+cu130", index=made)
    world.put("app", "1.0")
    stack = world.stack("app", top=toml + bound_layer("vendor", "kernel"))
    with pytest.raises(Denied) as caught:
        world.lock(stack)
    assert "hunter2" not in str(caught.value)
    known = world.elsewhere(logins={made.url: Login(username="me", password="hunter2")})  # type: ignore[attr-defined]
    lock = known.lock(stack)
    assert versions(lock)["kernel"] == "1.0+cu130"
    assert "hunter2" not in format_lock(lock)


def test_netrc_serves_uv_as_well(world: World) -> None:
    world.server.login("/simple", "me", "hunter2")
    world.put("app", "1.0")
    netrc = world.folder / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password hunter2\n")
    netrc.chmod(stat.S_IRUSR)
    assert versions(world.elsewhere(netrc=netrc).lock(world.stack("app"))) == {"app": "1.0"}


def test_no_configuration_of_uv_or_pip_gets_in(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    world.put("app", "1.0")
    world.put("app", "2.0")
    (tmp_path / "constraints.txt").write_text("app==1.0\n")
    for name in ("UV_CONSTRAINT", "PIP_CONSTRAINT"):
        monkeypatch.setenv(name, str(tmp_path / "constraints.txt"))
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    (tmp_path / "uv.toml").write_text('[pip]\nresolution = "lowest"\n')
    monkeypatch.chdir(tmp_path)
    assert versions(world.lock(world.stack("app"))) == {"app": "2.0"}


@pytest.mark.parametrize(
    ("requirement", "problem", "advice"),
    [
        ("sdist-only", "sdist-only==1.0 has only source distributions", "pip wheel"),
        ("nothing", "nothing is not on its index", "spelling"),
        ("app==9", "there is no app==9 on its index", "recon"),
        ("windows", "windows==1.0 has no wheel", "win_amd64"),
        ("future", "future", ""),
    ],
)
def test_what_cannot_be_had_is_said(world: World, requirement: str, problem: str, advice: str) -> None:
    world.put("app", "1.0")
    publish_sdist(world.default, "sdist-only", "1.0", upload_time="2025-06-01T00:00:00Z")
    world.put("windows", "1.0", tag="cp312-cp312-win_amd64")
    world.put("future", "1.0", requires_python=">=3.14")
    with pytest.raises(Unresolvable) as caught:
        world.lock(world.stack(requirement))
    text = str(caught.value)
    assert problem in text and advice in text
    assert "the-stack" not in text and world.server.host not in text


def test_a_contradiction_is_explained(world: World) -> None:
    world.put("torch", "2.10.0", requires=["cuda-bindings==12.9.4"])
    for version in ("13.0.0", "13.0.1", "13.1.0"):
        world.put("cuda-python", version, requires=[f"cuda-bindings~={version}"])
        world.put("cuda-bindings", version)
    world.put("cuda-bindings", "12.9.4")
    with pytest.raises(Unresolvable, match="contradict each other") as caught:
        world.lock(world.stack("torch==2.10.0", "cuda-python>=13"))
    assert "torch==2.10.0" in caught.value.seen and "[[override]]" in caught.value.hint
    assert caught.value.exit_code == 12


def test_a_wheel_that_is_another_package_inside(world: World) -> None:
    world.put("app", "1.0", inner_name="other")
    with pytest.raises((ArtefactUnusable, Unresolvable)) as caught:
        world.lock(world.stack("app"))
    assert "other" in str(caught.value)


def test_an_index_that_fails(world: World) -> None:
    world.put("app", "1.0")
    world.server.login("/simple", "someone", "else")
    with pytest.raises(Denied, match="page of app on the index 'default'") as caught:
        world.lock(world.stack("app"))
    assert "401" in caught.value.seen and "netrc" in caught.value.hint


def test_a_base_that_does_not_say_its_glibc(world: World) -> None:
    world.put("app", "1.0")
    stack = world.stack("app", base=f'image = "example/cuda:13.0@{BASE_DIGEST}"')
    with pytest.raises(StackInvalid, match="1 problem") as caught:
        world.lock(stack)
    assert "target.glibc" in str(caught.value)


BASE_DIGEST = "sha256:" + "1" * 64


def test_a_searched_index_comes_before_the_default_one(world: World) -> None:
    made = world.server.index("/company", form="html")
    world.put("lib", "1.0+ours", index=made)
    world.put("lib", "2.0")
    world.put("app", "1.0", requires=["lib"])
    top = f'[[index]]\nname = "company"\nurl = "{made.url}"\n'
    lock = world.lock(world.stack("app", top=top))
    assert {w.name: (w.version, w.index) for w in lock.wheels} == {
        "app": ("1.0", "default"),
        "lib": ("1.0+ours", "company"),
    }


def test_an_index_in_a_folder(world: World) -> None:
    folder = world.folder / "disk" / "simple" / "kernel"
    folder.mkdir(parents=True)
    world.put("kernel", "1.0+cu130", index=world.server.index("/unused"))
    name = "kernel-1.0+cu130-py3-none-any.whl"
    (folder / name).write_bytes((world.folder / "made" / name).read_bytes())
    (folder / "index.html").write_text(f'<a href="{name}">{name}</a>')
    _, toml = bound(world)
    world.put("app", "1.0")
    stack = world.stack("app", top=toml + bound_layer("vendor", "kernel"))
    carried = world.elsewhere(index_urls={"vendor": folder.parent.as_uri()})
    wheel = carried.lock(stack).by_name["kernel"]
    assert (wheel.index, wheel.hash_origin) == ("vendor", HASH_COMPUTED)


def test_a_requirement_that_a_marker_leaves_out(world: World) -> None:
    world.put("app", "1.0")
    assert versions(world.lock(world.stack("app", "gone; sys_platform == 'win32'"))) == {"app": "1.0"}


def test_a_yanked_version_is_taken_only_when_it_is_pinned(world: World) -> None:
    world.put("app", "1.0")
    world.put("app", "1.1", yanked="broken")
    lock = world.lock(world.stack("app"))
    assert versions(lock) == {"app": "1.0"} and "yanked" in lock.passed_over[0].why
    assert versions(world.lock(world.stack("app==1.1"))) == {"app": "1.1"}
    assert any("yanked" in text for text in world.told.warnings)


def test_a_cache_that_cannot_be_written(world: World) -> None:
    world.put("app", "1.0")
    blocked = world.folder / "file"
    blocked.write_text("not a folder")
    with pytest.raises(MachineLacks, match="cannot be written"):
        world.elsewhere(cache_dir=blocked).lock(world.stack("app"))


def test_uv_is_ended_by_the_kernel(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.put("app", "1.0")
    program = world.folder / "uv"
    program.write_text("#!/bin/sh\necho out of memory >&2; kill -KILL $$\n")
    program.chmod(0o755)
    monkeypatch.setattr("imagebuilder.lock.uv._uv_binary", lambda: str(program))
    with pytest.raises(MachineLacks, match="uv was ended") as caught:
        world.lock(world.stack("app"))
    assert caught.value.seen == "Killed; out of memory" and "memory" in caught.value.hint
