"""`imagebuilder push`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from imagebuilder.cli.context import Context, json_option, say, say_json, verb
from imagebuilder.errors import LockUnusable, UsageProblem

if TYPE_CHECKING:
    from imagebuilder.cli.prepare import Prepared
    from imagebuilder.oci.registry import Registry
    from imagebuilder.publish.built import BuiltImage
    from imagebuilder.publish.carried import Artefact
    from imagebuilder.publish.evidence import Evidence
    from imagebuilder.publish.keys import Signer
    from imagebuilder.publish.push import Preview, Published


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is pushed. prepared: None for an image that is given by its place."""

    argument: str
    built: BuiltImage
    prepared: Prepared | None


@verb()
@click.argument("image", metavar="STACK|DIR|FILE.tar")
@click.option("--to", metavar="REGISTRY/REPO", help="Default: the stack's [image] repository.")
@click.option(
    "--tag", "tags", metavar="TAG", multiple=True, help="May be repeated. Default: the built names'."
)
@click.option("--channel", "channels", metavar="TAG", multiple=True,
              help="A tag that only moves to images with a passing acceptance; may be repeated.")  # fmt: skip
@click.option("--unaccepted", is_flag=True, help="Move --channel without an acceptance.")
@click.option("--no-evidence", is_flag=True, help="Attach no SBOM, provenance and reports.")
@click.option("--sign-key", metavar="KEY", help="Sign image and evidence: a PEM file, or a key of cosign's. "
              "Default: the setting sign-key. Passphrase: IMAGEBUILDER_SIGN_PASSWORD.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Say what would be sent, and send nothing.")
