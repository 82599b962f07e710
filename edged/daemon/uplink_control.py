"""Calls of the uplink on behalf of the heart's thread.

The uplink and its coalescer belong to the commit thread; calls that change them are queued there.
Without an address of the centre the uplink serves links alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from edged.beat.committer import Committer
from edged.job.plan import JobPlan
from edged.links.in_flight import InFlight
from edged.links.target import LinkTarget
from edged.platform.event_loop import EventLoop
from edged.uplink import Uplink
from edged.uplink.link_config import LinkConfig, Numbers, limits
from edged.uplink.upload_coalescer import UploadCoalescer


class UplinkControl:
    """The uplink of one daemon; the heart's thread only."""

    def __init__(
        self,
        committer: Committer,
        event_loop: EventLoop,
        uplink: Uplink,
        coalescer: UploadCoalescer,
        config: LinkConfig,
        in_flight: InFlight,
    ) -> None:
        self._committer, self._event_loop = committer, event_loop
        self._uplink, self.coalescer = uplink, coalescer
        self._config, self._in_flight = config, in_flight

    @property
    def exists(self) -> bool:
        """Whether the daemon sends pages to a centre."""
        return self._uplink.has_centre

    @property
    def serves(self) -> bool:
        """Whether it has a centre or a link to send to."""
        return self.exists or bool(self._uplink.links)

    def pid(self) -> int | None:
        """Process id of the uplink's child process."""
        pid: int | None = self._uplink.status()["pid"]
        return pid

    def links(self, name: str) -> list[dict[str, Any]]:
        """State and figures of each instance of a link, by the name of its pages."""
        return self._uplink.links.of(name)

    def status(self) -> dict[str, Any] | None:
        """The uplink's part of the status document."""
        if not self.exists:
            return None
        return {**self._uplink.status(), "held": self.coalescer.status()}

    def after_acks(self, then: Callable[[], object]) -> None:
        """Call `then` on this thread once all acks that have arrived are processed.

        While the commit thread is at work, which may take long, `then` is called at once: that
        thread processes acks by itself.
        """
        if self._committer.at_work:
            then()
            return
        self._committer.call(self._committer.take_acks)
        self._committer.call(partial(self._event_loop.call, then))

    def take_acks_soon(self) -> None:
        """Have the commit thread process acks, unless it is at work."""
        if not self._committer.at_work:
            self._committer.call(self._committer.take_acks)

    def retry(self) -> None:
        """Send all waiting pages now, whatever upload windows and backoff say."""
        self._committer.call(self.coalescer.release)
        self._committer.call(self._uplink.retry)  # opens the windows for the pages it has

    def resumed(self, asleep_us: int) -> None:
        """The machine was suspended: pauses of the uplink's process have not counted that time."""
        del asleep_us
        self._committer.call(self._uplink.resumed)

    def set_jobs(
        self,
        plans: Sequence[JobPlan],
        schemas: Sequence[tuple[str, int, str]],
        links: Sequence[LinkTarget],
        numbers: Numbers,
        store_bytes_max: int | None,
    ) -> None:
        """Register the jobs' schemas, apply their upload promises, and serve their links, whose
        last numbers are given."""
        self._in_flight.follow(limits(links, store_bytes_max, len(plans)))
        targets = self._config.targets(links, schemas, numbers)
        self._committer.call(partial(self._uplink.register, schemas))
        self._committer.call(partial(self._committer.set_links, targets))
        self._committer.call(partial(self.coalescer.set_jobs, plans))

    def loose_pages_of(self, streams: Iterable[str]) -> int:
        """How many pages of these streams, of jobs without a log, are not acknowledged."""
        return self._committer.loose.pending_of(streams)

    def set_drops(self, streams: Mapping[str, str]) -> None:
        """Set the streams whose oldest pages a full store gives up, and their jobs."""
        self._committer.call(partial(self._committer.set_drops, streams))

    def watch_acks(self, wanted: bool) -> None:
        """Send pages without delay and end the heart's waits at each ack, or no longer."""
        self._committer.call(partial(self.coalescer.bypass, wanted))
