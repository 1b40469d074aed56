"""Docker's compose plugin, version 2: version 1 knows another format."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

_BELOW = "libexec/docker/cli-plugins/docker-compose"


def compose_plugin() -> str:
    """Its path: in the system, or beside the programs that scripts/debian-tools unpacked.

    Without it the test skips, or fails where IMAGEBUILDER_REQUIRE_TOOLS=1 (CI).
    """
    roots = [
        Path("/usr"),
        *(Path(folder).parent for folder in os.environ["PATH"].split(os.pathsep) if folder),
    ]
    for path in (root / _BELOW for root in roots):
        if shutil.which(path):
            return str(path)
    reason = (
        "no docker compose 2: apt-get install docker-compose, or scripts/debian-tools FOLDER docker-compose"
    )
    if os.environ.get("IMAGEBUILDER_REQUIRE_TOOLS") == "1":
        pytest.fail(reason)
    pytest.skip(reason)
