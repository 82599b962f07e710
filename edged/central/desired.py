"""The desired states of all devices, as the collectors read them:
`LANDING/desired/<device>.json`.

`edged central desired` writes them with a checksum (`edged/documents/checked_json.py`).  A file of
another program may lack it.  A damaged file is not sent: its device keeps what it has."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from edged.central.schemas import valid_id
from edged.centre_link.desired_state import BYTES_MAX
from edged.documents import checked_json

_LOG = logging.getLogger(__name__)


class DesiredStates:
    """The files in `directory`, each read again when it changes.  Thread-safe."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._cache: dict[str, tuple[tuple[int, int, int], Any]] = {}

    def of(self, device: str, known: int) -> Any:
        """The content of the device's file; None if it is missing, invalid JSON, or larger than
        `BYTES_MAX`. A content with `version` and `document` is returned without the document if
        its version is `known` or older."""
        if not valid_id(device):
            return None
        path = f"{self._directory}/{device}.json"
        try:
            stat = os.stat(path)  # noqa: PTH116 - each request does this
            stamp = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
            cached = self._cache.get(device)
            if cached is None or cached[0] != stamp or _is_newer(cached[1], known):
                if stat.st_size > BYTES_MAX:
                    raise ValueError(f"more than {BYTES_MAX} bytes")
                content = checked_json.unpack(Path(path).read_bytes())
                self._cache[device] = cached = (stamp, _without_document(content))
                return content if _is_newer(cached[1], known) else cached[1]
            return cached[1]
        except FileNotFoundError:
            self._cache.pop(device, None)
        except (OSError, ValueError, RecursionError) as problem:
            _LOG.error("%s is not sent to its device: %s", path, problem)
        return None


def _without_document(desired: Any) -> Any:
    """The cached part of a desired state.  The document of a versioned one, which may be large, is
    not cached but read again for a device with an older version."""
    if isinstance(desired, dict) and isinstance(desired.get("version"), int):
        return {key: value for key, value in desired.items() if key != "document"}
    return desired


def _is_newer(desired: Any, known: int) -> bool:
    version = desired.get("version") if isinstance(desired, dict) else None
    return isinstance(version, int) and version > known
