"""What wheels ask of each other, against what is locked; and whether every declared break is needed."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.utils import canonicalize_name
from packaging.version import Version

from imagebuilder.checks.model import Check, Code, Finding
from imagebuilder.checks.subject import Subject

UNMET = Code(
    code="require.unmet",
    severity="error",
    meaning="a wheel requires a release of another package than the locked one, and no override says so",
    consequence="`pip check` fails, and the package runs beside a release that its authors excluded",
    remedy="lock again, or declare the break as an [[override]] with its reason",
)
ABSENT = Code(
    code="require.absent",
    severity="error",
    meaning="a wheel requires a package that the lock does not have at all",
    consequence="importing it fails with ModuleNotFoundError",
    remedy="imagebuilder lock",
)
NEEDLESS = Code(
    code="require.override-needless",
    severity="warning",
    meaning="an override replaces requirements that the locked release satisfies anyway",
    consequence="it hides a later, real conflict on that package",
    remedy="remove the override",
)
UNUSED = Code(
    code="require.override-unused",
    severity="warning",
    meaning="an override is about a package that nothing in the set requires",
    consequence="it does nothing",
    remedy="remove the override",
)
EXTRA = Code(
    code="require.outside-extra",
    severity="note",
    meaning="a wheel states a range for another package under the extra of that name; the lock is outside it",
    consequence="what the two do together may not work; nothing else holds the resolver to that range",
    remedy="if it is used: require PACKAGE[EXTRA] in the stack, so that the resolver keeps to it",
)


def run(subject: Subject) -> Iterator[Finding]:
    """Every requirement of every wheel, markers evaluated for the target."""
    yield from _named(subject)
    yield from _extras(subject)
    overrides = {o.package: (i, o) for i, o in enumerate(subject.stack.overrides)}
    asked: dict[str, list[tuple[str, str, bool]]] = {}
    for name in sorted(subject.facts):
        for requirement in subject.requirements_of(name):
            wanted = canonicalize_name(requirement.name)
            if wanted == name:
                continue
            locked = subject.version_of.get(wanted)
            met = locked is not None and requirement.specifier.contains(locked, prereleases=True)
            asked.setdefault(wanted, []).append((name, str(requirement), met))
            if met or wanted in overrides:
                continue
            code = UNMET if locked else ABSENT
            yield Finding(
                code=code.code,
                severity=code.severity,
                what=f"{name} requires {requirement.name}{requirement.specifier}, "
                + (f"{locked} is locked" if locked else "which is not locked"),
                evidence=(f"METADATA of {name} {subject.version_of[name]}: {requirement}",),
                fix=code.remedy,
                package=name,
            )
    for package, (i, override) in sorted(overrides.items()):
        about = asked.get(package, [])
        named = any(w.name == package for _, w in subject.named_in_stack())
        if not about and not named:
            code, what = UNUSED, f"nothing requires {package}"
        elif about and all(met for _, _, met in about):
            version = Version(subject.version_of[package])
            code, what = NEEDLESS, f"{package} {version} satisfies all {len(about)} requirements without it"
        else:
            continue
        yield Finding(
            code=code.code,
            severity=code.severity,
            what=f"the override {override.requirement} is not needed: {what}",
            evidence=tuple(f"{name}: {text}" for name, text, _ in about[:6]),
            fix=code.remedy,
            package=package,
            key=f"override[{i}]",
        )


def _named(subject: Subject) -> Iterator[Finding]:
    """What the stack itself asks for; a local version is part of a pin."""
    overridden = {o.package for o in subject.stack.overrides}
    for i, layer in enumerate(subject.stack.layers):
        for j, requirement in enumerate(layer.requirements):
            name, key = canonicalize_name(requirement.name), f"layer[{i}].requirements[{j}]"
            locked = subject.version_of.get(name)
            if name in overridden or (
                requirement.marker and not requirement.marker.evaluate(subject.target.markers)
            ):
                continue
            if locked is None or not requirement.specifier.contains(locked, prereleases=True):
                code = UNMET if locked else ABSENT
                yield Finding(
                    code=code.code,
                    severity=code.severity,
                    what=f"the stack wants {requirement}, "
                    + (f"{locked} is locked" if locked else "which is not locked"),
                    evidence=(f"{key}: {requirement}",),
                    fix="imagebuilder lock",
                    package=name if locked else "",
                    key=key,
                )


def _extras(subject: Subject) -> Iterator[Finding]:
    """Packages that another one works with, but does not require: an extra called like them says which."""
    for name in sorted(subject.facts):
        for requirement in subject.requirements_of(name, of_extras=True):
            wanted = canonicalize_name(requirement.name)
            locked = subject.version_of.get(wanted)
            if locked and not requirement.specifier.contains(locked, prereleases=True):
                yield Finding(
                    code=EXTRA.code,
                    severity=EXTRA.severity,
                    what=f"{name} goes with {requirement.name}{requirement.specifier}, {locked} is locked",
                    evidence=(f"METADATA of {name} {subject.version_of[name]}: {requirement}",),
                    fix=f"if it is used: {name}[{wanted}] in the stack's requirements",
                    package=name,
                    other=wanted,
                )


CHECK = Check(run=run, codes=(EXTRA, UNMET, ABSENT, NEEDLESS, UNUSED))
