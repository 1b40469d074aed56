"""imagebuilder turns a TOML stack into a container image that is known to work before it is built."""

__version__ = "0.1.0"
