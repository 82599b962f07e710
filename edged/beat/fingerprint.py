"""The fingerprint of a beat's input, by which input that kills the process is known again."""

from __future__ import annotations

import zlib
from typing import Any

from edged.beat.record import JobFacts
from edged.beat.runtime import JobRuntime


def fingerprint(job: JobRuntime, facts: JobFacts) -> int:
    """A checksum of the rows that a job takes, equal when they are sent again; never 0."""
    crc = zlib.crc32(job.plan.name.encode())
    for stream, f in facts.streams.items():
        staging = job.streams[stream].staging
        for number in staging.chunks().producer[: f.take_chunks]:
            crc = zlib.crc32(staging.producers.ids[number].encode(), crc)
        for c in staging.pending(f.take_rows).columns:
            values: Any = c.values
            if c.offsets is not None:
                values = values[c.offsets[0] : c.offsets[-1]]
                crc = zlib.crc32((c.offsets - c.offsets[0]).data, crc)
            crc = zlib.crc32(values, crc)
    return 1 << 32 | crc
