"""Gaps: what a store has lost for good, as records for the operator and the centre.

A gap is a range of sequence numbers: pages of a (stream, partition), or batches of a producer.  It
says that all or some of the range is lost, and never less than what is.  `STORE/gaps` is two lines:
JSON `{"epoch": "<16 hex digits>", "gaps": total, "pages": total, "rows": total, "newest": [gap,
…]}`, and the CRC-32 of the first line in decimal.  `rows` counts the lost rows that are known.

A gap is durable before its loss takes effect, so that a crash in between leaves a reported range
and never an unreported loss.  Recording a gap again changes nothing, and a gap that continues or
overlaps a recorded one extends it: a store that drops pages one by one keeps one record a
partition.  The newest GAPS_KEPT records are kept; the totals count all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from edged.platform.disk import Disk
from edged.store.checked_lines import read_checked, write_checked

DAMAGED, DROPPED = "damaged", "dropped"
"""Reasons: the medium returned other bytes than were written; the store was full."""
GAPS_KEPT = 256
OnGap = Callable[["Gap"], None]


@dataclass(frozen=True, slots=True)
class Gap:
    """One lost range; times are microseconds since 1970 UTC, None where unknown."""

    reason: str
    stream: str
    """The stream of the pages, or the job's stream that the batches were sent to."""
    first: int
    """First and `last` sequence number of the range, both included."""
    last: int
    partition: int | None = None
    """Of pages; None for batches."""
    job: str = ""
    producer: str = ""
    """Of batches; empty for the anonymous producer."""
    first_us: int | None = None
    """First and `last_us` event time of the lost rows."""
    last_us: int | None = None
    rows: int | None = None
    """Lost rows, None where unknown."""
    found_us: int = 0
    """Wall clock when the loss was found."""
    detail: str = ""
    """What happened, and the file that holds what was set aside."""

    @property
    def pages(self) -> int:
        """Lost pages; 0 for a gap of batches."""
        return 0 if self.partition is None else self.last - self.first + 1

    def has(self, stream: str, partition: int, seq: int) -> bool:
        """Whether a page is within this range."""
        return (self.stream, self.partition) == (stream, partition) and (
            self.first <= seq <= self.last
        )

    def text(self) -> str:
        """The gap in words."""
        what = "pages" if self.partition is not None else "batches"
        of = f"partition {self.partition}" if self.partition is not None else self._sender()
        rows = "" if self.rows is None else f", {self.rows} rows"
        more = f": {self.detail}" if self.detail else ""
        return f"{self.stream} {of}: {what} {self.first} to {self.last} {self.reason}{rows}{more}"

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self)

    def joins(self, other: Gap) -> bool:
        """Whether the ranges are of one origin and touch or overlap."""
        same = all(getattr(self, name) == getattr(other, name) for name in _ORIGIN)
        return same and self.first <= other.last + 1 and other.first <= self.last + 1

    def covers(self, other: Gap) -> bool:
        """Whether `other` is within this range."""
        return self.joins(other) and self.first <= other.first and other.last <= self.last

    def union(self, other: Gap) -> Gap:
        """Both ranges as one, with the newer one's details."""
        return replace(
            other,
            first=min(self.first, other.first),
            last=max(self.last, other.last),
            first_us=_extreme(min, self.first_us, other.first_us),
            last_us=_extreme(max, self.last_us, other.last_us),
            rows=None if self.rows is None or other.rows is None else self.rows + other.rows,
        )

    def _sender(self) -> str:
        return f"of job {self.job} from {self.producer or 'unnamed senders'}"


_ORIGIN = ("reason", "stream", "partition", "job", "producer")


def _extreme(pick: Callable[[int, int], int], a: int | None, b: int | None) -> int | None:
    return pick(a, b) if a is not None and b is not None else (b if a is None else a)


class GapLog:
    """The gaps of one store, in its file.  `add` belongs to the store's thread; the figures are
    safe on any thread."""

    def __init__(self, disk: Disk, path: str, epoch: int) -> None:
        """Read the file; a missing or damaged one counts as empty, and `damaged` says which."""
        self._disk, self._path, self._epoch = disk, path, epoch
        self._lock = threading.Lock()
        self._newest: list[Gap] = []
        self._on_gap: OnGap | None = None
        self._unheard: list[Gap] = []
        self.count = self.pages = self.rows = 0
        """Gaps, and the lost pages and rows of them, since the store was made."""
        self.damaged = not self._read()

    @property
    def newest(self) -> list[Gap]:
        """The newest gaps, oldest first."""
        with self._lock:
            return list(self._newest)

    def add(self, gaps: Iterable[Gap]) -> list[Gap]:
        """Record gaps, durably on return; returns those that say something new.

        Raises OSError, with nothing recorded.
        """
        with self._lock:
            before = (list(self._newest), self.count, self.pages, self.rows)
            new = [gap for gap in gaps if self._merge(gap)]
            try:
                if new:
                    self.write()
            except OSError:
                self._newest, self.count, self.pages, self.rows = before
                raise
            self._unheard += new
        self._tell()
        return new

    def listen(self, on_gap: OnGap) -> None:
        """Call `on_gap` for every gap found since the start, and for later ones on the thread that
        adds them."""
        self._on_gap = on_gap
        self._tell()

    def status(self, newest: int = 16) -> dict[str, Any]:
        """For the status document: the totals and the newest gaps, oldest first."""
        with self._lock:
            found = [gap.to_json() for gap in self._newest[-newest:]]
            return {"count": self.count, "pages": self.pages, "rows": self.rows, "newest": found}

    def _tell(self) -> None:
        if self._on_gap is None:
            return
        with self._lock:
            unheard, self._unheard = self._unheard, []
        for gap in unheard:
            self._on_gap(gap)

    def _merge(self, gap: Gap) -> bool:
        """Record a gap in memory; False where it is known."""
        if any(known.covers(gap) for known in self._newest):
            return False
        merged = gap
        for known in [known for known in self._newest if known.joins(merged)]:
            self._newest.remove(known)
            self._count(known, -1)
            merged = known.union(merged)
        self._newest.append(merged)
        del self._newest[:-GAPS_KEPT]
        self._count(merged, 1)
        return True

    def _count(self, gap: Gap, sign: int) -> None:
        self.count += sign
        self.pages += sign * gap.pages
        self.rows += sign * (gap.rows or 0)

    def write(self) -> None:
        """Replace the file.  Raises OSError."""
        newest = [gap.to_json() for gap in self._newest]
        content = {"epoch": f"{self._epoch:016x}", "gaps": self.count, "pages": self.pages,
                   "rows": self.rows, "newest": newest}  # fmt: skip
        write_checked(self._disk, self._path, content)

    def _read(self) -> bool:
        """Read the file; False where it is damaged."""
        if not self._disk.exists(self._path):
            return True
        document = read_checked(self._disk, self._path)
        if document is None or document["epoch"] != f"{self._epoch:016x}":
            return False
        known = {f.name for f in fields(Gap)}
        self.count, self.pages, self.rows = (document[k] for k in ("gaps", "pages", "rows"))
        self._newest = [
            Gap(**{k: v for k, v in gap.items() if k in known}) for gap in document["newest"]
        ]
        return True
