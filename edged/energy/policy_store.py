"""The daemon's own policy as a command chose it, kept over restarts: `STORE/policy.json`.

    {"policy": name, "settings": {…}, "over": {"policy": name, "settings": {…}}}

`over` is what the configuration said then.  The last word holds: where the configuration says
something else at a start, or a reload or the centre names a policy, the file goes.  It is no part
of the log, since no beat depends on it, and a policy may be chosen while the store is full.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from edged.energy.policies import COMMAND, PolicyChoice
from edged.platform.disk import SystemDisk, write_whole

NAME = "policy.json"


class PolicyStore:
    """That file of one store."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / NAME
        self._disk = SystemDisk()

    def load(self, configured: PolicyChoice) -> tuple[PolicyChoice | None, str]:
        """The choice that still counts beside `configured`, and a line for people where one that
        was kept does not.  Raises OSError where the file cannot be read or removed."""
        try:
            told = json.loads(self.path.read_bytes())
            choice = PolicyChoice(str(told["policy"]), dict(told["settings"]), COMMAND)
            over = told["over"]
        except FileNotFoundError:
            return None, ""
        except (ValueError, TypeError, KeyError) as problem:
            self.save(None, configured)
            return None, f"{self.path} was not readable ({problem!r}): the configuration counts"
        if over == _plain(configured):
            return choice, ""
        self.save(None, configured)
        return None, (
            f"policy {choice.policy}, which a command chose, counts no more: the configuration"
            f" says {configured.policy} since"
        )

    def save(self, choice: PolicyChoice | None, configured: PolicyChoice) -> None:
        """Keep the choice, or none, durably; any thread.  Raises OSError."""
        if choice is not None:
            text = json.dumps({**_plain(choice), "over": _plain(configured)}) + "\n"
            write_whole(self._disk, str(self.path), [text.encode()])
        elif self.path.exists():
            self._disk.unlink(str(self.path))
            self._disk.sync_directory(str(self.path.parent))


def _plain(choice: PolicyChoice) -> dict[str, Any]:
    return {"policy": choice.policy, "settings": dict(choice.settings)}
