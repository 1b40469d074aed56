"""How this machine reaches the world: cache, indexes, mirrors, certificates, proxies, credentials."""

from imagebuilder.settings.load import expanded, load, nearest
from imagebuilder.settings.model import DEFAULT, Login, Settings, redact, split_login

__all__ = ["DEFAULT", "Login", "Settings", "expanded", "load", "nearest", "redact", "split_login"]
