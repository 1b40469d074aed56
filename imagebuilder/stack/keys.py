"""The stack file, declared: every table and key with its kind and its meaning.

From this one declaration come the loader, the JSON Schema and the reference. Defaults stand in `model`.
"""

from __future__ import annotations

from typing import Any

from packaging.utils import canonicalize_name

from imagebuilder.stack import model
from imagebuilder.stack.grammar import Array, Key, Place, Table, Wrong
from imagebuilder.stack.kinds import Choice, Instant, Text
from imagebuilder.stack.runkeys import ACCEPTANCE, DEPLOY
from imagebuilder.stack.secrets import secret_form
from imagebuilder.stack.vocabulary import (
    ABSOLUTE,
    CODE,
    COMMAND,
    DEBIAN_PACKAGE,
    DEVICE,
    ENV,
    IMAGE,
    INDEX_URL,
    LABELS,
    LINE,
    NAME,
    PACKAGE,
    PLATFORM,
    PORT,
    PYTHON,
    REASON,
    RELEASE,
    REPOSITORY,
    REQUIREMENT,
    SUITE,
    SWITCH,
    USER,
    FileMode,
    FileSource,
    IndexName,
    PatchFiles,
    SchemaVersion,
)  # fmt: skip

BASES = ("image", "debian", "oci")


def _base(place: Place, **fields: Any) -> model.Base:
    base: model.Base = next(iter(fields.values()))
    return base


def _file(place: Place, **fields: Any) -> model.File:
    content, source = fields.pop("content", None), fields.pop("source", None)
    if source is not None:
        path, data = source
        return model.File(**fields, source=path, content=data)
    return model.File(**fields, content=content.encode())


def _waiver(place: Place, **fields: Any) -> model.Waiver:
    package = fields.pop("package", None)
    return model.Waiver(**fields, package=canonicalize_name(package) if package else None)


def _index(place: Place, **fields: Any) -> model.Index | Wrong:
    if fields["name"] == "default":
        return place.child("name").wrong('"default" is the index that pip and uv are configured with')
    return model.Index(**fields)


TARGET = Table(
    model.Target,
    keys=(
        Key("platform", PLATFORM, "operating system and processor"),
        Key("python", PYTHON, "the base's Python, which the environment is made for"),
        Key("gpus", Array(of=DEVICE, key=str, noun="GPU"), "device code must exist for these"),
        Key("driver", RELEASE, "the oldest host driver promised"),
        Key("glibc", RELEASE, "the base's glibc; default: what the base is known to have"),
    ),
)
DEBIAN = Table(
    model.DebianBase,
    keys=(
        Key("suite", SUITE, "the release's name"),
        Key("components", Array(of=SUITE, at_least=1, key=str), "parts of the archive"),
        Key("security", SWITCH, "take the security pocket too; its files move, so locks age"),
    ),
)


class _Image:
    """[base] image, as the base that it is."""

    def read(self, raw: object, place: Place) -> model.ImageBase | Wrong:
        ref = IMAGE.read(raw, place)
        return ref if isinstance(ref, Wrong) else model.ImageBase(ref=ref)

    schema = staticmethod(IMAGE.schema)
    words = staticmethod(IMAGE.words)


class _Oci:
    """[base] oci, as the base that it is."""

    def read(self, raw: object, place: Place) -> model.OciBase | Wrong:
        path = LINE.read(raw, place)
        return path if isinstance(path, Wrong) else model.OciBase(path=path)

    schema = staticmethod(LINE.schema)

    def words(self) -> str:
        return "the path of an OCI layout, relative to the stack file"


