"""Asked of an interpreter: what it is, as one line of JSON. Runs under any Python from 3.8, with -I, no
imports of ours.
"""

import json
import os
import platform
import sys


def main() -> None:
    """Print it."""
    try:
        libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError, AttributeError):
        libc = ""
    folders = []
    for entry in sys.path:
        if os.path.basename(entry.rstrip("/")) in ("site-packages", "dist-packages"):  # noqa: PTH119
            folders.append(entry)
    said = {
        "imagebuilder": 1,
        "implementation": sys.implementation.name,
        "version": platform.python_version(),
        "system": sys.platform,
        "machine": platform.machine(),
        "libc": libc,
        "prefix": sys.prefix,
        "base": sys.base_prefix,
        "sites": folders,
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main()
