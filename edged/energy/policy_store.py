"""Stored policy choice of a command, which survives restarts: `STORE/policy.json`.

    {"policy": name, "settings": {…}, "over": {"policy": name, "settings": {…}}, "crc": …}

with its checksum (`edged/documents/checked_json.py`).  `over` is the configuration's policy at the
time of the choice.  The latest choice applies: the file is removed when the configuration names
another policy at a start, and when a reload or the centre sets one.  It is not part of the log,
since no beat depends on it, and a policy may be chosen while the store is full.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edged.documents import checked_json
from edged.energy.policies import COMMAND, PolicyChoice
from edged.platform.disk import SystemDisk, replace_file

NAME = "policy.json"


class PolicyStore:
    """The policy file of one store."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / NAME
        self._disk = SystemDisk()

    def load(self, configured: PolicyChoice) -> tuple[PolicyChoice | None, str]:
        """The stored choice if it still applies over `configured`, and a line for users where it
        does not.  Raises OSError where the file cannot be read or removed."""
        try:
            document = checked_json.unpack(self.path.read_bytes())
            choice = PolicyChoice(str(document["policy"]), dict(document["settings"]), COMMAND)
            over = document["over"]
        except FileNotFoundError:
            return None, ""
        except (ValueError, TypeError, KeyError) as problem:
            self.save(None, configured)
            return None, f"{self.path} is not readable ({problem!r}): the configuration applies"
        if over == _plain(configured):
            return choice, ""
        self.save(None, configured)
        return None, (
            f"policy {choice.policy}, chosen by a command, no longer applies: the configuration"
            f" now says {configured.policy}"
        )

    def save(self, choice: PolicyChoice | None, configured: PolicyChoice) -> None:
        """Store the choice durably, or remove it.  Thread-safe.  Raises OSError."""
        if choice is not None:
            data = checked_json.pack({**_plain(choice), "over": _plain(configured)})
            replace_file(self._disk, str(self.path), [data + b"\n"])
        elif self.path.exists():
            self._disk.unlink(str(self.path))
            self._disk.sync_directory(str(self.path.parent))


def _plain(choice: PolicyChoice) -> dict[str, Any]:
    return {"policy": choice.policy, "settings": dict(choice.settings)}
