"""State files of the jobs' tables, beside the snapshots that name them.

    save ─► [snapshot thread: files durable, snapshot written] ─► adopted ─► old files deleted

1. A snapshot is written after the files that it names are durable, and so is a record whose rows
   skipped the log (`edged.beat.table_loads`).
2. A file is deleted when neither a running state, nor a snapshot under way, nor one of the two
   newest snapshots or a record after them names it.  A start takes a snapshot, so that orphans go
   then.
3. Files of jobs and operators that are gone are deleted likewise, not those of shelved jobs.  Empty
   directories stay.

The heart's thread only, except `sync` and what `submit` returns.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from edged.beat.record import BeatFacts
from edged.beat.runtime import JobRuntime
from edged.beat.saved_arrays import arrays_under
from edged.data.flow import State
from edged.operators.base import Operator
from edged.platform.disk import Disk, SystemDisk, sync_files

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
        self._loaded: dict[int, dict[_Part, State]] = {}
        """By beat, what its record names."""
        self.loaded_bytes = 0
        """Bytes of the files that records since the last noted snapshot name."""
        self._shelved: frozenset[str] = frozenset()
        self._adopted = -1
        self._to_sync: list[Operator] = []

    def follow(self, jobs: Iterable[JobRuntime], shelved: Collection[str] = ()) -> None:
        """Take over the operators of these jobs; the files of the `shelved` ones stay."""
        self._shelved = frozenset(shelved)
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
        self.loaded_bytes = 0
        self._to_sync = list(self._operators.values())

    def sync(self) -> None:
        """Make the files of the last noted snapshot durable; any thread."""
        for operator in self._to_sync:
            operator.sync()

    def submit(self, beat: int, facts: BeatFacts, adopted: int) -> Callable[[], None]:
        """Note the files that the record of `beat` names, and then `collect`: the beat itself may
        have merged them.  The result, for any thread, makes the files durable."""
        named: dict[_Part, State] = {}
        files: dict[str, list[str]] = {}
        for job, mine in facts.jobs.items():
            for id, made in (mine.loads or {}).items():
                states = {path: runs for path, runs in made.items() if isinstance(runs, list)}
                named[job, id] = {f"{path}/files": _text(runs) for path, runs in states.items()}
                for path, runs in states.items():
                    directory = f"{self._directory}/{job}/{id}/{path}"
                    files[directory] = [run["name"] for run in runs]
                    self.loaded_bytes += sum(run["bytes"] for run in runs)
        if any(files.values()):
            self._loaded[beat] = named
        self.collect(adopted)
        return partial(_sync, self._disk, files)

    def collect(self, adopted: int) -> None:
        """Delete what nothing needs since the snapshot of beat `adopted` is the newest."""
        if adopted == self._adopted or adopted not in self._named:
            return
        self._adopted = adopted
        older = sorted(beat for beat in self._named if beat <= adopted)
        for beat in older[:-SNAPSHOTS_KEPT]:
            del self._named[beat]
        for beat in [beat for beat in self._loaded if beat <= min(self._named)]:
            del self._loaded[beat]
        kept = [*self._named.values(), *self._loaded.values()]
        for part, operator in self._operators.items():
            operator.keep([named[part] for named in kept if part in named])
        needed = {part for named in kept for part in named} | {*self._operators}
        for job in set(self._names(self._directory)) - self._shelved:
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


def _text(runs: Sequence[Any]) -> npt.NDArray[np.uint8]:
    """Runs as the `files` of a state (`edged.tables.base.TableState.save`)."""
    return np.frombuffer(json.dumps(runs).encode(), np.uint8)


def _sync(disk: Disk, files: Mapping[str, Sequence[str]]) -> None:
    """Make these files durable, by directory."""
    for directory, names in files.items():
        sync_files(disk, directory, names)