BASE: Table[Any] = Table(
    None,
    make=_base,
    one_of=BASES,
    keys=(
        Key(
            "image",
            _Image(),
            "an image of a registry; the digest is found while locking where it is not given",
        ),
        Key("debian", DEBIAN, "made from Debian packages, without any registry"),
        Key("oci", _Oci(), "an image that lies on this machine"),
    ),
)
SYSTEM = Table(
    model.System,
    keys=(
        Key("packages", Array(of=DEBIAN_PACKAGE, key=lambda p: p.partition("=")[0], noun="package"),
            "Debian packages on top of the base"),
        Key("snapshot", Instant(), "the archive as apt sees it; default: resolve.as-of"),
        Key("resolve", Choice(options=("build", "lock")),
            '"build": apt in the Docker build; "lock": .deb files in the lock, the only way (and default) '
            "for a Debian base"),
    ),
)  # fmt: skip
RESOLVE = Table(
    model.Resolve,
    keys=(Key("as-of", Instant(), "nothing newer is considered; also the image's SOURCE_DATE_EPOCH"),),
)
INDEX = Table(
    model.Index,
    make=_index,
    keys=(
        Key("name", NAME, "what layers and the configuration call it"),
        Key("url", INDEX_URL, "its Simple API"),
        Key("explicit", SWITCH, "only requirements that name it come from it"),
    ),
)
LAYER = Table(
    model.Layer,
    keys=(
        Key("name", NAME, "what plans and differences call it"),
        Key("requirements", Array(of=REQUIREMENT, at_least=1), "as pip takes them; wheels only"),
        Key("index", IndexName(), "where all of them come from; default: the default index"),
        Key("patches", PatchFiles(), "patches against the installed files (`-p1` in site-packages); the "
            "package becomes a derived wheel"),
    ),
)  # fmt: skip
OVERRIDE = Table(
    model.Override,
    keys=(
        Key("requirement", REQUIREMENT, "replaces what every wheel asks of this package"),
        Key("reason", REASON, "why the wheels' own pin is wrong here"),
    ),
)
FILE = Table(
    model.File,
    make=_file,
    one_of=("content", "source"),
    keys=(
        Key("path", ABSOLUTE, "where it is in the image"),
        Key("mode", FileMode(), "its permissions"),
        Key("content", Text(form="text", empty=True, lines=True, forbid=secret_form), "its text"),
        Key("source", FileSource(), "the file to copy"),
    ),
)
WAIVE = Table(
    model.Waiver,
    make=_waiver,
    keys=(
        Key("code", CODE, "the finding's code"),
        Key("package", PACKAGE, "only for this package"),
        Key("path", LINE, "only for files that match this glob"),
        Key("reason", REASON, "why it is accepted"),
    ),
)
IMAGE_SETTINGS = Table(
    model.ImageSettings,
    keys=(
        Key("repository", REPOSITORY, "where tags and pushes go if nothing else is said"),
        Key("entrypoint", COMMAND, "the entrypoint"),
        Key("command", COMMAND, "the default command"),
        Key("user", USER, "the user it runs as; default: root"),
        Key("workdir", ABSOLUTE, "the working folder"),
        Key("labels", LABELS, "labels on top of the generated ones"),
        Key("ports", Array(of=PORT, key=str, noun="port"), "ports it serves on"),
    ),
)


def _name(item: Any) -> str:
    name: str = item.name
    return name


STACK: Table[model.Stack] = Table(
    model.Stack,
    optional=("deploy",),
    demanded=("schema",),
    keys=(
        Key("schema", SchemaVersion(), "the form of this file"),
        Key("name", NAME, "the stack's name: of its lock, image and results"),
        Key("summary", LINE, "what it is, in a line"),
        Key("target", TARGET, "what the image must run on"),
        Key("base", BASE, "what it stands on: exactly one of these"),
        Key("system", SYSTEM, "Debian packages"),
        Key("resolve", RESOLVE, "how resolution is bounded"),
        Key("index", Array(of=INDEX, key=_name, noun="name"), "indexes beside the default", field="indexes"),
        Key("layer", Array(of=LAYER, at_least=1, key=_name, noun="name"), "requirements in groups, in order; "
            "what no layer names goes to the first layer that needs it", field="layers"),
        Key("override", Array(of=OVERRIDE, key=lambda o: o.package, noun="override of"),
            "deliberate breaks of wheels' own pins", field="overrides"),
        Key("env", ENV, "variables of the image; never secrets"),
        Key("file", Array(of=FILE, key=lambda f: f.path, noun="path"), "extra files", field="files"),
        Key("waive", Array(of=WAIVE), "findings accepted on purpose", field="waivers"),
        Key("image", IMAGE_SETTINGS, "the image's own settings"),
        Key("acceptance", ACCEPTANCE, "how it proves itself"),
        Key("deploy", DEPLOY, "how it is deployed"),
    ),
)  # fmt: skip
