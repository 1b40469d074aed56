"""A comparison as JSON (imagebuilder/data/diff.schema.json). Pure."""

from __future__ import annotations

from typing import Any

from imagebuilder.diff.model import AbiMove, Accepted, Diff, LayerRow, Package, Side


def as_json(diff: Diff) -> dict[str, Any]:
    """Everything that differs, nothing shortened."""
    return {
        "old": _side(diff.old),
        "new": _side(diff.new),
        "identical": diff.empty,
        "summary": [{"name": x.name, "old": x.old, "new": x.new} for x in diff.headlines],
        "packages": None
        if diff.packages is None
        else [
            {
                "kind": m.kind,
                "move": m.move,
                "name": m.name,
                "old": _package(m.old),
                "new": _package(m.new),
                "notes": list(m.notes),
            }
            for m in diff.packages
        ],
        "settings": [
            {"section": m.section, "name": m.name, "old": m.old, "new": m.new} for m in diff.settings
        ],
        "gpu": [
            {"package": g.package, "library": g.library, "gained": list(g.gained), "lost": list(g.lost)}
            for g in diff.gpu
        ],
        "abi": None if diff.abi is None else [_abi(m) for m in diff.abi],
        "findings": None
        if diff.findings is None
        else [
            {
                "move": m.move,
                "code": m.code,
                "severity": m.severity,
                "place": m.place,
                "old": m.old,
                "new": m.new,
                "waived": m.waived,
                "note": m.note,
            }
            for m in diff.findings
        ],
        "layers": _layers(diff),
        "files": None
        if diff.files is None
        else [
            {
                "path": f"/{m.path}",
                "move": m.move,
                "owner": m.owner,
                "aspects": list(m.aspects),
                "old-size": m.old.size if m.old else None,
                "new-size": m.new.size if m.new else None,
            }
            for m in diff.files
        ],
        "acceptance": {"old": _accepted(diff.old.acceptance), "new": _accepted(diff.new.acceptance)},
        "not-compared": list(diff.notes),
    }


def _side(side: Side) -> dict[str, Any]:
    return {"label": side.label, "kind": side.kind, "identity": side.identity}


def _package(package: Package | None) -> dict[str, Any] | None:
    if package is None:
        return None
    return {
        "name": package.name,
        "version": package.version,
        "index": package.index,
        "filename": package.filename,
        "sha256": package.sha256.hex if package.sha256 else None,
        "size": package.size,
        "patched": package.patched,
    }


def _abi(move: AbiMove) -> dict[str, Any]:
    return {
        "package": move.package,
        "library": move.library,
        "state": move.state,
        "gained": list(move.gained),
        "lost": list(move.lost),
        "moved": [{"symbol": name, "old": old, "new": new} for name, old, new in move.moved],
        "defines-gained": list(move.defines_gained),
        "defines-lost": list(move.defines_lost),
        "needs": [{"kind": kind, "old": old, "new": new} for kind, old, new in move.needs],
        "used": {symbol: list(by) for symbol, by in move.used.items()},
    }


def _layers(diff: Diff) -> dict[str, Any] | None:
    if diff.layers is None:
        return None
    return {
        "exact": diff.layers.exact,
        "shared-bytes": diff.layers.shared_bytes,
        "pulled-bytes": diff.layers.pulled_bytes,
        "shared": [_layer(x) for x in diff.layers.shared],
        "pulled": [_layer(x) for x in diff.layers.pulled],
        "dropped": [_layer(x) for x in diff.layers.dropped],
    }


def _layer(layer: LayerRow) -> dict[str, Any]:
    return {
        "title": layer.title,
        "size": layer.size,
        "digest": layer.digest.text if layer.digest else None,
        "key": layer.key.text if layer.key else None,
    }


def _accepted(accepted: Accepted | None) -> dict[str, Any] | None:
    if accepted is None:
        return None
    return {"verdict": accepted.verdict, "figures": dict(accepted.figures)}
