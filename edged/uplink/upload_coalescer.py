"""Upload windows of jobs: pages that may wait are offered to the uplink together, so that a radio
is woken, and stays awake for its tail, once for all of them.

A job that promises `upload_within` lets its sealed, durable pages wait for so long.  All that waits
is offered at once, in the order in which it was sealed, as soon as

    a page has waited for as long as its job allows (a timer)
    a page is offered that may not wait: the radio is on anyway
    the policy says that the next beat would be too late, so that no wake is spent on sending
    what waits is an eighth of the store, or the store is full
    somebody waits for the centre to have it: a drain, `POST /v1/uplink:retry`

Whatever is pending when the daemon starts is offered at once: how long it has waited is not known.
The promise of latency, from arrival to the sealed page, has nothing to do with any of this.

Invariant: a page is either held here or was offered, and of a (stream, partition) nothing that is
held has a lower sequence number than what was offered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from edged.job.plan import JobPlan
from edged.platform.clock import Clock
from edged.platform.timers import TimerFd
from edged.uplink.handle import Uplink

if TYPE_CHECKING:
    from edged.pages.sealed import PageKey
    from edged.store.backlog import PageRef

STORE_SHARE = 8
"""Of the store, 1 / this may wait."""


class UploadCoalescer:
    """Stands between a committer and its uplink; the commit thread's, but for `soon` and figures.

    `release` wants to be called when the timer is readable.
    """

    def __init__(
        self, uplink: Uplink, clock: Clock, store_bytes: int | None, pending: Iterable[PageRef]
    ) -> None:
        """`store_bytes`: the store's bound; `pending`: what an earlier process has left."""
        self.timer = TimerFd()
        """Readable when what waits is due."""
        self.releases = 0
        self.offered_bytes = 0
        self._uplink, self._clock = uplink, clock
        self._bytes_max = None if store_bytes is None else store_bytes // STORE_SHARE
        self._within_us: dict[str, int] = {}
        self._pages: dict[PageKey, PageRef] = {}
        self._bytes = 0
        self._due_us: int | None = None
        self._last: dict[tuple[str, int], int] = {}
        """By stream and partition, the last page that was offered."""
        self._through = self._soon = False
        self._pass(list(pending))

    def set_jobs(self, plans: Sequence[JobPlan]) -> None:
        """What the jobs allow from now on; what was held under other promises goes at once."""
        within_us = {
            stream: plan.promises.upload_within_us
            for plan in plans
            for sink in plan.sinks.values()
            for stream, _, _ in sink.schemas()
            if plan.promises.upload_within_us
        }
        if within_us != self._within_us:
            self._within_us = within_us
            self.release()

    def offer(self, refs: Iterable[PageRef]) -> None:
        """New pages, or the new places of pages; each partition's in the order of seq."""
        through, new = [], False
        for ref in refs:
            key = ref.key
            if key.seq <= self._last.get((key.stream, key.partition), 0):
                through.append(ref)  # it has moved
            elif key in self._pages:
                self._pages[key] = ref
            else:
                new |= key.stream not in self._within_us
                self._hold(ref)
        self._uplink.offer(through)
        full = self._bytes_max is not None and self._bytes >= self._bytes_max
        if new or full or self._soon or self._through:
            self.release()

    def release(self) -> None:
        """Offer all that waits."""
        refs = list(self._pages.values())
        self._pages, self._bytes, self._soon = {}, 0, False
        if self._due_us is not None:
            self._due_us = None
            self.releases += 1
            self.timer.disarm()
        if refs:
            self._pass(refs)

    def bypass(self, wanted: bool) -> None:
        """Somebody waits for the centre to have all pages, so that nothing is held, and the
        uplink's `watch_fileno` tells of acks; or nobody does any more."""
        self._through = wanted
        if wanted:
            self.release()
        self._uplink.watch_acks(wanted)

    @property
    def bypassed(self) -> bool:
        """Whether somebody waits for the centre to have all pages."""
        return self._through

    def release_soon(self) -> None:
        """Release with the next pages that are offered; any thread."""
        self._soon = True

    @property
    def within_us(self) -> int:
        """How long whatever is shipped may wait; 0 where some of it may not."""
        return min(self._within_us.values(), default=0)

    def status(self) -> dict[str, Any]:
        """Pages and bytes that wait, until when (monotonic µs), and how often some were sent."""
        return {
            "pages": len(self._pages), "bytes": self._bytes, "due_us": self._due_us,
            "releases": self.releases,
        }  # fmt: skip

    # what the committer knows of an uplink -----------------------------------------------------

    def fileno(self) -> int:
        """The uplink's."""
        return self._uplink.fileno()

    def poll(self) -> list[tuple[str, int, int]]:
        """Acks since the last call."""
        return self._uplink.poll()

    def restart_if_dead(self) -> bool:
        """Whether a new child was started: it knows of no pages."""
        return self._uplink.restart_if_dead()

    def close(self) -> None:
        """Release the timer; pages that wait are the next process's."""
        self.timer.close()

    def _hold(self, ref: PageRef) -> None:
        self._pages[ref.key] = ref
        self._bytes += ref.length
        within_us = self._within_us.get(ref.key.stream)
        if within_us is None:
            return  # it goes at once
        due_us = self._clock.monotonic_us() + within_us
        if self._due_us is None or due_us < self._due_us:
            self._due_us = due_us
            self.timer.arm(due_us)

    def _pass(self, refs: list[PageRef]) -> None:
        for ref in refs:
            route = (ref.key.stream, ref.key.partition)
            self._last[route] = max(ref.key.seq, self._last.get(route, 0))
            self.offered_bytes += ref.length
        self._uplink.offer(refs)
