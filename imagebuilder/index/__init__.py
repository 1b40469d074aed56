"""Where artefacts come from: Simple API, Debian archive, ranged reads, downloads."""
