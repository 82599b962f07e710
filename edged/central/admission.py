"""Admission: the pure decision which pages of a delivery land, given a device's high-water marks.

Rules, in order

 1. Session: within (device, epoch) the counter never falls, and one counter has one nonce.  A
    delivery that breaks this comes from a cloned or stale process: `fenced`, its pages are ignored.
 2. Pages are processed in order up to the first with a problem.  Pages before it land and are
    acknowledged; pages after it are ignored.
 3. seq = high water + 1 lands.  seq <= high water is a duplicate: acknowledged again, not landed;
    if its checksum is known and differs it is a `conflict` (two histories under one name).
    seq > high water + 1 is a `gap`; `expected` is the missing number.  It lands all the same where
    the delivery declares all missing pages as lost (a device that gave them up, or whose disk
    damaged them).  Telemetry may have gaps: its reports are not durable on the device, the newest
    wins, and numbers are never reused (`edged/uplink/telemetry.py`), so a number above the high
    water is new and any other is old.
 4. A page whose stream@version is not registered is `unknown_schema`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from edged.central.highwater import HighWaterTable
from edged.central.segments import digest64
from edged.pages.format import Header
from edged.uplink.telemetry import STREAM as TELEMETRY

FENCED, GAP, UNKNOWN_SCHEMA, CONFLICT = "fenced", "gap", "unknown_schema", "conflict"
DAMAGED, FULL, LIMIT, QUOTA = "damaged", "full", "limit", "quota"


@dataclass(frozen=True, slots=True)
class PageProblem:
    """Why a delivery stopped.  Fields that do not apply are None."""

    problem: str
    detail: str
    stream: str | None = None
    version: int | None = None
    partition: int | None = None
    seq: int | None = None
    expected: int | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Delivery:
    """One request: its sender and its valid pages in order, up to the first damage (if any)."""

    device: str
    epoch: int
    counter: int
    nonce: int
    pages: Sequence[tuple[Header, memoryview]]
    damage: PageProblem | None = None
    lost: tuple[str, int, int, int] | None = None
    """(stream, partition, first, last): pages that the device has lost for good."""
    token: str = ""
    """The sender's."""

    def declares(self, header: Header, high: int) -> bool:
        """Whether all pages of a partition between its high water and this page are lost."""
        if self.lost is None:
            return False
        stream, partition, first, last = self.lost
        same = (header.stream, header.partition) == (stream, partition)
        return same and first <= high + 1 and header.seq <= last + 1


@dataclass(slots=True)
class DeliveryOutcome:
    """The result of a delivery.  `acked` holds the high water of every partition in it."""

    acked: dict[tuple[str, int], int] = field(default_factory=dict)
    landed: list[tuple[Header, memoryview]] = field(default_factory=list)
    duplicates: int = 0
    problem: PageProblem | None = None
    new_session: bool = False


def admit(
    delivery: Delivery,
    table: HighWaterTable,
    registered: Callable[[str, int], bool],
    known_crc: Callable[[Header], int | None],
) -> DeliveryOutcome:
    """Decide on `delivery`, raising the high waters in `table` for the pages that land.

    `known_crc` returns the checksum under which a page landed, if it is still known.
    """
    outcome = DeliveryOutcome()
    outcome.problem = _fence(delivery, table, outcome)
    if outcome.problem is not None:
        return outcome
    for header, page in delivery.pages:
        outcome.problem = _take(header, page, delivery, table, registered, known_crc, outcome)
        if outcome.problem is not None:
            return outcome
    outcome.problem = delivery.damage
    return outcome


def _fence(
    delivery: Delivery, table: HighWaterTable, outcome: DeliveryOutcome
) -> PageProblem | None:
    counter, nonce = table.session(delivery.epoch)
    if not table.has_session_room(delivery.epoch):
        return PageProblem(LIMIT, f"device {delivery.device} has too many epochs and partitions")
    if delivery.counter > counter:
        table.set_session(delivery.epoch, delivery.counter, delivery.nonce)
        outcome.new_session = True
    elif (delivery.counter, delivery.nonce) != (counter, nonce):
        return PageProblem(
            FENCED,
            f"device {delivery.device} epoch {delivery.epoch} sends in session "
            f"{delivery.counter}, but another process has already used session {counter}: "
            "two daemons run on copies of one store; stop one and give it a new store",
        )
    return None


def _take(
    header: Header,
    page: memoryview,
    delivery: Delivery,
    table: HighWaterTable,
    registered: Callable[[str, int], bool],
    known_crc: Callable[[Header], int | None],
    outcome: DeliveryOutcome,
) -> PageProblem | None:
    if not registered(header.stream, header.version):
        return _problem(
            UNKNOWN_SCHEMA,
            header,
            f"{header.stream}@{header.version} is not registered: PUT its schema first",
        )
    stream = digest64(header.stream)
    high, crc = table.high(header.epoch, stream, header.partition)
    if header.seq <= high:
        known = crc if header.seq == high else known_crc(header)
        if known is not None and known != header.checksum:
            return _problem(
                CONFLICT,
                header,
                f"{header.name} has checksum {header.checksum:08x}, but landed with {known:08x}",
            )
        outcome.duplicates += 1
    elif not (follows(header, high) or delivery.declares(header, high)):
        return _problem(
            GAP, header, f"{header.name} does not follow: seq {high + 1} is next", high + 1
        )
    elif not table.has_room(header.epoch, stream, header.partition):
        return _problem(LIMIT, header, f"device {header.device} has too many partitions")
    else:
        table.raise_high(header.epoch, stream, header.partition, header.seq, header.checksum)
        outcome.landed.append((header, page))
        high = header.seq
    outcome.acked[header.stream, header.partition] = high
    return None


def follows(header: Header, high: int) -> bool:
    """Whether the page may land after the high water of its partition."""
    return header.seq == high + 1 or (header.stream == TELEMETRY and header.seq > high)


def _problem(kind: str, header: Header, detail: str, expected: int | None = None) -> PageProblem:
    return PageProblem(
        kind, detail, header.stream, header.version, header.partition, header.seq, expected
    )
