"""Directories of the centre: landings, tables and checkpoints lie in a local file system."""

from __future__ import annotations

import re

from edged.errors import ConfigError

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


def local_directory(path: str, what: str) -> str:
    """`path`, unless it looks like a URL: then ConfigError, which names it by `what`.

    A collector acknowledges a page after an `fsync`, and tables change by a rename. Object stores
    have neither.
    """
    if _URL.match(path):
        raise ConfigError(
            f"{what} {path}: is a URL; edged reads and writes directories of a local or mounted "
            "file system: give a path, e.g. of a mount"
        )
    return path
