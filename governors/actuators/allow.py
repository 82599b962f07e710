"""Allow-list of the root helper: the values that may be written to each file.

A request names a knob or switch, one of its parts, and a value.  The name must be among those that
discovery finds.  The value must be one that the knob permits (an entry of its table, or in its
range without a table) or one that was read from that very file, so that original limits can be
restored.  A request to suspend names a state and seconds.
"""

from __future__ import annotations

import errno
from collections import deque
from time import monotonic

from governors.actuators.base import Setting, findings, put, readable, refusal
from governors.actuators.suspend import suspend
from governors.detect import detect
from governors.sysfs import Absent, Sysfs, SysfsError

DISCOVER_S = 1.0
"""Shortest time between two discoveries, which an unknown name triggers."""
ORIGINALS_MAX = 8


class AllowList:
    """The permitted values of one board, and the writes."""

    def __init__(self, sysfs: Sysfs, suspends: bool = False) -> None:
        """`suspends`: whether peers may suspend the machine."""
        self._sysfs, self._suspends = sysfs, suspends
        self._settings: dict[str, Setting] = {}
        self._originals: dict[str, deque[str]] = {}
        """Path -> contents read from it that its knob does not permit otherwise."""
        self._discovered_s = -DISCOVER_S
        self.discover()

    def discover(self) -> None:
        """Discover the board's settings, at most once per DISCOVER_S."""
        if monotonic() - self._discovered_s < DISCOVER_S:
            return
        found = findings(self._sysfs, detect(self._sysfs))
        self._settings, self._discovered_s = (
            {setting.name: setting for setting in found},
            monotonic(),
        )
        for setting in found:
            for path in setting.files().values():
                self._note(setting, path)

    def answer(self, request: object) -> dict[str, object]:
        """The reply to a request of any shape."""
        if not isinstance(request, dict):
            return {"refused": "a request must be a JSON object"}
        if request.get("list") is True:
            denied = {s.name: why for s in self._settings.values() if (why := self._denied(s))}
            return {"ok": sorted(self._settings.keys() - denied.keys()), "denied": denied}
        if "suspend" in request:
            return self._suspend(request["suspend"], request.get("seconds"))
        name, part, value = (request.get(key) for key in ("set", "part", "value"))
        if not (isinstance(name, str) and isinstance(part, str) and isinstance(value, str)):
            return {"refused": "set, part and value must be texts"}
        if name not in self._settings:
            self.discover()
        setting = self._settings.get(name)
        path = setting.files().get(part) if setting else None
        if setting is None or path is None:
            return {"refused": f"this board has no {name[:40]!r} with a part {part[:40]!r}"}
        self._note(setting, path)
        if not setting.permits(value) and value not in self._originals.get(path, ()):
            return {"refused": f"{value[:40]!r} is not a value of {name}"}
        return self._write(path, value)

    def _suspend(self, state: object, seconds: object) -> dict[str, object]:
        if not self._suspends:
            return {"refused": "it does not suspend: start edged-governor-helper with --suspend"}
        if not isinstance(state, str) or type(seconds) is not int:
            return {"refused": "suspend must be a text and seconds a whole number"}
        problem = suspend(self._sysfs, state, seconds).problem
        return {"refused": problem} if problem else {"ok": True}

    def _denied(self, setting: Setting) -> str:
        """Why not even the helper may write the setting's files, as on a read-only /sys; missing
        files do not count, since they may come back."""
        there = [p for p in setting.files().values() if not readable(p) or self._sysfs.exists(p)]
        return next((why for path in there if (why := refusal(self._sysfs, path))), "")

    def _write(self, path: str, value: str) -> dict[str, object]:
        try:
            put(self._sysfs, path, value)
        except SysfsError as problem:
            if isinstance(problem, Absent):
                self.discover()
            return {"errno": problem.errno or errno.EIO, "problem": str(problem)}
        return {"ok": True}

    def _note(self, setting: Setting, path: str) -> None:
        text = self._sysfs.get(path) if readable(path) else None
        if text and len(text) < 32 and not setting.permits(text):
            originals = self._originals.setdefault(path, deque(maxlen=ORIGINALS_MAX))
            if text not in originals:
                originals.append(text)
