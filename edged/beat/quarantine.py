"""The quarantine: files of rows that killed the process repeatedly (`edged.beat.crash_counter`)."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from edged.beat.record import JobFacts
from edged.beat.runtime import JobRuntime
from edged.data.flow import BeatContext
from edged.events.publisher import EventPublisher
from edged.platform.disk import DISK_FULL, Buffer, SystemDisk, replace_file


class Quarantine:
    """The directory `quarantine` of the store: an Arrow file for each stream that was set aside."""

    def __init__(self, directory: Path, publisher: EventPublisher) -> None:
        self._directory, self._publisher = directory, publisher
        self.rows = 0
        """Rows set aside by this process."""

    def set_aside(self, beat: BeatContext, job: JobRuntime, facts: JobFacts) -> None:
        """Write the rows that the job would take in this beat, and take none of them.

        Waits for space where the disk is full.
        """
        for name, f in facts.streams.items():
            if not f.take_rows:
                continue
            staging = job.streams[name].staging
            batch = staging.pending(f.take_rows).to_arrow()
            path = self._directory / f"beat-{beat.number}-{job.plan.name}-{name}.arrow"
            out = pa.BufferOutputStream()
            with pa.ipc.new_file(out, batch.schema) as writer:
                writer.write_batch(batch)
            self._write(beat, path, memoryview(out.getvalue()))
            staging.consume(f.take_chunks, f.take_rows)
            self.rows += f.take_rows
            self._publisher.input_set_aside(job.plan.name, name, f.take_rows, str(path))
            f.set_aside, f.take_chunks, f.take_rows = [f.take_chunks, f.take_rows], 0, 0

    def _write(self, beat: BeatContext, path: Path, data: Buffer) -> None:
        while True:
            try:
                self._directory.mkdir(exist_ok=True)
                return replace_file(SystemDisk(), str(path), [data])
            except OSError as problem:
                if problem.errno not in DISK_FULL or beat.await_room is None:
                    raise
                beat.await_room(OSError(problem.errno, problem.strerror, str(path)))
