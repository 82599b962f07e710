"""The upload coalescer: offers delayable pages to the uplink together, so that a radio wakes, and
stays awake for its tail, once for all of them.

A job that promises `upload_within` allows its sealed, durable pages to wait that long.  All waiting
pages are offered at once, in the order in which they were sealed, as soon as

    a page has waited for its job's whole `upload_within` (timer)
    a page arrives that must not wait: the radio is on anyway
    the policy predicts that the next beat comes too late, so that no wake is spent on sending alone
    the waiting pages are an eighth of the store, or the store is full
    the pages are needed at the centre: a drain, `POST /v1/uplink:retry`

Pages that are pending when the daemon starts are offered at once, because their age is not known.
The latency promise ends at the sealed page and is not affected.

Invariant: each page is either waiting here or offered.  Within a (stream, partition) no waiting
page has a lower sequence number than an offered one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from edged.job.plan import JobPlan
from edged.links.in_flight import InFlight
from edged.links.page import is_link
from edged.platform.clock import Clock
from edged.platform.timers import TimerFd
from edged.uplink.handle import Uplink

if TYPE_CHECKING:
    from edged.pages.sealed import PageKey, SealedPage
    from edged.store.gaps import Gap
    from edged.store.page_index import PageRef

STORE_SHARE = 8
"""Waiting pages take at most 1 / STORE_SHARE of the store."""


class UploadCoalescer:
    """Stands between the committer and its uplink.  Belongs to the commit thread; only
    `release_soon` and the figures are safe on other threads.

    Call `release` when `timer` is readable.
    """

    def __init__(
        self,
        uplink: Uplink,
        clock: Clock,
        store_bytes: int | None,
        pending: Iterable[PageRef],
        in_flight: InFlight | None = None,
    ) -> None:
        """`store_bytes` is the store's limit; `pending` are pages that an earlier process left;
        `in_flight` counts the pages of links."""
        self.timer = TimerFd()
        """Readable when the waiting pages are due."""
        self.releases = 0
        self.offered_bytes = 0
        self.passed_us = 0
        """When pages were last given to the uplink, monotonic; 0: never."""
        self._uplink, self._clock = uplink, clock
        self._in_flight = InFlight() if in_flight is None else in_flight
        self._bytes_max = None if store_bytes is None else store_bytes // STORE_SHARE
        self._within_us: dict[str, int] = {}
        self._pages: dict[PageKey, PageRef] = {}
        self._bytes = 0
        self._due_us: int | None = None
        self._last: dict[tuple[str, int], int] = {}
        """The last page offered, by (stream, partition)."""
        self._bypassed = self._soon = self._watched = self._forwards = False
        self._pass(list(pending))

    def set_jobs(self, plans: Sequence[JobPlan]) -> None:
        """Apply the jobs' promises.  If they changed, all waiting pages are offered at once."""
        within_us = {
            stream: plan.promises.upload_within_us
            for plan in plans
            for sink in plan.sinks.values()
            for stream, _, _ in sink.schemas()
            if plan.promises.upload_within_us
        }
        self._forwards = any(plan.promises.forwards for plan in plans)
        self._watch_acks()
        if within_us != self._within_us:
            self._within_us = within_us
            self.release()

    def sealed(self, pages: Iterable[SealedPage]) -> None:
        """Count pages of links that will be offered; any thread."""
        links = [page for page in pages if is_link(page.key.stream)]
        if links:
            self._in_flight.sealed(
                (p.key.stream, p.key.partition, p.key.seq, len(p.data)) for p in links
            )

    def offer(self, refs: Iterable[PageRef]) -> None:
        """Add new pages, or new locations of known pages, in order of seq within each partition."""
        moved, new = [], False
        for ref in refs:
            key = ref.key
            if key.seq <= self._last.get((key.stream, key.partition), 0):
                moved.append(ref)  # the store has moved it
            elif key in self._pages:
                self._pages[key] = ref
            else:
                new |= key.stream not in self._within_us
                self._hold(ref)
        self._uplink.offer(moved)
        full = self._bytes_max is not None and self._bytes >= self._bytes_max
        if new or full or self._soon or self._bypassed:
            self.release()

    def lost(self, gaps: Sequence[Gap]) -> None:
        """Forget pages that the store has given up."""
        for gap in gaps:
            for key in [k for k in self._pages if gap.has(k.stream, k.partition, k.seq)]:
                self._bytes -= self._pages.pop(key).length
        self._uplink.lost((g.stream, g.partition or 0, g.first, g.last) for g in gaps)
        for gap in gaps:
            if is_link(gap.stream):
                self._in_flight.acked(gap.stream, gap.partition or 0, gap.last)

    def give_up(self, ranges: Iterable[tuple[str, int, int, int]]) -> None:
        """Forget pages of links that are no longer served: stream, partition, first, last."""
        ranges = list(ranges)
        self._uplink.lost(ranges)
        for stream, partition, _, last in ranges:
            self._in_flight.acked(stream, partition, last)

    def release(self) -> None:
        """Offer all waiting pages."""
        refs = list(self._pages.values())
        self._pages, self._bytes, self._soon = {}, 0, False
        if self._due_us is not None:
            self._due_us = None
            self.releases += 1
            self.timer.disarm()
        if refs:
            self._pass(refs)

    def bypass(self, wanted: bool) -> None:
        """Switch coalescing off or on.  While it is off no page waits, and the uplink's
        `watch_fileno` signals acks."""
        self._bypassed = wanted
        if wanted:
            self.release()
        self._watch_acks()

    @property
    def bypassed(self) -> bool:
        """Whether coalescing is off because the pages are needed at the centre."""
        return self._bypassed

    def release_soon(self) -> None:
        """Release with the next pages offered.  Safe on any thread."""
        self._soon = True

    @property
    def within_us(self) -> int:
        """The shortest `upload_within` of all jobs in µs; 0 without one."""
        return min(self._within_us.values(), default=0)

    def status(self) -> dict[str, Any]:
        """Waiting pages and bytes, their due time (monotonic µs), and the number of releases."""
        return {
            "pages": len(self._pages), "bytes": self._bytes, "due_us": self._due_us,
            "releases": self.releases,
        }  # fmt: skip

    # the uplink interface that the committer uses ----------------------------------------------

    def fileno(self) -> int:
        """The uplink's descriptor."""
        return self._uplink.fileno()

    def poll(self) -> list[tuple[str, int, int]]:
        """Acks since the last call."""
        acks = self._uplink.poll()
        for stream, partition, seq in acks:
            if is_link(stream):
                self._in_flight.acked(stream, partition, seq)
        self._watch_acks()
        return acks

    def unreadable(self) -> list[tuple[str, int]]:
        """Partitions whose first page could not be read for sending, since the last call."""
        return self._uplink.unreadable()

    def missing(self) -> list[tuple[str, int, int]]:
        """Pages that the centre asks for and that were not offered: (stream, partition, first)."""
        return self._uplink.missing()

    def set_links(self, targets: Sequence[dict[str, Any]]) -> bool:
        """Serve these links.  True: a child was started.  A new child has no pages."""
        return self._uplink.set_links(targets)

    def restart_if_dead(self) -> bool:
        """Whether a new child was started.  A new child has no pages."""
        return self._uplink.restart_if_dead()

    def close(self) -> None:
        """Release the timer.  Waiting pages stay in the store for the next process."""
        self.timer.close()

    def _hold(self, ref: PageRef) -> None:
        self._pages[ref.key] = ref
        self._bytes += ref.length
        within_us = self._within_us.get(ref.key.stream)
        if within_us is None:
            return  # it is offered at once
        due_us = self._clock.monotonic_us() + within_us
        if self._due_us is None or due_us < self._due_us:
            self._due_us = due_us
            self.timer.arm(due_us)

    def _watch_acks(self) -> None:
        """Have acks signalled while they are needed: where pages are awaited at the centre, where
        a link has too much in flight, and where senders wait for those of receivers."""
        wanted = self._bypassed or self._forwards or self._in_flight.any_full()
        if wanted != self._watched:
            self._watched = wanted
            self._uplink.watch_acks(wanted)

    def _pass(self, refs: list[PageRef]) -> None:
        links = [r for r in refs if is_link(r.key.stream)]
        self._in_flight.sealed((r.key.stream, r.key.partition, r.key.seq, r.length) for r in links)
        self._watch_acks()
        for ref in refs:
            route = (ref.key.stream, ref.key.partition)
            self._last[route] = max(ref.key.seq, self._last.get(route, 0))
            self.offered_bytes += ref.length
        if refs:
            self.passed_us = self._clock.monotonic_us()
        self._uplink.offer(refs)