@json_option
def command(
    context: Context, *, image: str, to: str | None, tags: tuple[str, ...], channels: tuple[str, ...],
    unaccepted: bool, no_evidence: bool, sign_key: str | None, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Push a built image (images/STACK, or a layout or tar file), and print its reference by digest.

    Blobs that the registry has are not sent. Tags are set last, when everything else is there and verified.
    Logins are Docker's: `docker login REGISTRY`.
    """
    from imagebuilder.oci.registry import Registry
    from imagebuilder.publish.carried import beside, load
    from imagebuilder.publish.push import preview, publish

    subject = _subject(context, image)
    host, repository, own_tags = _target(subject, to)
    wanted = _tags(subject, own_tags, tags, channels)
    if not unaccepted:
        _require_acceptance(context, subject, channels)
    registry = Registry(host, context.settings)
    if dry_run:
        _say_preview(
            subject, f"{host}/{repository}", preview(registry, repository, subject.built.image), as_json
        )
        return
    signer = _signer(context, sign_key)
    carried = () if no_evidence else load(beside(subject.built.path), subject.built.image.digest)
    done = publish(
        registry,
        repository,
        subject.built.image,
        wanted,
        evidence=() if no_evidence else _evidence(context, subject, carried),
        carried=carried,
        signer=signer,
        mount_from=_mount_from(subject, registry),
        cache=context.cache,
        reporter=context.reporter,
    )
    context.reporter.note(_summary(done))
    if as_json:
        say_json("push", _as_json(subject, done))
    else:
        say(str(done.reference))


def _subject(context: Context, argument: str) -> Subject:
    """The image in that place, or the built one of that stack. Its record must fit the lock."""
    from imagebuilder.cli.prepare import argument_of, prepare
    from imagebuilder.publish.built import is_image, read_built
    from imagebuilder.values import Digest

    place = Path(argument)
    if is_image(context.cwd / place):
        return Subject(argument=argument, built=read_built(context.cwd / place, context.cache), prepared=None)
    _refuse_other_files(context.cwd / place, argument)
    prepared = prepare(context, argument)
    name = argument_of(context, prepared.stack)
    place = context.cwd / "images" / prepared.stack.name
    if not is_image(place):
        raise UsageProblem(
            f"{prepared.stack.name} is not built",
            wanted=f"an image in {place}",
            hint=f"imagebuilder build {name}",
        )
    built = read_built(place, context.cache)
    lock = Digest.of(prepared.lock_file.read_bytes())
    if built.record is not None and built.record.lock != lock:
        raise LockUnusable(
            f"the image in {place} was built from another lock than {prepared.lock_file}",
            seen=built.record.lock.text,
            wanted=lock.text,
            hint=f"imagebuilder build {name}",
        )
    return Subject(argument=name, built=built, prepared=prepared)


def _refuse_other_files(place: Path, argument: str) -> None:
    """UsageProblem for a path that is neither an image nor a stack file."""
    is_path = "/" in argument or place.suffix == ".tar"
    if is_path and (place.is_dir() or place.suffix == ".tar"):
        raise UsageProblem(
            f"there is no image in {argument}",
            seen="a folder that is no OCI layout" if place.is_dir() else "no such file",
            wanted="a stack that was built, an OCI layout (a folder), or a tar file of one",
            hint="imagebuilder list shows the images that are here",
        )


def _target(subject: Subject, to: str | None) -> tuple[str, str, tuple[str, ...]]:
    """(registry, repository, the tag in --to)."""
    from imagebuilder.values import ImageRef

    text = to or (subject.prepared.stack.image.repository if subject.prepared else None)
    if not text:
        raise UsageProblem(
            "where to?", hint=f"imagebuilder push {subject.argument} --to registry.example/name"
        )
    try:
        ref = ImageRef.parse(text)
    except ValueError as error:
        raise UsageProblem(f"--to: {error}") from None
    if ref.digest:
        raise UsageProblem("--to names a place, not a digest", seen=text)
    named = ":" in text.rpartition("/")[2]
    return ref.registry, ref.repository, (ref.tag,) if named and ref.tag else ()


def _tags(
    subject: Subject, own: tuple[str, ...], tags: tuple[str, ...], channels: tuple[str, ...]
) -> tuple[str, ...]:
    from imagebuilder.values import ImageRef

    record = subject.built.record
    chosen = dict.fromkeys((*own, *tags)) or dict.fromkeys(record.tags if record else ())
    for tag in (*tags, *channels):
        try:
            ImageRef.parse(f"name:{tag}")
        except ValueError:
            raise UsageProblem(
                f"{tag!r} is not a tag", wanted="letters, digits, _ . -, at most 128"
            ) from None
    return tuple(dict.fromkeys((*chosen, *channels)))


def _require_acceptance(context: Context, subject: Subject, channels: tuple[str, ...]) -> None:
    from functools import partial

    from imagebuilder.cli.acceptance import why_not_accepted
    from imagebuilder.publish.push import require_acceptance

    for channel in channels:
        require_acceptance(
            subject.built.image, channel, partial(why_not_accepted, context.cwd), stack=subject.argument
        )


def _mount_from(subject: Subject, registry: Registry) -> tuple[str, ...]:
    """The base image's repository, where it lies in the same registry."""
    base = subject.prepared.lock.base if subject.prepared else None
    if base is None or base.ref is None or base.ref.registry != registry.host:
        return ()
    return (base.ref.repository,)


def _signer(context: Context, given: str | None) -> Signer | None:
    """What signs, where a key is named on the command line or in the settings."""
    key = given or context.settings.sign_key
    if not key:
        return None
    from imagebuilder.publish.keys import load_signer

    password = os.environ.get("IMAGEBUILDER_SIGN_PASSWORD")
    return load_signer(key, cwd=context.cwd, password=password, environ=os.environ)


def _evidence(context: Context, subject: Subject, carried: tuple[Artefact, ...]) -> tuple[Evidence, ...]:
    """What is known here of the image; of one that was pulled, only what did not come with it."""
    from imagebuilder.cli.acceptance import acceptance_record
    from imagebuilder.publish.collect import Origin, collect

    prepared = subject.prepared
    origin = None
    if prepared is not None:
        assert prepared.stack.path is not None
        origin = Origin(stack=prepared.stack, stack_file=prepared.stack.path.read_bytes(), lock=prepared.lock)
    found = collect(
        subject.built,
        origin,
        acceptance_record(context.cwd, subject.built.image.config_digest),
        cache=context.cache,
        reporter=context.reporter,
        workers=context.settings.workers,
    )
    brought = {item.evidence.kind for item in carried if item.evidence}
    return tuple(item for item in found if item.kind not in brought)


def _summary(done: Published) -> str:
    from imagebuilder.cli.report import human

    blobs = done.blobs
    parts = [f"{blobs.sent} blobs sent ({human(blobs.sent_bytes)})"]
    if blobs.mounted:
        parts.append(f"{blobs.mounted} mounted")
    parts.append(f"{blobs.existing} there already")
    if done.evidence:
        parts.append(f"attached {', '.join(kind for kind, _ in done.evidence)}")
    if done.signatures:
        parts.append(f"{done.signatures} signatures made")
    where = f"; tags {', '.join(done.tags)}" if done.tags else ""
    return f"pushed to {done.reference.name}: {', '.join(parts)}{where}"


def _as_json(subject: Subject, done: Published) -> dict[str, Any]:
    blobs = done.blobs
    return {
        "image": subject.argument,
        "reference": str(done.reference),
        "manifest": blobs.digest.text,
        "config": subject.built.image.config_digest.text,
        "tags": list(done.tags),
        "blobs": {
            "sent": blobs.sent,
            "mounted": blobs.mounted,
            "existing": blobs.existing,
            "sent-bytes": blobs.sent_bytes,
        },
        "evidence": [{"kind": kind, "digest": digest.text} for kind, digest in done.evidence],
        "signatures": done.signatures,
    }


def _say_preview(subject: Subject, name: str, found: Preview, as_json: bool) -> None:
    from imagebuilder.cli.report import human

    if as_json:
        say_json("push-preview", {
            "image": subject.argument,
            "repository": name,
            "bytes-to-send": found.bytes_to_send,
            "present": [{"digest": d.text, "size": s} for d, s in found.present],
            "missing": [{"digest": d.text, "size": s} for d, s in found.missing],
        })  # fmt: skip
        return
    say(f"{name}: {len(found.present)} blobs are there, {len(found.missing)} are not")
    for digest, size in found.missing:
        say(f"  {human(size):>8}  {digest}")
    say(f"  {human(found.bytes_to_send):>8}  to send")
