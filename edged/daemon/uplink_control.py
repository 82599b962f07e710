"""Calls of the uplink on behalf of the heart's thread.

The uplink and its coalescer belong to the commit thread; calls that change them are queued there.
Without an uplink all calls do nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from edged.beat.committer import Committer
from edged.job.plan import JobPlan
from edged.platform.event_loop import EventLoop
from edged.uplink import Uplink
from edged.uplink.upload_coalescer import UploadCoalescer


class UplinkControl:
    """The uplink of one daemon, if it has one; the heart's thread only."""

    def __init__(
        self,
        committer: Committer,
        event_loop: EventLoop,
        uplink: Uplink | None,
        coalescer: UploadCoalescer | None,
    ) -> None:
        self._committer, self._event_loop = committer, event_loop
        self._uplink, self.coalescer = uplink, coalescer

    @property
    def exists(self) -> bool:
        """Whether the daemon has an uplink."""
        return self._uplink is not None

    def pid(self) -> int | None:
        """Process id of the uplink's child process."""
        return None if self._uplink is None else self._uplink.status()["pid"]

    def status(self) -> dict[str, Any] | None:
        """The uplink's part of the status document."""
        if self._uplink is None or self.coalescer is None:
            return None
        return {**self._uplink.status(), "held": self.coalescer.status()}

    def after_acks(self, then: Callable[[], object]) -> None:
        """Call `then` on this thread once all acks that have arrived are processed.

        While the commit thread is at work, which may take long, `then` is called at once: that
        thread processes acks by itself.
        """
        if self._uplink is None or self._committer.at_work:
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
        if self._uplink is not None and self.coalescer is not None:
            self._committer.call(self.coalescer.release)
            self._committer.call(self._uplink.retry)  # opens the windows for the pages it has

    def set_jobs(self, plans: Sequence[JobPlan], schemas: Sequence[tuple[str, int, str]]) -> None:
        """Register the jobs' schemas and apply their upload promises."""
        if self._uplink is not None and self.coalescer is not None:
            self._committer.call(partial(self._uplink.register, schemas))
            self._committer.call(partial(self.coalescer.set_jobs, plans))

    def set_drops(self, streams: Mapping[str, str]) -> None:
        """Set the streams whose oldest pages a full store gives up, and their jobs."""
        self._committer.call(partial(self._committer.set_drops, streams))

    def watch_acks(self, wanted: bool) -> None:
        """Send pages without delay and end the heart's waits at each ack, or no longer."""
        if self.coalescer is not None:
            self._committer.call(partial(self.coalescer.bypass, wanted))
