"""What no shipped set shows: made-up wheels, one for each kind of finding, and hostile or empty ones."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebuilder.checks.model import Finding
from imagebuilder.checks.registry import find
from imagebuilder.checks.subject import Subject
from imagebuilder.facts.elf import ElfFacts, VersionNeed, Wanted
from imagebuilder.facts.filesystem import Assumed
from imagebuilder.facts.gpu import GpuCode, GpuGroup
from imagebuilder.facts.layouts import Layout
from imagebuilder.facts.record import FileFact, Literal, Preload, WheelFacts, decode, encode
from imagebuilder.facts.tools import Tool
from imagebuilder.values import GpuArch
from tests.support.abi_facts import recorded as truth
from tests.support.check_cases import made_subject, subject_of


def wheel(name: str = "made", requires: tuple[str, ...] = (), **fields: Any) -> WheelFacts:
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    metadata += "".join(f"Requires-Dist: {line}\n" for line in requires)
    elf = fields.get("elf", {})
    files = {path: FileFact(crc=0, size=1) for path in {*elf, *fields.get("gpu", {})}}
    return WheelFacts(**{"metadata": metadata, "tags": (), "files": files, "elf": {}, "gpu": {}, **fields})


def library(**fields: Any) -> ElfFacts:
    return ElfFacts(machine="x86_64", **fields)


def codes(subject: Subject) -> dict[str, Finding]:
    return {finding.code: finding for finding in find(subject)}


def test_a_version_that_the_system_lacks(tmp_path: Path) -> None:
    elf = library(
        needed=("libstdc++.so.6",),
        version_needs=(VersionNeed(file="libstdc++.so.6", versions=("GLIBCXX_3.4.99",)),),
    )
    found = codes(made_subject({"made": wheel(elf={"made/_x.abi3.so": elf})}, tmp_path))
    assert found["abi.missing-version"].severity == "error"
    assert "GLIBCXX_3.4.99 of libstdc++.so.6" in found["abi.missing-version"].what


@pytest.mark.parametrize("pinned", [True, False])
def test_a_layout_that_changed(tmp_path: Path, pinned: bool) -> None:
    data = truth()
    row = next(r for r in data.rows if r[4] == "crash-in-constructor")
    facts = data.set_of(row[0])
    extension = data.wheel(row[1])
    if not pinned:  # without METADATA that pins torch and without names of one generation, nobody knows
        markers = {w.name for e in extension.elf.values() for w in e.wanted if "c10" in w.name}
        users = {n for n in markers if "11CppFunction" in n}
        elf = {
            p: replace(e, wanted=tuple(w for w in e.wanted if w.name not in markers or w.name in users))
            for p, e in extension.elf.items()
        }
        extension = replace(extension, metadata="Metadata-Version: 2.1\nName: x\nVersion: 1\n", elf=elf)
    subject = made_subject(
        {**facts, "extension": extension}, tmp_path, versions={"torch": row[0].split("-")[1]}
    )
    found = codes(replace(subject, system=data.system()))
    assert (
        "abi.layout-changed" in found if pinned else {"abi.layout-changed", "abi.layout-unknown"} & set(found)
    )
    about = found.get("abi.layout-changed") or found["abi.layout-unknown"]
    assert about.package == "extension" and "c10::KernelFunction" in about.what


@pytest.mark.parametrize(
    ("torch", "codes_said", "codes_not_said"),
    [
        ("2.8.0", ["abi.layout-changed"], ["abi.layout-unknown"]),
        ("2.9.0", [], ["abi.layout-unknown"]),
        ("2.9.1", [], ["abi.layout-unknown"]),
        ("2.10.0-3", ["abi.undefined-symbol"], ["abi.undefined-symbol"]),
    ],
)
def test_a_build_that_does_not_tell_what_it_is_for(
    tmp_path: Path, torch: str, codes_said: list[str], codes_not_said: list[str]
) -> None:
    """torchcodec 0.8.0 with FFmpeg pins no torch and has no name of one generation; its makers say it."""
    wheels = [f"torch-{torch}-cp311-cp311-manylinux_2_28_x86_64.whl"]
    keep = ["torchcodec", "nvidia-*", "triton"]
    subject = subject_of({"like": "cu128-debian", "keep": keep, "wheels": wheels}, tmp_path)
    needed = sorted({n for e in subject.facts["torchcodec"].elf.values() for n in e.needed})
    ffmpeg = [
        Assumed(soname=n, provider="FFmpeg", symbols="(av|sw)")
        for n in needed
        if n.startswith(("libav", "libsw"))
    ]
    driver = (*subject.tables.driver, *ffmpeg)
    silent = tuple(replace(layout, built=()) for layout in subject.tables.layouts)

    def found(layouts: tuple[Layout, ...]) -> list[str]:
        told = find(replace(subject, tables=replace(subject.tables, driver=driver, layouts=layouts)))
        return sorted({f.code for f in told if f.package == "torchcodec"})

    assert found(subject.tables.layouts) == codes_said
    assert found(silent) == codes_not_said


def test_symbols_that_are_there_but_out_of_scope(tmp_path: Path) -> None:
    data = truth()
    facts = data.set_of(next(name for name in sorted(data.closures) if name.startswith("torch-2.9.1")))
    there = facts["torch"].elf["torch/lib/libc10.so"].names()[0].decode()
    facts["made"] = wheel(elf={"made/_x.abi3.so": library(wanted=(Wanted(name=there),))})
    subject = made_subject(facts, tmp_path, versions={"torch": "2.9.1"})
    found = [f for f in find(replace(subject, system=data.system())) if f.package == "made"]
    assert [(f.code, f.severity) for f in found] == [("abi.not-in-scope", "note")]


def test_code_in_some_fat_binaries_only(tmp_path: Path) -> None:
    groups = tuple(GpuGroup(entries=(GpuArch.parse(a),), count=n) for a, n in (("sm_90", 2), ("sm_120a", 5)))
    made = wheel(elf={"made/_x.abi3.so": library()}, gpu={"made/_x.abi3.so": GpuCode(groups=groups)})
    finding = codes(made_subject({"made": made}, tmp_path))["gpu.partial-code"]
    assert finding.severity == "note" and finding.what.startswith("2 of 7 fat binaries")
    assert finding.evidence == ("2 × sm_90",)


def test_sizes_and_numbers_of_layers(tmp_path: Path) -> None:
    subject = made_subject({"made": wheel()}, tmp_path)
    layers = subject.plan.layers
    large = replace(layers[-1], size=11_000_000_000)
    found = codes(replace(subject, plan=replace(subject.plan, layers=(*layers, large))))
    assert (
        found["image.layer-too-large"].severity == "error" and "GHCR" in found["image.layer-too-large"].what
    )
    many = replace(subject, plan=replace(subject.plan, layers=layers * (128 // len(layers) + 1)))
    assert codes(many)["image.too-many-layers"].severity == "error"
    assert not {c for c in codes(subject) if c.startswith("image.")}


def test_two_commands_of_one_name(tmp_path: Path) -> None:
    facts = {"one": wheel("one", scripts=("serve",)), "two": wheel("two", scripts=("serve", "other"))}
    finding = codes(made_subject(facts, tmp_path))["path.same-script"]
    assert finding.severity == "warning" and "serve" in finding.what


def test_a_requirement_that_is_not_locked(tmp_path: Path) -> None:
    facts = {"made": wheel(requires=("absent>=2", 'ghost; sys_platform == "win32"', "not a requirement!"))}
    finding = codes(made_subject(facts, tmp_path))["require.absent"]
    assert finding.severity == "error" and "absent" in finding.what


def test_a_range_that_only_an_extra_states(tmp_path: Path) -> None:
    lines = ('other>=2; extra == "other"', 'third<1; extra == "dev"', 'fourth>=3; extra == "fourth"')
    facts = {"made": wheel(requires=lines), "other": wheel(), "third": wheel()}
    found = [f for f in find(made_subject(facts, tmp_path)) if f.code == "require.outside-extra"]
    assert [(f.severity, f.package, f.other) for f in found] == [("note", "made", "other")]
    assert found[0].fix == "if it is used: made[other] in the stack's requirements"
    met = made_subject(facts, tmp_path, versions={"other": "2.1"})
    assert "require.outside-extra" not in codes(met)


def test_what_a_wheel_that_was_not_read_may_have_is_no_error(tmp_path: Path) -> None:
    made = wheel(elf={"made/_x.abi3.so": library(needed=("libelsewhere.so.1",))})
    subject = made_subject({"made": made}, tmp_path)
    assert codes(subject)["lib.missing"].severity == "error"
    found = codes(replace(subject, unread={"torch": "it is not here"}))["lib.missing"]
    assert found.severity == "warning" and "not read, and may have it: torch" in found.evidence


def test_an_extension_that_its_package_does_without(tmp_path: Path) -> None:
    elf = {
        "numba/np/ufunc/tbbpool.cpython-311-x86_64-linux-gnu.so": library(needed=("libtbb.so.12",)),
        "numba/core/_core.cpython-311-x86_64-linux-gnu.so": library(needed=("libelsewhere.so.1",)),
    }
    found = find(made_subject({"numba": wheel("numba", elf=elf)}, tmp_path))
    severity = {f.path.rsplit("/", 1)[1].split(".")[0]: (f.code, f.severity) for f in found if f.path}
    assert severity["tbbpool"] == ("lib.missing-for-plugin", "note")
    assert severity["_core"] == ("lib.missing", "error")
    assert any("TBB" in line for f in found for line in f.evidence)


def test_an_override_of_nothing(tmp_path: Path) -> None:
    finding = codes(made_subject({"made": wheel()}, tmp_path))["require.override-unused"]
    assert finding.severity == "warning" and "nothing requires nvidia-cudnn-cu12" in finding.what


def test_a_damaged_library(tmp_path: Path) -> None:
    made = wheel(problems=(("made/_x.abi3.so", "made/_x.abi3.so is a malformed ELF file: …"),))
    finding = codes(made_subject({"made": made}, tmp_path))["stack.damaged-library"]
    assert (finding.severity, finding.path) == ("error", "made/_x.abi3.so")


def test_an_expired_issue_accuses_nobody(tmp_path: Path) -> None:
    subject = made_subject({"nvidia-cudnn-cu12": wheel(), "torch": wheel(), "sglang": wheel()}, tmp_path,
                           versions={"nvidia-cudnn-cu12": "9.10.2.21", "torch": "2.9.1"})  # fmt: skip
    assert codes(subject)["stack.known-issue"].severity == "warning"
    rows = [{**row, "expires": date(2020, 1, 1)} for row in subject.tables.issues]
    late = codes(replace(subject, tables=replace(subject.tables, issues=rows)))
    assert "stack.known-issue" not in late and late["stack.known-issue-expired"].severity == "note"


def test_no_nvcc_for_what_compiles_at_run_time(tmp_path: Path) -> None:
    found = codes(made_subject({"flashinfer-python": wheel()}, tmp_path))
    assert found["toolchain.no-nvcc"].severity == "warning"
    tool = Tool(path="nvidia/cu13/bin/nvcc", release="13.0.88", names=("sm_120",))
    home = "/opt/venv/lib/python3.11/site-packages/nvidia/cu13"
    facts = {"flashinfer-python": wheel(), "nvidia-cuda-nvcc": wheel(tools=(tool,))}
    edit = [["[env]", f'[env]\\nCUDA_HOME = "{home}"']]
    assert not {c for c in codes(made_subject(facts, tmp_path, edit=edit)) if c.startswith("toolchain.")}


@pytest.mark.parametrize(
    ("release", "gpu", "compiles"),
    [
        ("12.8.93", "sm_70", True), ("13.0.88", "sm_70", False), ("13.4.59", "sm_70", False),
        ("12.9.86", "sm_101", True), ("13.0.88", "sm_101", False),
        ("12.8.93", "sm_89", True), ("13.0.88", "sm_75", True), ("12.8.93", "sm_37", False),
    ],
)  # fmt: skip
def test_what_a_compiler_no_longer_compiles_for(
    release: str, gpu: str, compiles: bool, tmp_path: Path
) -> None:
    """Its names tell what it had, not only what it has: 13.0.88 says sm_70, and refuses it."""
    names = ("sm_37", "sm_70", "sm_75", "sm_89", "sm_101")
    tool = Tool(path="triton/backends/nvidia/bin/ptxas", release=release, names=names)
    edit = [['gpus = ["sm_120"]', f'gpus = ["{gpu}"]']]
    found = codes(made_subject({"triton": wheel("triton", tools=(tool,))}, tmp_path, edit=edit))
    assert ("toolchain.ptxas-too-old" not in found) is compiles


REFUSES, UNKNOWN = "driver.image-refuses", "driver.release-not-known"
BRANDS = ("unknown", "grid", "tesla", "nvidia", "vws")
OLD_BRANCHES = " ".join(f"brand={brand},driver>=550,driver<551" for brand in BRANDS)


@pytest.mark.parametrize(
    ("driver", "said", "code", "severity"),
    [
        ("580.65.06", "cuda>=13.0", "", ""),
        ("570.124.06", "cuda>=13.0", REFUSES, "error"),
        ("570.124.06", "cuda>=13.0 driver>=550,driver<580", "", ""),
        ("570.124.06", "cuda>=13.0 brand=tesla,driver>=550,driver<580", REFUSES, "warning"),
        ("550.54.15", f"cuda>=13.0 {OLD_BRANCHES}", REFUSES, "warning"),
        ("560.28.03", f"cuda>=13.0 {OLD_BRANCHES}", REFUSES, "error"),
        ("570.124.06", "cuda>=13.0,brand=tesla", REFUSES, "error"),
        ("580.65.06", "arch=x86_64,cuda>=13.0", REFUSES, "warning"),
        ("570.124.06", "  ", "", ""),
        ("535.104.05", "cuda>=12.2", "", ""),
        ("535.104.05", "cuda>=12.3", REFUSES, "error"),
        ("615.71.09", "cuda>=13.4", "", ""),
        ("615.71.09", "cuda>=13.5", REFUSES, "error"),
        ("620.10.01", "cuda>=13.5", UNKNOWN, "warning"),
        ("620.10.01", "cuda>=13.5 driver>=610", "", ""),
        ("570.124.06", "nonsense=>", REFUSES, "error"),
        ("440.33.01", "cuda>=11.0", REFUSES, "error"),
    ],
)
def test_what_the_base_asks_of_the_driver(
    tmp_path: Path, driver: str, said: str, code: str, severity: str
) -> None:
    edit = [['driver = "570.124.06"', f'driver = "{driver}"']]
    subject = made_subject({"made": wheel()}, tmp_path, edit=edit)
    found = codes(replace(subject, base_env={"NVIDIA_REQUIRE_CUDA": said}))
    assert {c for c in found if c in (REFUSES, UNKNOWN)} == ({code} if code else set())
    if code:
        assert (found[code].key, found[code].severity) == ("base", severity)
    if severity == "warning" and code == REFUSES:
        assert "only on hosts of" in found[code].what
    env = {"NVIDIA_REQUIRE_CUDA": said, "NVIDIA_DISABLE_REQUIRE": "true"}
    assert not {REFUSES, UNKNOWN} & set(codes(replace(subject, base_env=env)))


def test_capabilities_of_the_driver(tmp_path: Path) -> None:
    edit = [['"compute,utility"', '"utility,graphics"']]
    found = codes(made_subject({"made": wheel()}, tmp_path, edit=edit))
    assert found["driver.capability-absent"].severity == "error"


def test_a_driver_beside_what_looks_there_by_itself(tmp_path: Path) -> None:
    """No search path leads to it, but the RPATH of the library that needs it does."""
    cuda = library(soname="libcuda.so.1")
    for runpath, told in ((("$ORIGIN/lib",), True), (("$ORIGIN/../elsewhere",), False)):
        needing = library(needed=("libcuda.so.1",), runpath=runpath)
        elf = {"made/_m.abi3.so": needing, "made/lib/libcuda.so.1": cuda}
        found = codes(made_subject({"made": wheel(elf=elf)}, tmp_path))
        assert ("lib.shadows-driver" in found) is told
        if told:
            assert found["lib.shadows-driver"].path == "made/lib/libcuda.so.1"
            assert found["lib.shadows-driver"].evidence[1] == "found through the RPATH of made/_m.abi3.so"


def test_what_is_missing_is_told_with_what_to_do(tmp_path: Path) -> None:
    """A library that nobody knows beside one that a system package has; a symbol beside its neighbour."""
    strange = library(needed=("libghost.so.3", "libnuma.so.1"))
    near = wheel(elf={"near/libnear.so": library(soname="libnear.so")})
    wanting = library(needed=("libnear.so",), runpath=("$ORIGIN/../near",), wanted=(Wanted(name="far_off"),))
    facts = {
        "strange": wheel(elf={"strange/_s.abi3.so": strange}),
        "near": near,
        "wanting": wheel(elf={"wanting/_w.abi3.so": wanting}),
        "alone": wheel(elf={"alone/_a.abi3.so": library(wanted=(Wanted(name="far_off"),))}),
    }
    found = {(f.code, f.package): f for f in find(made_subject(facts, tmp_path, without=["libnuma.so.1"]))}
    assert found["lib.missing", "strange"].fix == (
        "[system] packages += libnuma1; install what has libghost.so.3, or put its folder on the search path"
    )
    told = found["abi.undefined-symbol", "wanting"].fix
    assert told == "imagebuilder matrix wanting --against near lists the releases that go together"
    assert found["abi.undefined-symbol", "alone"].fix.endswith("imagebuilder recon alone")


def test_a_folder_of_stubs_in_the_base_environment(tmp_path: Path) -> None:
    subject = made_subject({"made": wheel()}, tmp_path)
    env = tuple((k, v) for k, v in subject.stack.env if k != "LD_LIBRARY_PATH")
    subject = replace(subject, stack=replace(subject.stack, env=env))
    assert "lib.shadows-driver" not in codes(subject)
    found = codes(replace(subject, base_env={"LD_LIBRARY_PATH": "/usr/local/cuda/compat"}))
    assert found["lib.shadows-driver"].severity == "error"


HOME = "/opt/venv/lib/python3.11/site-packages/nvidia/cu13"
NVCC = Tool(path="nvidia/cu13/bin/nvcc", release="13.0.88", names=("sm_120",))


def toolkit(tmp_path: Path, versions: dict[str, str], **more: Any) -> dict[str, Finding]:
    """A set with nvcc 13.0 in a wheel, and packages of these versions that have files beside it."""
    header = {"nvidia/cu13/include/x.h": FileFact(crc=0, size=1)}
    facts = {name: wheel(name, files=header) for name in versions}
    facts["nvidia-cuda-nvcc"] = wheel("nvidia-cuda-nvcc", tools=(NVCC,))
    edit = [["[env]", f'[env]\nCUDA_HOME = "{HOME}"']]
    return codes(made_subject({**facts, **more}, tmp_path, edit=edit, versions=versions))


def test_a_compiler_and_headers_of_different_releases(tmp_path: Path) -> None:
    found = toolkit(tmp_path, {"nvidia-cuda-cccl": "13.1.70", "nvidia-cuda-crt": "13.0.88"})
    skew = found["toolchain.header-skew"]
    assert (skew.severity, skew.package, skew.other) == ("error", "nvidia-cuda-cccl", "nvidia-cuda-nvcc")
    assert "13.0" in skew.fix
    fine = {"nvidia-cuda-cccl": "13.0.85", "nvidia-cuda-crt": "13.0.88", "nvidia-cuda-runtime": "13.0.96"}
    assert "toolchain.header-skew" not in toolkit(tmp_path, fine)


def test_a_compiler_of_another_major(tmp_path: Path) -> None:
    for major, wrong in (("12", True), ("13", False)):
        runtime = library(needed=(f"libcudart.so.{major}",))
        torch = wheel("torch", elf={"torch/lib/libtorch_cuda.so": runtime})
        found = toolkit(tmp_path, {}, torch=torch)
        assert ("toolchain.nvcc-of-another-major" in found) is wrong


@pytest.mark.parametrize(
    ("gpu", "companion", "told"),
    [("sm_100", "", True), ("sm_100", "flashinfer-cubin", False), ("sm_120", "", False)],
)
def test_kernels_that_nothing_brings(tmp_path: Path, gpu: str, companion: str, told: bool) -> None:
    facts = {"flashinfer-python": wheel(), **({companion: wheel()} if companion else {})}
    found = codes(made_subject(facts, tmp_path, edit=[['"sm_120"', f'"{gpu}"']]))
    assert ("gpu.not-precompiled" in found) is told
    if told:
        assert found["gpu.not-precompiled"].fix == "flashinfer-cubin==1.0"


WORDS = st.text(alphabet="abc/.-_$ORIGIN{}()*?[]\\\n\x00é=@", max_size=12)
SONAMES = st.one_of(WORDS, st.sampled_from(["libcudart.so.12", "libc.so.6", "libcuda.so.1"]))
PATHS = st.sampled_from(
    [
        "a/_x.abi3.so",
        "a/_y.cpython-311-x86_64-linux-gnu.so",
        "a/sm90/z.so",
        "../../../bin/nvcc",
        "é\n.so",
        "(x",
        "[a]*",
    ]
)


def some(strategy: st.SearchStrategy[Any], most: int = 2) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(strategy, max_size=most).map(tuple)


ELVES = st.builds(
    ElfFacts,
    machine=st.sampled_from(["x86_64", "aarch64", "machine 3"]),
    soname=SONAMES,
    needed=some(SONAMES),
    rpath=some(WORDS),
    runpath=some(WORDS),
    version_needs=some(
        st.builds(VersionNeed, file=SONAMES, versions=some(st.one_of(WORDS, st.just("GLIBC_2.999"))))
    ),
    wanted=some(st.builds(Wanted, name=WORDS, version=WORDS, file=SONAMES)),
)
ARCHES = st.builds(
    GpuArch, st.sampled_from(["sm", "compute"]), st.integers(10, 999), st.sampled_from(["", "a", "f"])
)
GPU = st.builds(GpuCode, groups=some(st.builds(GpuGroup, entries=some(ARCHES), count=st.integers(0, 3))))


@st.composite
def any_wheel(draw: st.DrawFn) -> WheelFacts:
    """Facts as a hostile wheel could have them; its own paths are sound, since the reader sees to that."""
    elf, gpu = draw(st.dictionaries(PATHS, ELVES, max_size=3)), draw(st.dictionaries(PATHS, GPU, max_size=2))
    paths = {*elf, *gpu, *draw(st.lists(PATHS, max_size=2))}
    release = draw(st.sampled_from(["12.8.93", "12", "x"]))
    return WheelFacts(
        metadata=draw(st.one_of(WORDS, WORDS.map(lambda w: f"Metadata-Version: 2.1\nRequires-Dist: {w}\n"))),
        tags=draw(some(WORDS)),
        files={path: FileFact(crc=draw(st.integers(0, 9)), size=1) for path in sorted(paths)},
        elf=elf,
        gpu=gpu,
        scripts=draw(some(WORDS)),
        literals=draw(some(st.builds(Literal, path=WORDS, line=st.integers(0, 9), text=SONAMES))),
        preloads=draw(some(st.builds(Preload, folder=WORDS, pattern=WORDS))),
        tools=draw(some(st.builds(Tool, path=PATHS, release=st.just(release), names=some(WORDS)), 1)),
        problems=draw(some(st.tuples(PATHS, WORDS), 1)),
    )


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    names = ("torch", "triton", "made", "flashinfer-python")
    return made_subject({name: wheel() for name in names}, tmp_path_factory.mktemp("base"))


@settings(max_examples=40, deadline=None)
@given(facts=st.dictionaries(st.sampled_from(["torch", "triton", "made", "flashinfer-python"]), any_wheel()))
def test_whatever_wheels_say_there_is_an_answer(base: Subject, facts: dict[str, WheelFacts]) -> None:
    for finding in find(replace(base, facts=facts)):
        json.dumps(finding.as_json())


@settings(max_examples=40, deadline=None)
@given(facts=any_wheel())
def test_records_keep_whatever_wheels_say(facts: WheelFacts) -> None:
    back = decode(encode(facts))
    assert dict(back.elf) == dict(facts.elf)
    assert {p: c.groups for p, c in back.gpu.items()} == {p: c.groups for p, c in facts.gpu.items()}
    assert replace(back, elf={}, gpu={}) == replace(facts, elf={}, gpu={})
