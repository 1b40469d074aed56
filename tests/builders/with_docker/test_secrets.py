"""Settings reach a build as secrets, with logins, and leave no file."""

from __future__ import annotations

import configparser
from pathlib import Path

from imagebuilder.builders.docker.secrets import build_secrets, with_login
from imagebuilder.settings.model import Login, Settings
from tests.dockerfile.samples import image_stack_of, stack_of


def read(tmp_path: Path, settings: Settings, image: bool = False) -> dict[str, str]:
    with build_secrets(image_stack_of() if image else stack_of(), settings, tmp_path) as files:
        texts = {name: path.read_text() for name, path in files}
        ours = [path for _, path in files if path.parent == tmp_path and path.name.startswith("secret-")]
        assert all(path.stat().st_mode & 0o777 == 0o600 for path in ours)
    assert not any(path.exists() for path in ours)
    return texts


def test_nothing_is_passed_on_where_nothing_is_set(tmp_path: Path) -> None:
    assert read(tmp_path, Settings(cache_dir=tmp_path)) == {}


def test_indexes_come_with_their_logins(tmp_path: Path) -> None:
    settings = Settings(
        cache_dir=tmp_path,
        default_index="https://mirror.example/simple",
        index_urls={"pytorch-cu130": "https://mirror.example/cu130"},
        logins={
            "https://mirror.example/simple": Login(username="me", password="p%a/s s"),
            "https://mirror.example/cu130": Login(username="you", password="x"),
        },
    )
    texts = read(tmp_path, settings)
    assert texts["index-pytorch-cu130"] == "https://you:x@mirror.example/cu130"
    conf = configparser.RawConfigParser()
    conf.read_string(texts["pip.conf"])
    assert conf["global"]["index-url"] == "https://me:p%25a%2Fs%20s@mirror.example/simple"


def test_files_are_passed_as_they_are_and_stay(tmp_path: Path) -> None:
    ca, netrc = tmp_path / "ca.pem", tmp_path / "netrc"
    ca.write_text("CA")
    netrc.write_text("machine x")
    assert read(tmp_path, Settings(cache_dir=tmp_path, ca_bundle=ca, netrc=netrc)) == {
        "ca-bundle": "CA",
        "netrc": "machine x",
    }
    assert ca.exists() and netrc.exists()


def test_a_proxy_is_a_secret_for_pip_and_for_apt(tmp_path: Path) -> None:
    settings = Settings(cache_dir=tmp_path, proxies={"https": "http://u:p@proxy.example:3128"})
    texts = read(tmp_path, settings, image=True)
    assert "proxy = http://u:p@proxy.example:3128" in texts["pip.conf"]
    assert 'Acquire::https::Proxy "http://u:p@proxy.example:3128";' in texts["apt.conf"]
    assert "apt.conf" not in read(tmp_path, settings)


def test_an_address_without_a_login_is_left_alone() -> None:
    assert with_login("https://x.example/a", {}) == "https://x.example/a"
