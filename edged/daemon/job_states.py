"""Operators' state on its way between daemons, when a graph's stage gets more or fewer instances.

    export ─► read in parts ─► (split and merged elsewhere) ─► written in parts ─► put with the job

A job is exported while it has nothing left to race: it is paused, or drained.  A put with a state
loads it in place of what the operators would carry over; streams and sinks carry over as ever.  The
state is in a snapshot before the put is answered.

Parts are kept in memory, one export and one import for each job, and end with the process.
`edged.job.state_transfer` has the format.
"""

from __future__ import annotations

import base64
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from edged.beat.runtime import JobRuntime
from edged.beat.saved_arrays import put_arrays
from edged.control.futures import resolve
from edged.data.flow import State
from edged.data.scratch import Scratch
from edged.errors import CommandError
from edged.job import state_transfer

PART_BYTES_MAX = 512 << 10
"""Bytes of a part that is read; one that is written is bounded by the request."""
STATE_BYTES_MAX = 1 << 30
"""Most bytes of a packed state."""
Answer = dict[str, Any]


class JobStates:
    """Exports and imports by job; the heart's thread, but for `take`."""

    def __init__(self, planner: ThreadPoolExecutor) -> None:
        self._planner = planner
        self._exports: dict[str, bytes] = {}
        self._imports: dict[str, bytearray] = {}

    def export(self, job: JobRuntime) -> Future[Answer]:
        """Make an export of a job's operators.  Raises CommandError."""
        name, arrays = job.plan.name, State()
        if not job.dormant:
            do = "pause or drain it, and ask again"
            raise CommandError("busy", f"job {name} still races rows", do=do, retry_s=1.0)
        for id, operator in job.operators.items():
            if job.plan.operators[id].table_states():
                what = f"operators.{id} keeps tables in files"
                raise CommandError("conflict", what, do="its instances cannot change")
            saved = {key: array.copy() for key, array in operator.save(Scratch()).items()}
            put_arrays(arrays, f"operators/{id}", saved)
        done: Future[Answer] = Future()

        def pack() -> Answer:
            self._exports[name] = data = state_transfer.pack(arrays)
            return {"name": name, "bytes": len(data), "crc": zlib.crc32(data)}

        self._planner.submit(resolve, done, pack)
        return done

    def read(self, name: str, offset: int) -> Answer:
        """A part of an export; the last one ends it.  Raises CommandError."""
        if name not in self._exports:
            raise CommandError("missing", f"there is no export of job {name}", where="name")
        data = self._exports[name]
        part = data[offset : offset + PART_BYTES_MAX]
        if offset + len(part) >= len(data):
            del self._exports[name]
        return {"offset": offset, "data": base64.b64encode(part).decode()}

    def write(self, name: str, offset: int, text: str) -> Answer:
        """Append a part of an import; offset 0 begins.  Raises CommandError."""
        try:
            part = base64.b64decode(text, validate=True)
        except ValueError as problem:  # of the base64, or of the text's other characters
            raise CommandError("invalid", f"is not base64: {problem}", where="data") from None
        before = bytearray() if offset == 0 else self._imports.get(name, bytearray())
        if len(before) != offset:
            what = f"{len(before)} bytes are here, not {offset}"
            raise CommandError("conflict", what, where="offset", do="begin again at 0")
        if len(before) + len(part) > STATE_BYTES_MAX:
            raise CommandError("invalid", f"is more than {STATE_BYTES_MAX} bytes", where="data")
        before += part
        self._imports[name] = before
        return {"name": name, "bytes": len(before), "crc": zlib.crc32(before)}

    def take(self, name: str) -> State:
        """The import for a job, once.  Raises CommandError."""
        data = self._imports.pop(name, None)
        if data is None:
            do = f"PUT /v1/jobs/{name}/state first; a restart forgets it"
            raise CommandError("conflict", f"no state came for job {name}", where="state", do=do)
        try:
            return state_transfer.unpack(bytes(data))
        except ValueError as problem:
            raise CommandError("invalid", str(problem), where="state") from None
