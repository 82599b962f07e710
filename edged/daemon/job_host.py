"""The daemon around the heart, as changes of jobs see it (`edged.beat.changes.JobHost`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edged.beat.jobs import JobRegistry
from edged.beat.stats import Stats
from edged.daemon.job_counts import JobCounts
from edged.daemon.uplink_control import UplinkControl
from edged.energy.runtime import EnergyGovernor
from edged.job.coexistence import (
    check_coexistence,
    check_hearing,
    check_listeners,
    check_store_size,
)
from edged.job.plan import JobPlan
from edged.links.page import is_link
from edged.store import Store


class DaemonJobHost:
    """Checks jobs against the machine and propagates changes to uplink, energy and statistics."""

    def __init__(
        self,
        registry: JobRegistry,
        store: Store,
        store_bytes_max: int | None,
        uplink: UplinkControl,
        energy: EnergyGovernor | None,
        stats: Stats,
        suspend: str = "off",
    ) -> None:
        """`suspend`: whether the machine is suspended between beats, as configured."""
        self._suspend = suspend
        self._registry, self._store, self._store_bytes_max = registry, store, store_bytes_max
        self._uplink, self._energy, self._stats = uplink, energy, stats
        self.counts = JobCounts(registry.list)

    def check(self, plans: Sequence[JobPlan]) -> None:
        """Raise EdgedError where these jobs cannot run together here."""
        check_coexistence(plans)
        check_listeners(plans)
        check_hearing(plans, self._suspend)
        shelved = list(self._registry.shelved.values())
        shelved_bytes = sum(int(job.footprint.promises["memory_bytes"]) for job in shelved)
        check_store_size(self._store_bytes_max, plans, shelved_bytes)

    def on_jobs_changed(self) -> None:
        """Propagate the registry's jobs."""
        jobs = self._registry.list
        self.counts.follow(jobs)
        self.serve_uplink()
        self._uplink.set_drops(self._registry.drops())
        if self._energy is not None:
            self._energy.attach(jobs)
        self._stats.keep(job.plan.name for job in jobs)

    def serve_uplink(self) -> None:
        """Propagate the registry's jobs to the uplink: what it sends, and where to."""
        jobs = self._registry.list
        numbers = {name: last for job in jobs for name, last in job.last_pages().items()}
        plans, schemas = [job.plan for job in jobs], self._registry.schemas()
        links = [
            replace(link, logs=job.plan.promises.logs)
            for job in jobs
            for id, sink in job.sinks.items()
            for link in sink.links(job.plan.sinks[id])
            # of a hop only its producers' links send: another producer would hold event time back
            if link.forwards or not job.plan.promises.forwards
        ]
        self._uplink.set_jobs(plans, schemas, links, numbers, self._store_bytes_max)

    def pages_pending(self, streams: Sequence[str]) -> int:
        """Number of pages of these streams that the centre, or a link's receiver, has not
        acknowledged; without a centre only those of links count."""
        awaited = [s for s in streams if self._uplink.exists or is_link(s)]
        return self._store.pending_of(awaited) + self._uplink.loose_pages_of(awaited)

    def watch_acks(self, wanted: bool) -> None:
        """End the heart's waits at each ack of the centre, or no longer."""
        self._uplink.watch_acks(wanted)
