"""State files of the jobs' tables, beside the snapshots that name them.

    save ─► [snapshot thread: files durable, snapshot written] ─► adopted ─► old files deleted

1. A snapshot is written after the files that it names are durable.
2. A file is deleted when neither a running state, nor a snapshot under way, nor one of the two
   newest snapshots names it.  A start takes a snapshot, so that orphans go then.
3. Files of jobs and operators that are gone are deleted likewise.  Empty directories stay.

The heart's thread only, except `sync`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from edged.beat.runtime import JobRuntime
from edged.beat.saved_arrays import arrays_under
from edged.data.flow import State
from edged.operators.base import Operator
from edged.platform.disk import Disk, SystemDisk

SNAPSHOTS_KEPT = 2
"""Snapshots that a start may read."""

_Part: TypeAlias = tuple[str, str]
"""Job and operator."""


class TableFiles:
    """The files of all jobs; see the module's docstring."""

    def __init__(self, directory: str, disk: Disk | None = None) -> None:
        """`directory` is the store's `tables`."""
        self._directory, self._disk = directory, disk or SystemDisk()
        self._operators: dict[_Part, Operator] = {}
        self._named: dict[int, dict[_Part, State]] = {}
        """By beat, what snapshots under way and kept ones name."""
        self._adopted = -1
        self._to_sync: list[Operator] = []

    def follow(self, jobs: Iterable[JobRuntime]) -> None:
        """Take over the operators of these jobs."""
        self._operators = {
            (job.plan.name, id): operator
            for job in jobs
            for id, operator in job.operators.items()
            if job.plan.operators[id].table_states()
        }

    def note(self, beat: int, arrays: State) -> None:
        """Note what the snapshot of `beat` names; `sync` then makes those files durable."""
        named = {
            part: {
                name: array.copy()
                for name, array in arrays_under(arrays, f"{part[0]}/operators/{part[1]}").items()
                if name.endswith("files")
            }
            for part in self._operators
        }
        self._named[beat] = named
        self._to_sync = list(self._operators.values())

    def sync(self) -> None:
        """Make the files of the last noted snapshot durable; any thread."""
        for operator in self._to_sync:
            operator.sync()

    def collect(self, adopted: int) -> None:
        """Delete what nothing needs since the snapshot of beat `adopted` is the newest."""
        if adopted == self._adopted or adopted not in self._named:
            return
        self._adopted = adopted
        older = sorted(beat for beat in self._named if beat <= adopted)
        for beat in older[:-SNAPSHOTS_KEPT]:
            del self._named[beat]
        for part, operator in self._operators.items():
            operator.keep([named[part] for named in self._named.values() if part in named])
        needed = {part for named in self._named.values() for part in named} | {*self._operators}
        for job in self._names(self._directory):
            for id in self._names(f"{self._directory}/{job}"):
                if (job, id) not in needed:
                    self._clear(f"{self._directory}/{job}/{id}")

    def disk_bytes(self) -> int:
        """Bytes of all states' files."""
        return sum(operator.disk_bytes() for operator in self._operators.values())

    def _names(self, directory: str) -> list[str]:
        return self._disk.listdir(directory) if self._disk.exists(directory) else []

    def _clear(self, directory: str) -> None:
        """Delete the files below a directory; their names have a dot."""
        for name in self._names(directory):
            if "." in name:
                self._disk.unlink(f"{directory}/{name}")
            else:
                self._clear(f"{directory}/{name}")
