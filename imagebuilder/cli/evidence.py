"""`imagebuilder evidence`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from imagebuilder.cli.context import Context, json_option, say, say_json, verb
from imagebuilder.errors import ArtefactUnusable, NotAccepted, UsageProblem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from imagebuilder.oci.image import Image
    from imagebuilder.publish.inspect import Attached
    from imagebuilder.publish.keys import PublicKey
    from imagebuilder.publish.trust import Standing

KINDS = ("sbom", "provenance", "checks", "acceptance")


@verb(offline=True)
@click.argument("reference", metavar="REF")
@click.option(
    "--require", "required", type=click.Choice(KINDS), multiple=True, help="Fail without this kind."
)
@click.option(
    "--output", metavar="DIR", type=click.Path(path_type=Path, file_okay=False), help="Save them there."
)
@click.option(
    "--key",
    "key_files",
    metavar="PUB",
    type=click.Path(path_type=Path, dir_okay=False),
    multiple=True,
    help="Fail unless image and evidence are signed with this public key (PEM), or one of several.",
)
@click.option("--platform", default="linux/amd64", show_default=True, help="Which image of several.")
@json_option
def command(
    context: Context,
    *,
    reference: str,
    required: tuple[str, ...],
    output: Path | None,
    key_files: tuple[Path, ...],
    platform: str,
    as_json: bool,
) -> None:
    """Show and verify what is attached to an image: SBOM, provenance, findings, acceptance.

    Verified means: the bytes are those of their digests, the form is right, and it is about this very image.
    Who says so is only known with --key: then image and documents must be signed with it.
    """
    from imagebuilder.oci.base import resolve_base
    from imagebuilder.oci.registry import Registry
    from imagebuilder.publish.cosign import read_signed
    from imagebuilder.publish.inspect import judged, missing, read_evidence
    from imagebuilder.publish.keys import load_public
    from imagebuilder.publish.trust import of_image
    from imagebuilder.values import ImageRef, Platform

    try:
        ref, wanted = ImageRef.parse(reference), Platform.parse(platform)
    except ValueError as error:
        raise UsageProblem(str(error)) from None
    keys = [load_public(context.cwd / path) for path in key_files]
    image = resolve_base(ref, wanted, settings=context.settings, cache=context.cache).image
    registry = Registry(ref.registry, context.settings)
    signatures, attestations = read_signed(registry, ref.repository, image.digest, context.cache)
    signed = of_image(signatures, keys)
    attached = judged(read_evidence(registry, ref.repository, image, context.cache), attestations, keys)
    if output:
        _save(context.cwd / output, attached)
    if as_json:
        say_json("evidence", _as_json(ref.name, image, signed, attached))
    else:
        _say(ref.name, image, signed, attached)
    if keys and signed.problem:
        raise ArtefactUnusable(
            f"{ref.name}@{image.digest} is not signed with {_names(keys)}",
            seen=signed.problem.replace("it is", "the image is"),
            wanted="a signature of this very image",
            hint=f"imagebuilder push STACK --to {ref.name} --sign-key KEY",
        )
    bad = [item for item in attached if item.problems]
    if bad:
        raise ArtefactUnusable(
            f"{len(bad)} of what is attached to {ref.name}@{image.digest} proves nothing",
            seen="; ".join(f"{item.kind}: {', '.join(item.problems)}" for item in bad)[:500],
            wanted="evidence about this very image",
            hint=f"push it again: imagebuilder push STACK --to {ref.name}",
        )
    if absent := list(missing(attached, required)):
        kind = NotAccepted if absent == ["acceptance"] else ArtefactUnusable
        raise kind(
            f"{ref.name}@{image.digest} has no {' and no '.join(absent)} attached",
            hint=_remedy(absent, ref.name),
        )


def _remedy(absent: Sequence[str], name: str) -> str:
    """What brings the missing kinds into being, and then the push that attaches them."""
    words = {
        "checks": "imagebuilder build STACK, without --no-check",
        "acceptance": "imagebuilder accept STACK",
    }
    before = [words[kind] for kind in absent if kind in words]
    return "; then ".join([*before, f"imagebuilder push STACK --to {name}"])


def _names(keys: list[PublicKey]) -> str:
    return " or ".join(f"{key.name} ({key.fingerprint.short})" for key in keys)


def _signed(standing: Standing) -> str:
    """In the words of the list."""
    if standing.key is not None:
        return f"signed with {standing.key.name}"
    words = {
        "not checked": "signed, by whom was not asked (--key)",
        "unsigned": "not signed",
        "another key": "signed with another key",
    }
    return words.get(standing.state, standing.state)


def _say(name: str, image: Image, signed: Standing, attached: tuple[Attached, ...]) -> None:
    from imagebuilder.cli.report import human

    say(f"{name}@{image.digest}")
    say(f"  image: {_signed(signed)}")
    for item in attached:
        state = "verified" if item.verified else "; ".join(item.problems) or "not looked into"
        if item.kind != "other" and not item.standing.problem:
            state += f", {_signed(item.standing)}"
        say(f"  {item.kind:11} {human(item.size):>8}  {item.manifest.short}  {state}")
        say(f"  {'':11} {'':>8}  {item.summary or item.artifact_type}")
    if not attached:
        say("  nothing is attached")


def _as_json(name: str, image: Image, signed: Standing, attached: tuple[Attached, ...]) -> dict[str, Any]:
    return {
        "image": name,
        "manifest": image.digest.text,
        "config": image.config_digest.text,
        **_standing(signed),
        "evidence": [
            {
                "kind": item.kind,
                "artifact-type": item.artifact_type,
                "manifest": item.manifest.text,
                "digest": item.digest.text if item.digest else None,
                "size": item.size,
                "verified": item.verified,
                **_standing(item.standing),
                "summary": item.summary,
                "problems": list(item.problems),
            }
            for item in attached
        ],
    }


def _standing(standing: Standing) -> dict[str, Any]:
    """signed: whether it is, with one of the keys that were named."""
    return {
        "signed": standing.key is not None,
        "signature": standing.state,
        "key": standing.key.fingerprint.text if standing.key else None,
    }


def _save(folder: Path, attached: tuple[Attached, ...]) -> None:
    """One file each; of several of a kind, with the first digits of their digests."""
    from imagebuilder.files import new_file
    from imagebuilder.publish.evidence import Evidence

    kinds = [item.kind for item in attached]
    for item in attached:
        if item.digest is None:
            continue
        name = Evidence(kind=item.kind, data=b"").filename
        if kinds.count(item.kind) > 1:
            name = f"{item.digest.short}-{name}"
        with new_file(folder / name) as out:
            out.write(item.data)
