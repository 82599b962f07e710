"""The end of `edged run --until-end`: all sources have ended, and everything is delivered.

    running ─► every stream has ended, its windows are flushed ─► drain without a time limit ─► end

A job has ended when the watermark of each of its streams has reached the end of time and all rows
are processed (`JobRuntime.ended`): files are read to their end, generators have made all their
rows, and every producer of a `tcp` stream that was seen has said end of stream.  The drain is that
of `edged stop --drain`: nothing is read, all pages are sealed, and the centre has acknowledged
them.  A source that cannot end is refused before the start.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from edged.beat.runtime import JobRuntime
from edged.daemon.parts import Parts
from edged.errors import ConfigError, EdgedError
from edged.job.plan import JobPlan
from edged.links.page import LINK_PREFIX, is_link
from edged.platform.timers import TimerFd

REPORT_US = 10_000_000
"""Interval of the lines that say what the delivery waits for."""


class SourceFailed(EdgedError):
    """A source cannot be read to its end."""

    exit_code = 65


class EndedEarly(EdgedError):
    """The daemon was stopped before its sources had ended and everything was delivered."""

    exit_code = 75


def refuse_endless(plans: Iterable[JobPlan]) -> None:
    """Raise ConfigError for a source that never ends, and where there is no job."""
    found = list(plans)
    if not found:
        raise ConfigError("--until-end: there is no job whose sources could end")
    for plan in found:
        for name, stream in plan.streams.items():
            if reason := stream.source.endless():
                part = f"{stream.section}.{name}.source"
                raise ConfigError(
                    f"--until-end: job {plan.name}, {part}: a {stream.source.kind} "
                    f"source does not end: {reason}"
                )


class UntilEnd:
    """Watches for the end on the heart's thread: `look` is called between beats."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._timer: TimerFd | None = None
        self.failure: SourceFailed | None = None
        """Why the end cannot be reached."""

    @property
    def is_delivering(self) -> bool:
        """Whether all sources have ended."""
        return self._timer is not None

    def look(self) -> None:
        """Begin the delivery once all jobs have ended; stop where a source cannot be read on."""
        heart = self._parts.heart
        if self.is_delivering or self.failure is not None:
            return
        for source in heart.sources:
            if problem := source.problem():
                self.failure = SourceFailed(f"--until-end: {source.name} has stopped: {problem}")
                heart.stop()
                return
        if all(job.ended() for job in heart.jobs):
            self._parts.publisher.sources_ended(self._pages())
            self._timer = TimerFd()
            self._parts.event_loop.add_control(self._timer.fileno(), self._report)
            self._arm()
            heart.drain(None)

    def check(self) -> None:
        """After the run: raise SourceFailed or EndedEarly where the end was not reached."""
        if self.failure is not None:
            raise self.failure
        if not self._parts.heart.drained:
            raise EndedEarly(
                "stopped before the end of all sources; the same command continues from here"
            )

    def close(self) -> None:
        """Release the timer."""
        if self._timer is not None:
            self._timer.close()

    def _pages(self) -> int:
        parts = self._parts
        return sum(parts.job_host.pages_pending(job.shipped()) for job in parts.heart.jobs)

    def _arm(self) -> None:
        assert self._timer is not None
        self._timer.arm(self._parts.clock.monotonic_us() + REPORT_US)

    def _report(self) -> None:
        jobs, uplink = self._parts.heart.jobs, self._parts.uplink
        sinks = [sink for job in jobs for sink in job.sinks.values()]
        names = [name for sink in sinks for name in sink.links_shown() if is_link(name)]
        links = [state for name in names for state in uplink.links(name)]
        shipped = [name for job in jobs for name in job.shipped() if not is_link(name)]
        pages = self._parts.job_host.pages_pending(shipped)
        for line in waits_for(jobs, pages, uplink.status(), links):
            self._parts.events.log("info", f"waits for {line}")
        self._arm()


def waits_for(
    jobs: Sequence[JobRuntime],
    pages: int,
    uplink: dict[str, Any] | None,
    links: Sequence[dict[str, Any]] = (),
) -> list[str]:
    """What a delivery still waits for; `pages` have no acknowledgement of the centre, `links` are
    the states of all links' instances."""
    found = [
        f"{rows} rows of job {job.plan.name}"
        for job in jobs
        if (rows := job.staged() + sum(sink.open_rows() for sink in job.sinks.values()))
    ]
    if pages and uplink is not None:
        why = f" ({uplink['state']}: {uplink['problem']})" if uplink["problem"] else ""
        found.append(f"the centre to acknowledge {pages} pages{why}")
    for link in links:
        if waiting := link["in_flight_pages"]:
            why = f": {link['problem']}" if link["problem"] else ""
            name = link["link"].removeprefix(LINK_PREFIX)
            found.append(
                f"{link['to']} to acknowledge {waiting} pages of link {name} ({link['state']}{why})"
            )
    return found
