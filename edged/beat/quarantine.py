"""Rows that kill the process are written here instead of being raced (see `attempts`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from edged.beat.record import JobFacts
from edged.beat.runtime import JobRuntime
from edged.data.flow import BeatContext
from edged.platform.disk import DISK_FULL, Buffer, SystemDisk, write_whole

Told = Callable[[JobRuntime, str, int, str], None]
"""Job, stream, rows, file."""


class Quarantine:
    """The directory `quarantine` of the store; a file of Arrow rows for each stream set aside."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.rows = 0
        self.told: Told = lambda *_: None
        """Told of every file."""

    def take(self, beat: BeatContext, job: JobRuntime, facts: JobFacts) -> None:
        """Write the rows that the job would take in this beat; it takes none of them.  Where the
        disk is full, that waits for room."""
        for name, f in facts.streams.items():
            if not f.take_rows:
                continue
            staging = job.streams[name].staging
            batch = staging.pending().slice(0, f.take_rows).to_arrow()
            path = self._directory / f"beat-{beat.number}-{job.plan.name}-{name}.arrow"
            out = pa.BufferOutputStream()
            with pa.ipc.new_file(out, batch.schema) as writer:
                writer.write_batch(batch)
            self._write(beat, path, memoryview(out.getvalue()))
            staging.consume(f.take_chunks, f.take_rows)
            self.rows += f.take_rows
            self.told(job, name, f.take_rows, str(path))
            f.set_aside, f.take_chunks, f.take_rows = [f.take_chunks, f.take_rows], 0, 0

    def _write(self, beat: BeatContext, path: Path, data: Buffer) -> None:
        while True:
            try:
                self._directory.mkdir(exist_ok=True)
                return write_whole(SystemDisk(), str(path), [data])
            except OSError as problem:
                if problem.errno not in DISK_FULL or beat.await_room is None:
                    raise
                beat.await_room(OSError(problem.errno, problem.strerror, str(path)))
