"""The oracle of acknowledged ids: rows with unique ids, and the landing compared with them.

A row's id names its producer, its batch and its place in the batch; `check` and `note` are
functions of the id.  So every row that lands can be judged by itself, and the rows that must land
follow from the number of the last acknowledged batch of each producer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import numpy as np
import pyarrow as pa

from edged.central.landing_reader import select
from edged.errors import CentralError, ConfigError

BATCH = 20
"""Rows of a batch."""
BATCH_US = 50_000
"""Event time of a batch."""
START_US = 1_704_067_200_000_000
TIMESTAMP = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("key", pa.int32(), nullable=False),
        pa.field("time", TIMESTAMP, nullable=False),
        pa.field("check", pa.int64(), nullable=False),
        pa.field("note", pa.string()),
    ]
)
PAGES = {"rows": "a", "posted": "c"}
"""Streams of pages that copy a stream of rows."""
PAIRS = "pairs"
"""Pages with the join of streams a and b by id."""


def ids(producer: int, first: int, last: int) -> np.ndarray:
    """The ids of batches `first` to `last` of a producer."""
    batches = np.arange(first, last + 1, dtype=np.int64)[:, None] << 16
    return ((producer << 48) + batches + np.arange(BATCH, dtype=np.int64)).ravel()


def check_of(found: np.ndarray) -> np.ndarray:
    """The value of `check` that belongs to an id (splitmix64)."""
    with np.errstate(over="ignore"):
        x = found.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return (x ^ (x >> np.uint64(31))).view(np.int64)


def notes_of(found: np.ndarray) -> list[str | None]:
    """The value of `note` that belongs to an id: text of 0 to 39 characters, some null."""
    return [None if i % 7 == 0 else "edged" * (i % 8) + f"{i % 9999}" for i in found.tolist()]


def batch(producer: int, seq: int) -> pa.RecordBatch:
    """Batch `seq` of a producer; its event times rise with the number."""
    found = ids(producer, seq, seq)
    times = START_US + (seq - 1) * BATCH_US + np.arange(BATCH) * BATCH_US // BATCH
    columns = [
        pa.array(found),
        pa.array(np.full(BATCH, producer, np.int32)),
        pa.array(times).cast(TIMESTAMP),
        pa.array(check_of(found)),
        pa.array(notes_of(found), pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


@dataclass
class Verdict:
    """What the oracle counts; everything but `landed` and `gaps` is a violation."""

    missing: int = 0
    """Acknowledged, and neither landed nor reported lost."""
    duplicates: int = 0
    corrupted: int = 0
    """Landed with another content than sent, in a damaged page, or never sent."""
    reordered: int = 0
    """Landed after a later row of its producer."""
    gaps: int = 0
    """Acknowledged, not landed, and reported lost with its extent."""
    landed: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, other: Verdict) -> None:
        """Sum two verdicts into this one."""
        for part in fields(self):
            value = getattr(self, part.name)
            value += getattr(other, part.name)
            setattr(self, part.name, value)

    @property
    def violations(self) -> int:
        """The number of rows that break the promise."""
        return self.missing + self.duplicates + self.corrupted + self.reordered

    def note(self, what: str, found: np.ndarray) -> None:
        """Keep some of the ids that are wrong, readable."""
        if len(found):
            shown = ", ".join(f"{i >> 48}:{i >> 16 & 0xFFFFFFFF}.{i & 0xFFFF}" for i in found[:5])
            self.examples.append(f"{what} {len(found)}: {shown}")


@dataclass
class Landed:
    """The rows of one stream of pages, in landing order."""

    table: pa.Table
    corrupt_pages: int

    @property
    def ids(self) -> np.ndarray:
        """The ids of all rows."""
        return self.table.column("id").to_numpy()


def read(landing, stream: str, metadata: bool = False) -> Landed:
    """All rows of a stream of pages; none where it was never registered."""
    corrupt = []
    try:
        source = select(landing, stream, metadata=metadata)
    except (CentralError, ConfigError):
        return Landed(pa.table({"id": pa.array([], pa.int64())}), 0)
    rows = source.batches(lambda _: None, lambda *damage: corrupt.append(damage))
    return Landed(pa.Table.from_batches(rows, source.schema), len(corrupt))


def judge(
    landing, acked: Mapping[tuple[str, int], int], lost: Mapping[str, np.ndarray] | None = None
) -> Verdict:
    """Compare a landing with what was acknowledged: (stream, producer) -> last batch.

    `lost` are ids that were reported lost, by stream of pages.
    """
    total = Verdict()
    for pages, stream in PAGES.items():
        expected = {p: ids(p, 1, last) for (s, p), last in acked.items() if s == stream}
        _judge(read(landing, pages), pages, expected, lost or {}, total)
        _order(read(landing, pages).ids, pages, total)
    both = {p: min(acked[s, p] for s in "ab") for s, p in acked if s == "a" and ("b", p) in acked}
    if both:
        expected = {p: ids(p, 1, last) for p, last in both.items()}
        _judge(read(landing, PAIRS), PAIRS, expected, lost or {}, total)
    return total


def _judge(landed: Landed, pages: str, expected, lost, total: Verdict) -> None:
    """Count what is missing, twice, or wrong in one stream of pages."""
    found = landed.ids
    wanted = np.concatenate([*expected.values(), np.empty(0, np.int64)])
    absent = np.setdiff1d(wanted, found)
    reported = np.isin(absent, lost.get(pages, np.empty(0, np.int64)))
    unique, counts = np.unique(found, return_counts=True)
    strange = ~np.isin(unique >> 48, list(expected)) | ((unique & 0xFFFF) >= BATCH)
    wrong = _wrong(landed.table)
    total.missing += int((~reported).sum())
    total.gaps += int(reported.sum())
    total.duplicates += int((counts - 1).sum())
    total.corrupted += int(strange.sum() + wrong.sum()) + landed.corrupt_pages
    total.landed += len(found)
    total.note(f"{pages} missing", absent[~reported])
    total.note(f"{pages} twice", unique[counts > 1])
    total.note(f"{pages} corrupted", np.concatenate([unique[strange], found[wrong]]))


def _wrong(table: pa.Table) -> np.ndarray:
    """Which rows hold other values than those that belong to their id."""
    found = table.column("id").to_numpy()
    wrong = np.zeros(len(found), bool)
    if "check" in table.column_names:
        wrong |= table.column("check").to_numpy() != check_of(found)
    if "other" in table.column_names:
        wrong |= table.column("other").to_numpy() != found
    if "note" in table.column_names:
        had = table.column("note").to_pylist()
        wrong |= np.array([a != b for a, b in zip(had, notes_of(found), strict=True)], bool)
    return wrong


def _order(found: np.ndarray, pages: str, total: Verdict) -> None:
    """Count the rows that landed after a later row of their producer."""
    for producer in np.unique(found >> 48):
        own = found[found >> 48 == producer]
        behind = own[1:][own[1:] < np.maximum.accumulate(own)[:-1]]
        total.reordered += len(behind)
        total.note(f"{pages} reordered", behind)
