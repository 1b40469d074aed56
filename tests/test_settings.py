"""Settings: precedence, what is followed of uv and pip, every problem at once, and no secret shown."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebuilder.errors import UsageProblem
from imagebuilder.settings import Login, Settings, load, redact, split_login

CANARY = "s3cr3t-canary"


@dataclasses.dataclass
class Machine:
    """A machine of our own: home, /etc and all."""

    root: Path

    @property
    def home(self) -> Path:
        return self.root / "home"

    def write(self, path: str, text: str) -> Path:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return target

    def load(self, config: Path | None = None, /, **variables: str) -> Settings:
        environ = {"HOME": str(self.home), **variables}
        return load(environ, config, root=self.root, prefix=self.root / "venv")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_defaults(machine: Machine) -> None:
    settings = machine.load()
    assert settings.cache_dir == machine.home / ".cache/imagebuilder"
    assert settings.default_index is None
    assert settings.default_index_origin == "built in"
    assert settings.workers >= 1
    assert settings.connections == 8
    assert not settings.offline
    assert settings.ca_bundle is None
    assert settings.netrc == machine.home / ".netrc"
    assert settings.docker_config == machine.home / ".docker"
    assert settings.config_file is None


def test_a_relative_folder_of_xdg_is_void(machine: Machine) -> None:
    machine.write("home/.config/imagebuilder/config.toml", "workers = 7")
    settings = machine.load(XDG_CACHE_HOME="cache", XDG_CONFIG_HOME="config")
    assert settings.cache_dir == machine.home / ".cache/imagebuilder"
    assert settings.workers == 7


def test_a_relative_home_is_refused(machine: Machine) -> None:
    with pytest.raises(UsageProblem, match="HOME is not an absolute path"):
        machine.load(HOME="some/where")


def test_config_file(machine: Machine) -> None:
    path = machine.write(
        "home/.config/imagebuilder/config.toml",
        """
        cache-dir = "~/big/cache"
        workers = 3
        connections = 5
        timeout = 7.5
        offline = true
        ca-bundle = "/etc/company.pem"
        [index]
        default = "https://proxy.example/simple"
        pytorch-cu130 = "https://proxy.example/pytorch/cu130"
        [debian]
        mirrors = ["http://mirror.example/debian", "http://two.example/debian"]
        snapshot = "http://snapshot.example/archive"
        [registry]
        "docker.io" = "mirror.example:5000"
        """,
    )
    settings = machine.load()
    assert settings == Settings(
        cache_dir=machine.home / "big/cache",
        workers=3,
        connections=5,
        timeout=7.5,
        offline=True,
        ca_bundle=Path("/etc/company.pem"),
        ca_bundle_origin="imagebuilder's configuration",
        default_index="https://proxy.example/simple",
        default_index_origin="imagebuilder's configuration",
        index_urls={"pytorch-cu130": "https://proxy.example/pytorch/cu130"},
        debian_mirrors=("http://mirror.example/debian", "http://two.example/debian"),
        snapshot_mirror="http://snapshot.example/archive",
        registry_mirrors={"docker.io": "mirror.example:5000"},
        netrc=machine.home / ".netrc",
        docker_config=machine.home / ".docker",
        config_file=path,
    )


def test_the_environment_wins_over_the_file(machine: Machine) -> None:
    machine.write(
        "home/.config/imagebuilder/config.toml", "workers = 3\n[index]\nx-y = 'https://file.example'\n"
    )
    settings = machine.load(
        IMAGEBUILDER_WORKERS="2",
        IMAGEBUILDER_INDEX_X_Y_URL="https://env.example",
        IMAGEBUILDER_DEBIAN_MIRRORS="http://a.example http://b.example",
        IMAGEBUILDER_REGISTRY_MIRRORS="docker.io=m:5000 ghcr.io=m:5001",
        IMAGEBUILDER_OFFLINE="1",
    )
    assert settings.workers == 2
    assert settings.index_url("x_Y") == "https://env.example"
    assert settings.debian_mirrors == ("http://a.example", "http://b.example")
    assert settings.registry_mirrors == {"docker.io": "m:5000", "ghcr.io": "m:5001"}
    assert settings.offline


def test_a_named_config_file_must_exist(machine: Machine) -> None:
    with pytest.raises(UsageProblem, match="does not exist"):
        machine.load(machine.root / "none.toml")
    with pytest.raises(UsageProblem, match="does not exist"):
        machine.load(IMAGEBUILDER_CONFIG=str(machine.root / "none.toml"))


@pytest.mark.parametrize(
    ("file", "variables", "expected"),
    [
        ("", {"UV_DEFAULT_INDEX": "https://uv.example"}, "https://uv.example"),
        ("", {"UV_DEFAULT_INDEX": "corp=https://uv.example"}, "https://uv.example"),
        ("", {"UV_INDEX_URL": "https://uv.example"}, "https://uv.example"),
        ("", {"UV_INDEX_URL": "https://uv.example", "PIP_INDEX_URL": "https://a.example"}, "https://uv.example"),
        ("", {"PIP_INDEX_URL": "https://pip.example"}, "https://pip.example"),
        ("", {"PIP_EXTRA_INDEX_URL": "https://pip.example"}, None),
        ("", {"UV_INDEX": "https://uv.example"}, None),
        ("home/.config/uv/uv.toml: index-url = 'https://a.example'", {}, "https://a.example"),
        ("home/.config/uv/uv.toml: [[index]]\nurl = 'https://a.example'\ndefault = true", {}, "https://a.example"),
        ("home/.config/uv/uv.toml: [[index]]\nurl = 'https://a.example'", {}, None),
        ("home/.config/uv/uv.toml: index-url = 'https://a.example'", {"UV_NO_CONFIG": "1"}, None),
        ("home/.config/uv/uv.toml: [pip]\nindex-url = 'https://a.example'", {}, "https://a.example"),
        ("etc/uv/uv.toml: index-url = 'https://a.example'", {}, "https://a.example"),
        ("etc/xdg/uv/uv.toml: index-url = 'https://a.example'", {}, "https://a.example"),
        ("home/.config/pip/pip.conf: [global]\nindex-url = https://a.example", {}, "https://a.example"),
        ("home/.config/pip/pip.conf: [install]\nindex_url = https://a.example", {}, "https://a.example"),
        ("home/.config/pip/pip.conf: [global]\nextra-index-url = https://a.example", {}, None),
        ("home/.config/pip/pip.conf: [global]\nindex-url = https://%41.example", {}, "https://%41.example"),
        ("venv/pip.conf: [global]\nindex-url = https://a.example", {"PIP_CONFIG_FILE": "/dev/null"}, None),
        ("home/.pip/pip.conf: [global]\nindex-url = https://a.example", {}, "https://a.example"),
        ("venv/pip.conf: [global]\nindex-url = https://a.example", {}, "https://a.example"),
        ("etc/pip.conf: [global]\nindex-url = https://a.example", {}, "https://a.example"),
        ("etc/xdg/pip/pip.conf: [global]\nindex-url = https://a.example", {}, "https://a.example"),
    ],
)  # fmt: skip
def test_default_index_of_uv_and_pip(
    machine: Machine, file: str, variables: dict[str, str], expected: str | None
) -> None:
    if file:
        path, _, text = file.partition(": ")
        machine.write(path, text)
    assert machine.load(**variables).default_index == expected


def test_ours_wins_over_uv_and_pip(machine: Machine) -> None:
    settings = machine.load(
        IMAGEBUILDER_INDEX_DEFAULT_URL="https://ours.example", UV_DEFAULT_INDEX="https://uv.example"
    )
    assert settings.default_index == "https://ours.example"


def test_the_site_file_wins_over_the_user_file_as_with_pip(machine: Machine) -> None:
    machine.write("venv/pip.conf", "[global]\nindex-url = https://site.example")
    machine.write("home/.config/pip/pip.conf", "[global]\nindex-url = https://user.example")
    assert machine.load().default_index == "https://site.example"


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT"])
def test_ca_bundle_of_other_programs(machine: Machine, variable: str) -> None:
    settings = machine.load(**{variable: "/etc/ssl/company.pem"})
    assert (settings.ca_bundle, settings.ca_bundle_origin) == (Path("/etc/ssl/company.pem"), variable)
    ours = machine.load(**{variable: "/etc/ssl/company.pem", "IMAGEBUILDER_CA_BUNDLE": "/etc/ours.pem"})
    assert ours.ca_bundle == Path("/etc/ours.pem")


def test_proxies(machine: Machine) -> None:
    settings = machine.load(HTTPS_PROXY="http://p:1", https_proxy="http://q:2", NO_PROXY="a.example")
    assert settings.proxies == {"https": "http://q:2", "no": "a.example"}


# ---------------------------------------------------------------- what is wrong

BAD_CONFIG = {
    "not TOML": ("workers = ", "Invalid value"),
    "unknown key": ("workres = 3", "workres: is not a setting; did you mean workers?"),
    "unknown key in a table": ("[debian]\nmirors = []", "is not a setting; did you mean debian.mirrors?"),
    "unknown table": ("[indexes]\nx = 'https://a.example'", "did you mean index?"),
    "wrong type": ("workers = true", "is not a whole number"),
    "zero": ("workers = 0", "is not a whole number"),
    "negative time": ("timeout = -1", "is not a number of seconds"),
    "not a flag": ("offline = 'perhaps'", "is not true or false"),
    "relative path": ("cache-dir = 'cache'", "is not an absolute path"),
    "scheme": ("[index]\nx = 'ftp://a.example'", "is not an address that begins with"),
    "no address": ("[index]\nx = 3", "is not an address"),
    "port": ("[index]\nx = 'https://a.example:port/'", "is not a well-formed address"),
    "scalar for a table": ("index = 'https://a.example'", "is not a table"),
    "login for a registry": ("[registry]\n'docker.io' = 'u:p@m:5000'", "docker login"),
    "not a list": ("[debian]\nmirrors = 3", "is not a list"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "message"), BAD_CONFIG.values(), ids=BAD_CONFIG)
def test_bad_configuration(machine: Machine, text: str, message: str) -> None:
    path = machine.write("config.toml", text)
    with pytest.raises(UsageProblem) as caught:
        machine.load(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"IMAGEBUILDER_WORKRES": "3"}, "did you mean IMAGEBUILDER_WORKERS?"),
        ({"IMAGEBUILDER_WORKERS": "many"}, "IMAGEBUILDER_WORKERS: 'many'"),
        ({"IMAGEBUILDER_REGISTRY_MIRRORS": "docker.io"}, "is not a registry"),
        ({"IMAGEBUILDER_INDEX_X_USERNAME": "u"}, "IMAGEBUILDER_INDEX_X_URL"),
        ({"UV_DEFAULT_INDEX": "ssh://a.example"}, "UV_DEFAULT_INDEX: is not an address"),
    ],
)
def test_bad_environment(machine: Machine, variables: dict[str, str], message: str) -> None:
    with pytest.raises(UsageProblem) as caught:
        machine.load(**variables)
    assert message in str(caught.value)


def test_other_variables_with_our_prefix_are_nobodys_business(machine: Machine) -> None:
    machine.load(IMAGEBUILDER_SOMETHING_OF_A_TEST="1")


def test_broken_files_of_others_are_named(machine: Machine) -> None:
    machine.write("home/.config/uv/uv.toml", "= broken")
    with pytest.raises(UsageProblem, match=r"uv\.toml"):
        machine.load()
    machine.write("home/.config/uv/uv.toml", "")
    machine.write("home/.config/pip/pip.conf", "broken")
    with pytest.raises(UsageProblem, match=r"pip\.conf"):
        machine.load()


def test_all_problems_at_once(machine: Machine) -> None:
    path = machine.write("config.toml", "workers = 0\ntimeout = 0\n[index]\nx = ''\n")
    with pytest.raises(UsageProblem) as caught:
        machine.load(path, IMAGEBUILDER_CONNECTIONS="-1")
    assert [word in str(caught.value) for word in ("workers", "timeout", "index.x", "CONNECTIONS")] == [
        True
    ] * 4


# ---------------------------------------------------------------- secrets


def with_login(url: str) -> str:
    return url.replace("://", f"://user:{CANARY}@")


SECRET_SOURCES: dict[str, Callable[[Machine], Settings]] = {
    "environment": lambda m: m.load(IMAGEBUILDER_INDEX_X_URL=with_login("https://a.example/simple")),
    "uv": lambda m: m.load(UV_DEFAULT_INDEX=with_login("https://a.example/simple")),
    "pip": lambda m: m.load(PIP_INDEX_URL=with_login("https://a.example/simple")),
    "file": lambda m: m.load(m.write("c.toml", f"[index]\nx = '{with_login('https://a.example/simple')}'")),
    "apart": lambda m: m.load(
        IMAGEBUILDER_INDEX_X_URL="https://a.example/simple",
        IMAGEBUILDER_INDEX_X_USERNAME="user",
        IMAGEBUILDER_INDEX_X_PASSWORD=CANARY,
    ),
}


@pytest.mark.parametrize("source", SECRET_SOURCES.values(), ids=SECRET_SOURCES)
def test_logins_are_kept_apart_and_never_shown(
    machine: Machine, source: Callable[[Machine], Settings]
) -> None:
    settings = source(machine)
    assert settings.logins == {"https://a.example/simple": Login(username="user", password=CANARY)}
    assert CANARY not in repr(settings)
    assert "user" not in repr(settings.logins)


def test_proxy_passwords_are_not_shown(machine: Machine) -> None:
    assert CANARY not in repr(machine.load(HTTPS_PROXY=with_login("http://proxy.example:3128")))


@pytest.mark.parametrize(
    "url",
    [
        f"ftp://user:{CANARY}@a.example/",
        f"https://user:{CANARY}@a.example:port/",
        f"https://user:{CANARY}/with-a-slash@a.example/",
        f"user:{CANARY}@a.example",
        f"https://user:{CANARY}@",
        f"https://[user:{CANARY}@a.example",
    ],
)
@pytest.mark.parametrize("variable", ["IMAGEBUILDER_INDEX_X_URL", "UV_DEFAULT_INDEX", "PIP_INDEX_URL"])
def test_a_malformed_address_does_not_show_its_password(machine: Machine, variable: str, url: str) -> None:
    with pytest.raises(UsageProblem) as caught:
        machine.load(**{variable: url})
    assert CANARY not in str(caught.value)
    assert variable in str(caught.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://a.example/simple", "https://a.example/simple"),
        (f"https://u:{CANARY}@a.example/x", "https://***@a.example/x"),
        (f"https://{CANARY}@a.example/x", "https://***@a.example/x"),
        (f"cannot get 'https://a.example/x?sig={CANARY}'!", "cannot get 'https://a.example/x?…'!"),
        (f"https://u:p@{CANARY}@a.example/", "https://***@a.example/"),
        ("two http://a.example/ and http://b.example/", "two http://a.example/ and http://b.example/"),
    ],
)
def test_redact(text: str, shown: str) -> None:
    assert redact(text) == shown


_WORD = st.text(st.characters(codec="ascii", categories=("L", "N", "P", "S")), min_size=1, max_size=20)


@given(user=_WORD, password=_WORD)
def test_split_login_gives_back_what_was_quoted(user: str, password: str) -> None:
    from urllib.parse import quote

    url, login = split_login(
        f"https://{quote(user, safe='')}:{quote(password, safe='')}@a.example:8443/simple/?q=1"
    )
    assert url == "https://a.example:8443/simple/?q=1"
    assert login == Login(username=user, password=password)


def test_split_login_keeps_ipv6() -> None:
    assert split_login("http://u:p@[::1]:80/x")[0] == "http://[::1]:80/x"


# ---------------------------------------------------------------- the documentation

PAGE = Path(__file__).resolve().parent.parent / "docs" / "30-index.md"


def test_the_documented_configuration_is_valid(machine: Machine) -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    settings = machine.load(machine.write("config.toml", example))
    assert settings.index_url("pytorch-cu130") == "https://proxy.example/pytorch/cu130"


def test_the_documented_variables_are_known(machine: Machine) -> None:
    values = {
        "IMAGEBUILDER_CACHE_DIR": "/cache",
        "IMAGEBUILDER_WORKERS": "3",
        "IMAGEBUILDER_CONNECTIONS": "3",
        "IMAGEBUILDER_TIMEOUT": "3",
        "IMAGEBUILDER_OFFLINE": "yes",
        "IMAGEBUILDER_CA_BUNDLE": "/ca.pem",
        "IMAGEBUILDER_SIGN_KEY": "/k.pem",
        "IMAGEBUILDER_INDEX_NAME_URL": "https://a.example",
        "IMAGEBUILDER_INDEX_NAME_USERNAME": "u",
        "IMAGEBUILDER_INDEX_NAME_PASSWORD": "p",
        "IMAGEBUILDER_DEBIAN_MIRRORS": "https://a.example",
        "IMAGEBUILDER_DEBIAN_SNAPSHOT": "https://a.example",
        "IMAGEBUILDER_REGISTRY_MIRRORS": "docker.io=m:1",
    }
    table = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    documented = set(re.findall(r"IMAGEBUILDER_[A-Z_]+(?![A-Z0-9_])", "\n".join(table)))
    kept_nowhere = {"IMAGEBUILDER_SIGN_PASSWORD"}  # read where it is used, and no part of the settings
    assert documented == set(values) | kept_nowhere
    assert repr(machine.load(IMAGEBUILDER_SIGN_PASSWORD="p")) == repr(machine.load())
    plain = machine.load()
    for name, value in values.items():
        address = {"IMAGEBUILDER_INDEX_NAME_URL": "https://a.example"} if "_NAME_" in name else {}
        if name.endswith("_PASSWORD"):
            address["IMAGEBUILDER_INDEX_NAME_USERNAME"] = "u"
        assert repr(machine.load(**{**address, name: value})) != repr(plain), name
