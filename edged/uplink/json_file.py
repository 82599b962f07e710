"""JSON files of the uplink process that other processes read."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any


def replace_json(path: Path, document: dict[str, Any]) -> None:
    """Replace the file atomically.  On a full disk it is not written: what it says comes again."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f"{path.name}.new")
        with fresh.open("w", encoding="utf-8") as file:
            json.dump(document, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
