"""Waiting for disk space while the daemon starts.

No source is open yet, so that producers keep their data.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from edged.beat.disk_full_gate import RETRY_MS
from edged.daemon.systemd import SystemdService
from edged.events.log import LineLog
from edged.platform.disk import filesystem_bytes
from edged.store import StoreFull

LOOKS_MAX = 30
"""Times that free space is checked before a step is tried again without more of it: freed quota
does not show as free space."""
T = TypeVar("T")


class StartupSpaceWait:
    """Repeats steps of the start that find the disk of the store full."""

    def __init__(self, directory: Path, service: SystemdService, log: LineLog) -> None:
        self._directory, self._service, self._log = str(directory), service, log
        self._logged = False

    def retry(self, step: Callable[[], T]) -> T:
        """The result of `step`, repeated until it finds space."""
        while True:
            try:
                return step()
            except StoreFull as problem:
                self.wait(problem)

    def wait(self, problem: Exception) -> None:
        """Return when the disk has more space, or after LOOKS_MAX intervals."""
        self._service.starting(f"waiting for room: {problem}")
        if not self._logged:
            self._logged = True
            self._log("warning", f"the start waits for room on the disk: {problem}")
        free_bytes = filesystem_bytes(self._directory)[0]
        for _ in range(LOOKS_MAX):
            time.sleep(RETRY_MS / 1000)
            if filesystem_bytes(self._directory)[0] > free_bytes:
                return
