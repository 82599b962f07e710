"""The part of a job's memory that the open pages of its sinks may take.

Where the open pages of a sink need more than its share at the end of a beat, the largest are sealed
before they are full (`edged.pages.write`).  Within a beat they may take more, by what its rows
need.
"""

from __future__ import annotations

from collections.abc import Mapping

from edged.documents.units import show_size
from edged.errors import JobError
from edged.sinks.base import SinkPlan

OPEN_PAGES_SHARE = 4
"""Part of a job's memory, 1 in OPEN_PAGES_SHARE, that its open pages may take."""


def open_page_shares(memory_bytes: int, sinks: Mapping[str, SinkPlan]) -> dict[str, int]:
    """Bytes that the open pages of each sink with pages may take, of a job with `memory_bytes`.

    Each sink gets what its partitions need at least, one whole page at least, and of the rest a
    part in proportion to what whole pages in all partitions would need besides.
    """
    every = {name: sink.open_bytes() for name, sink in sinks.items()}
    rest = memory_bytes // OPEN_PAGES_SHARE - sum(size.least for size in every.values())
    wanted = sum(size.most - size.least for size in every.values())
    part = min(1.0, max(0, rest) / max(1, wanted))
    return {
        name: max(size.page, size.least + (int(part * (size.most - size.least)) >> 10 << 10))
        for name, size in every.items()
        if size.most
    }


def check_open_pages(memory_bytes: int, sinks: Mapping[str, SinkPlan]) -> None:
    """Check that a job's memory holds the smallest open pages of all partitions.  Raises
    JobError."""
    least = sum(sink.open_bytes().least for sink in sinks.values())
    if least > memory_bytes // OPEN_PAGES_SHARE:
        raise JobError(
            "promises.memory",
            f"the sinks' open pages take at least {show_size(least)}, more than a quarter of it",
            f"at least {show_size(OPEN_PAGES_SHARE * least)}, or fewer partitions",
        )
