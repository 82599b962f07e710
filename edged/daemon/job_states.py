"""Operators' state on its way between daemons, when a graph's stage gets more or fewer instances.

    export ─► read in parts ─► (split and merged elsewhere) ─► written in parts ─► put with the job

A job is exported while it has nothing left to race: it is paused, or drained.  A put with a state
loads it in place of what the operators would carry over; streams and sinks carry over as ever.  The
state is in a snapshot before the put is answered.

Parts are kept in memory, one export and one import for each job, and end with the process.  Of the
exports, and of the imports, only the newest stay that have STATE_BYTES_MAX together.
`edged.job.state_transfer` has the format.
"""

from __future__ import annotations

import base64
import threading
import zlib
from collections.abc import Sized
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from edged.beat.runtime import JobRuntime
from edged.beat.saved_arrays import put_arrays
from edged.control.futures import resolve
from edged.data.flow import State
from edged.data.scratch import Scratch
from edged.errors import CommandError
from edged.job import state_transfer
from edged.job.changes import RUNNING
from edged.job.state_transfer import STATE_BYTES_MAX

PART_BYTES_MAX = 512 << 10
"""Bytes of a part that is read; one that is written is bounded by the request."""
Answer = dict[str, Any]
_S = TypeVar("_S", bound=Sized)


@dataclass
class ImportedState:
    """The parts of a packed state that have come so far."""

    data: bytearray = field(default_factory=bytearray)
    crc: int = 0

    def __len__(self) -> int:
        return len(self.data)

    def unpacked(self) -> State:
        """Its arrays.  Raises CommandError."""
        try:
            return state_transfer.unpack(bytes(self.data))
        except ValueError as problem:
            raise CommandError("invalid", str(problem), where="state") from None


class _HeldStates(Generic[_S]):
    """States by job; any thread.  The oldest go where all have more than STATE_BYTES_MAX."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, _S] = {}

    def get(self, name: str) -> _S | None:
        with self._lock:
            return self._held.get(name)

    def put(self, name: str, state: _S) -> None:
        """Hold a state, as the newest one."""
        with self._lock:
            self._held.pop(name, None)
            self._held[name] = state
            total = sum(map(len, self._held.values()))
            while total > STATE_BYTES_MAX and len(self._held) > 1:
                total -= len(self._held.pop(next(iter(self._held))))

    def drop(self, name: str, state: _S) -> None:
        """Forget a state, unless another one has taken its place."""
        with self._lock:
            if self._held.get(name) is state:
                del self._held[name]


class JobStates:
    """Exports and imports by job; the heart's thread."""

    def __init__(self, planner: ThreadPoolExecutor) -> None:
        self._planner = planner
        self._exports = _HeldStates[bytes]()
        self._imports = _HeldStates[ImportedState]()

    def export(self, job: JobRuntime) -> Future[Answer]:
        """Make an export of a job's operators.  Raises CommandError."""
        name, arrays = job.plan.name, State()
        if not job.dormant:
            do = "pause or drain it, and ask again"
            if job.meta.state == RUNNING and not job.draining:
                raise CommandError("conflict", f"job {name} is running", do=do)
            raise CommandError("busy", f"job {name} still races rows", do=do, retry_s=1.0)
        for id, operator in job.operators.items():
            if job.plan.operators[id].table_states():
                what = f"operators.{id} keeps tables in files"
                raise CommandError("conflict", what, do="its instances cannot change")
            saved = operator.save(Scratch())
            if state_transfer.size(arrays) + state_transfer.size(saved) > STATE_BYTES_MAX:
                what = f"the state of job {name} has more than {STATE_BYTES_MAX} bytes"
                raise CommandError("conflict", what, do="its instances cannot change")
            put_arrays(arrays, f"operators/{id}", {k: array.copy() for k, array in saved.items()})
        done: Future[Answer] = Future()

        def pack() -> Answer:
            data = state_transfer.pack(arrays)
            self._exports.put(name, data)
            return {"name": name, "bytes": len(data), "crc": zlib.crc32(data)}

        self._planner.submit(resolve, done, pack)
        return done

    def read(self, name: str, offset: int) -> Answer:
        """A part of an export; the last one ends it.  Raises CommandError."""
        data = self._exports.get(name)
        if data is None:
            raise CommandError("missing", f"there is no export of job {name}", where="name")
        if offset >= len(data):
            raise CommandError("invalid", f"the export has {len(data)} bytes", where="offset")
        part = data[offset : offset + PART_BYTES_MAX]
        if offset + len(part) == len(data):
            self._exports.drop(name, data)
        return {"offset": offset, "data": base64.b64encode(part).decode()}

    def write(self, name: str, offset: int, text: str) -> Answer:
        """Append a part of an import; offset 0 begins.  Raises CommandError."""
        try:
            part = base64.b64decode(text, validate=True)
        except ValueError as problem:  # of the base64, or of the text's other characters
            raise CommandError("invalid", f"is not base64: {problem}", where="data") from None
        found = (None if offset == 0 else self._imports.get(name)) or ImportedState()
        if len(found) != offset:
            what = f"{len(found)} bytes are here, not {offset}"
            raise CommandError("conflict", what, where="offset", do="begin again at 0")
        if len(found) + len(part) > STATE_BYTES_MAX:
            raise CommandError("invalid", f"is more than {STATE_BYTES_MAX} bytes", where="data")
        found.data += part
        found.crc = zlib.crc32(part, found.crc)
        self._imports.put(name, found)
        return {"name": name, "bytes": len(found), "crc": found.crc}

    def imported(self, name: str) -> ImportedState:
        """The import for a job.  Raises CommandError."""
        found = self._imports.get(name)
        if found is None:
            do = f"PUT /v1/jobs/{name}/state first; a restart forgets it"
            raise CommandError("conflict", f"no state came for job {name}", where="state", do=do)
        return found

    def loaded(self, name: str, state: ImportedState) -> None:
        """Forget an import that its job was put with."""
        self._imports.drop(name, state)
