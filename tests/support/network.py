"""Whether tests marked `network` can run here."""

from __future__ import annotations

import functools
import os

from imagebuilder.cache import Cache
from imagebuilder.errors import ImagebuilderError
from imagebuilder.index.http import session
from imagebuilder.index.simple import Indexes
from imagebuilder.settings import DEFAULT, load

REQUIRED = os.environ.get("IMAGEBUILDER_REQUIRE_NETWORK") == "1"


@functools.lru_cache(maxsize=1)
def no_network() -> str:
    """Why the default index cannot be reached; empty where it answers, or where it must."""
    if REQUIRED:
        return ""
    try:
        settings = load(os.environ)
        address = Indexes((), settings, Cache(settings.cache_dir)).url_of(DEFAULT)
        with session(settings, pause=lambda _: None) as http:
            http.request("HEAD", f"{address.rstrip('/')}/pip/", what="the default index", timeout=10)
    except ImagebuilderError as error:
        return f"no network: {error.what}"
    return ""
