"""What the centre wants of its devices, as collectors tell it: `LANDING/desired/<device>.json`."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from edged.central.schemas import valid_id

_BYTES_MAX = 1 << 20
_LOG = logging.getLogger(__name__)


class Desired:
    """The files in `directory`, each read again when it changes.  For any thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._told: dict[str, tuple[tuple[int, int, int], Any]] = {}

    def of(self, device: str, known: int) -> Any:
        """The content of the device's file; None where it is missing or no JSON, or larger than
        `_BYTES_MAX`.  Of one with `version` and `document` only the version where that is `known`,
        or older."""
        if not valid_id(device):
            return None
        path = self._directory / f"{device}.json"
        try:
            stat = path.stat()
            stamp = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
            told = self._told.get(device)
            if told is None or told[0] != stamp or _is_news(told[1], known):
                if stat.st_size > _BYTES_MAX:
                    raise ValueError(f"more than {_BYTES_MAX} bytes")
                content = json.loads(path.read_bytes())
                self._told[device] = told = (stamp, _without_document(content))
                return content if _is_news(told[1], known) else told[1]
            return told[1]
        except FileNotFoundError:
            self._told.pop(device, None)
        except (OSError, ValueError, RecursionError) as problem:
            _LOG.error("%s is not told to its device: %s", path, problem)
        return None


def _without_document(desired: Any) -> Any:
    """What is remembered of a desired state: of a versioned one, which may be large, its version;
    it is read again for the device that has an older one."""
    if isinstance(desired, dict) and isinstance(desired.get("version"), int):
        return {key: value for key, value in desired.items() if key != "document"}
    return desired


def _is_news(desired: Any, known: int) -> bool:
    version = desired.get("version") if isinstance(desired, dict) else None
    return isinstance(version, int) and version > known
