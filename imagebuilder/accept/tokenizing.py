"""Puts prompts into the model's chat template, in the container, with the image's own tokenizer. Sent there.

Its argument is a JSON file: model, revision, draft, draft_revision, trust (may run the model's own code), and
prompts (texts). It tells: ids (a list per prompt; null without a tokenizer or template), why not, and the
`config.json` of both models where they can be read.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any


def template(asked: dict[str, Any]) -> list[list[int]]:
    """Token ids of every prompt as a user's turn, ready for the answer; without thinking if possible."""
    tokenizer = import_module("transformers").AutoTokenizer.from_pretrained(
        asked["model"], revision=asked["revision"], trust_remote_code=asked["trust"]
    )
    return [
        [
            int(token)
            for token in tokenizer.apply_chat_template(
                [{"role": "user", "content": text}],
                add_generation_prompt=True,
                tokenize=True,
                return_dict=False,
                enable_thinking=False,
                thinking=False,
            )
        ]
        for text in asked["prompts"]
    ]


def config(model: str, revision: str | None) -> dict[str, Any] | None:
    """A model's config.json: of a folder, or of the hub where this container can reach it."""
    try:
        path = Path(model) / "config.json"
        if not path.is_file():
            download = import_module("huggingface_hub").hf_hub_download
            path = Path(download(model, "config.json", revision=revision))
        read = json.loads(path.read_bytes())
        return read if isinstance(read, dict) else None
    except Exception:  # whatever it is: the server will say it better
        return None


def main() -> None:
    """Tell everything on standard output, and let nobody else write there."""
    asked = json.loads(Path(sys.argv[1]).read_bytes())
    out = os.dup(1)
    os.dup2(2, 1)
    told: dict[str, Any] = {"ids": None, "why": ""}
    try:
        told["ids"] = template(asked)
    except ImportError:
        told["why"] = "the image has no transformers"
    except Exception as error:
        told["why"] = f"{type(error).__name__}: {error}"[:500]
    told["target"] = config(asked["model"], asked["revision"])
    told["draft"] = config(asked["draft"], asked["draft_revision"])
    os.write(out, json.dumps(told).encode())


if __name__ == "__main__":
    main()
