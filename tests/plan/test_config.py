"""The image's environment."""

from __future__ import annotations

from imagebuilder.plan import merged_environment


def test_the_environment_stands_first_on_path_and_keeps_the_bases_own() -> None:
    base = (("PATH", "/usr/local/cuda/bin:/usr/bin"), ("NVARCH", "x86_64"))
    assert merged_environment(base, (("A", "x=y"),), "/opt/venv") == (
        ("PATH", "/opt/venv/bin:/usr/local/cuda/bin:/usr/bin"),
        ("NVARCH", "x86_64"),
        ("VIRTUAL_ENV", "/opt/venv"),
        ("A", "x=y"),
    )


def test_the_stacks_own_path_is_taken_as_it_is() -> None:
    assert merged_environment((), (("PATH", "/only"),), "/opt/venv")[0] == ("PATH", "/only")


def test_a_base_without_path_gets_the_usual_one() -> None:
    assert dict(merged_environment((), (), "/opt/venv"))["PATH"].endswith(":/usr/sbin:/usr/bin:/sbin:/bin")
