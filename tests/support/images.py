"""Small images whose layers are real, with one file each.

image = make_image(folder, b"content of opt/file0", b"content of opt/file1")
"""

from __future__ import annotations

import io
from pathlib import Path

from imagebuilder.oci.image import Image, LayerRef
from imagebuilder.oci.layer import LayerWriter
from imagebuilder.oci.model import History, ImageConfig, ImagePlatform
from imagebuilder.values import Platform

AMD64 = Platform("linux", "amd64")


def make_layer(path: Path, name: str, content: bytes) -> LayerRef:
    """A layer with one file below /opt."""
    out = io.BytesIO()
    writer = LayerWriter(out)
    writer.directory("opt")
    writer.file_bytes(f"opt/{name}", content, mtime=1_000_000_000)
    blob = writer.finish()
    path.write_bytes(out.getvalue())
    return LayerRef.of(blob, path)


def make_image(folder: Path, *contents: bytes, platform: Platform = AMD64) -> Image:
    """An image with one layer for each content; the blobs lie in `folder`."""
    folder.mkdir(exist_ok=True)
    layers = tuple(
        make_layer(folder / f"{len(list(folder.iterdir()))}.layer", f"file{i}", content)
        for i, content in enumerate(contents)
    )
    config = ImageConfig(
        platform=ImagePlatform.of(platform),
        created="2026-02-25T00:00:00Z",
        env=(("PATH", "/usr/bin"), ("A", "b=c")),
        command=("/opt/run",),
        labels=(("org.example.stack", "demo"),),
        history=tuple(History(created_by=f"layer {i}") for i in range(len(layers))),
    )
    return Image.make(config, layers)
