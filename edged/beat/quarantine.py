"""The quarantine: files of rows that killed the process repeatedly, and of rows that an operator
could not process (`edged.beat.crash_counter`, `edged.operators.base.RefusedRows`)."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from edged.beat.record import JobFacts
from edged.beat.runtime import JobRuntime
from edged.data.flow import BeatContext
from edged.events.publisher import EventPublisher
from edged.operators.base import RefusedRows
from edged.platform.disk import DISK_FULL, Buffer, SystemDisk, replace_file

REFUSED_BYTES_MAX = 64 << 20
"""Most bytes of rows that operators refuse, by one process; all are counted."""
REFUSED_EVENT_US = 60_000_000
"""Least time between two events of rows that an operator refuses."""
REASON = "_reason"
"""The column with the reason of a refused row."""


class Quarantine:
    """The directory `quarantine` of the store: an Arrow file for each stream that was set aside,
    and for each beat in which an operator refused rows."""

    def __init__(self, directory: Path, publisher: EventPublisher) -> None:
        self._directory, self._publisher = directory, publisher
        self.rows = 0
        """Rows set aside by this process."""
        self._refused_bytes = 0
        self._noted_us: dict[tuple[str, str], int] = {}
        """By job and operator, when the last event of refused rows was."""

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
            self._write(beat, path, _file_of(batch))
            staging.consume(f.take_chunks, f.take_rows)
            self.rows += f.take_rows
            self._publisher.input_set_aside(job.plan.name, name, f.take_rows, str(path))
            f.set_aside, f.take_chunks, f.take_rows = [f.take_chunks, f.take_rows], 0, 0

    def take_refused(self, beat: BeatContext, job: JobRuntime) -> str:
        """Write the rows that operators refused in the beat.  Returns why an operator wants the job
        to be paused; empty: it goes on."""
        problem = ""
        for id, operator in job.operators.items():
            problem = problem or operator.problem
            for refused in operator.set_aside:
                self._refuse(beat, job.plan.name, id, refused)
            operator.set_aside, operator.problem = (), ""  # it may not run in the next beat
        return problem

    def _refuse(self, beat: BeatContext, job: str, id: str, refused: RefusedRows) -> None:
        batch = refused.batch.to_arrow()
        batch = batch.append_column(REASON, pa.array(refused.reasons, pa.string()))
        suffix = f"-{refused.input}" if refused.input else ""
        path = self._directory / f"beat-{beat.number}-{job}-{id}{suffix}.arrow"
        if self._refused_bytes < REFUSED_BYTES_MAX:
            self._refused_bytes += batch.nbytes
            self._write(beat, path, _file_of(batch))
        self.rows += batch.num_rows
        last = self._noted_us.get((job, id))
        if last is None or beat.wall_us - last >= REFUSED_EVENT_US:
            self._noted_us[job, id] = beat.wall_us
            self._publisher.rows_refused(job, id, batch.num_rows, refused.reasons[0], str(path))

    def _write(self, beat: BeatContext, path: Path, data: Buffer) -> None:
        while True:
            try:
                self._directory.mkdir(exist_ok=True)
                return replace_file(SystemDisk(), str(path), [data])
            except OSError as problem:
                if problem.errno not in DISK_FULL or beat.await_room is None:
                    raise
                beat.await_room(OSError(problem.errno, problem.strerror, str(path)))


def _file_of(batch: pa.RecordBatch) -> Buffer:
    """An Arrow file of one batch."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_file(out, batch.schema) as writer:
        writer.write_batch(batch)
    return memoryview(out.getvalue())
