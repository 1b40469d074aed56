"""Plans to render: made by hand, so that rendering is tested without resolving anything."""

from __future__ import annotations

from datetime import datetime, timezone

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from imagebuilder.dockerfile import Derived
from imagebuilder.lock.model import DebPackage, Lock, LockedBase, LockedPatch, Wheel
from imagebuilder.plan import Plan, make_plan
from imagebuilder.stack.model import (
    DebianBase,
    File,
    ImageBase,
    ImageSettings,
    Index,
    Layer,
    Patch,
    Resolve,
    Stack,
    System,
    Target,
)
from imagebuilder.values import Digest, ImageRef, Platform, Release

AS_OF = datetime(2026, 2, 25, tzinfo=timezone.utc)
PATCH = Patch(path="patches/a.patch", content=b"--- a/b\n")


def wheel(
    name: str,
    version: str = "1.0",
    *,
    size: int = 1000,
    index: str | None = "default",
    url: str | None = None,
) -> Wheel:
    filename = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    return Wheel(
        name=canonicalize_name(name),
        version=version,
        filename=filename,
        size=size,
        sha256=Digest.of(f"{name} {version}".encode()),
        path=f"wheels/{filename}",
        index=None if url else index,
        url=url,
    )


DEB = DebPackage(
    name="base-files",
    version="12",
    architecture="amd64",
    path="pool/b.deb",
    size=10,
    sha256=Digest.of(b"d"),
    pocket="bookworm",
)


def stack_of(**changes: object) -> Stack:
    fields: dict[str, object] = {
        "name": "sample",
        "summary": "A sample",
        "target": Target(python=Release("3.11")),
        "base": DebianBase(suite="bookworm"),
        "resolve": Resolve(as_of=AS_OF),
        "indexes": (Index(name="pytorch-cu130", url="https://wheels.example/whl/cu130", explicit=True),),
        "layers": (
            Layer(name="torch", requirements=(Requirement("torch"),), index="pytorch-cu130"),
            Layer(name="app", requirements=(Requirement("app"), Requirement("tool")), patches=(PATCH,)),
        ),
        "env": (("CUDA_HOME", "/usr/local/cuda"),),
        "files": (File(path="/etc/nccl.conf", content=b"NCCL_PROTO=LL\n"),),
        "image": ImageSettings(command=("python3", "-m", "app"), ports=(30000,)),
    }
    return Stack(**(fields | changes))  # type: ignore[arg-type]


def image_stack_of(**changes: object) -> Stack:
    base = ImageBase(ref=ImageRef.parse("nvidia/cuda:13.0.1-cudnn-devel-ubuntu24.04"))
    return stack_of(base=base, system=System(packages=("python3.12", "g++")), **changes)


def lock_of(stack: Stack, wheels: tuple[Wheel, ...] = (), **changes: object) -> Lock:
    wheels = wheels or (
        wheel("torch", "2.9.1+cu130", size=900_000_000, index="pytorch-cu130"),
        wheel("app"),
        wheel("tool"),
        wheel("numpy"),
    )
    image = isinstance(stack.base, ImageBase)
    fields: dict[str, object] = {
        "stack_name": stack.name,
        "stack_hash": Digest.of(b""),
        "stack_parts": (),
        "resolver": "uv 0",
        "python": stack.target.python,
        "platform": Platform("linux", "amd64"),
        "glibc": Release("2.36"),
        "as_of": stack.resolve.as_of,
        "wheels": tuple(sorted(wheels, key=lambda w: w.name)),
        "debs": () if image else (DEB,),
        "base": LockedBase(ref=stack.base.ref, index=Digest.of(b"base"))
        if isinstance(stack.base, ImageBase)
        else None,
        "patches": tuple(
            LockedPatch(package=canonicalize_name("app"), path=p.path, sha256=p.digest)
            for layer in stack.layers
            for p in layer.patches
        ),
    }
    return Lock(**(fields | changes))  # type: ignore[arg-type]


def plan_of(stack: Stack, wheels: tuple[Wheel, ...] = (), **changes: object) -> Plan:
    return make_plan(stack, lock_of(stack, wheels, **changes))


def derived_of(plan: Plan) -> dict[Digest, Derived]:
    return {
        w.wheel.sha256: Derived(
            filename=f"{w.wheel.name}-{w.wheel.version}+patched.0123abcd-py3-none-any.whl",
            version=f"{w.wheel.version}+patched.0123abcd",
            sha256=Digest.of(b"derived " + w.wheel.name.encode()),
        )
        for w in plan.wheels
        if w.patches
    }
