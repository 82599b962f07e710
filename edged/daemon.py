"""The daemon: puts the house together, runs the heart, and takes it apart in order.

    settings ─► store ─► board ─► recover jobs ─► sources ─► uplink ─► door ─► heart.run ─► close

Everything that can be refused is refused before the first socket is opened.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from edged.beat.committer import Committer
from edged.beat.heart import SNAPSHOT_BYTES, Heart
from edged.beat.recover import Recovered, recover
from edged.beat.stats import Stats
from edged.beat.waiter import Waiter
from edged.calibration import load_profile
from edged.centre import Centre, prepare
from edged.clock import SystemClock
from edged.config.sections import TelemetrySection
from edged.control import Control
from edged.door import Door
from edged.energy.board import open_site
from edged.energy.runtime import Energy, board_tariff
from edged.energy.settings import NO_BOARD, EnergySettings
from edged.errors import ConfigError, JobError
from edged.events import Events, Log
from edged.inputs import Inputs
from edged.job.plan import JobPlan, load_kinds
from edged.reload import Reloader
from edged.service import Service
from edged.sinks.base import SinkContext
from edged.snapshot import picture
from edged.sources.base import Source
from edged.store import Store
from edged.store.store import SEGMENT_BYTES
from edged.telling import Telling
from edged.uplink import Uplink
from edged.uplink.held import Held
from edged.watchers import Watching
from edged.workers import Workers
from governors.base import Governor, LeaveAlone

WINDOW_RETRY_US = 5_000
"""The uplink is in use by a commit: try again after so long."""
STORE_PER_MEMORY = 3
"""Least size of a bounded store, as a multiple of the jobs' memory."""


@dataclass(frozen=True)
class Settings:
    """What `edged run` was told."""

    directory: Path
    device: str
    workers: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    door: Path | None = None
    uplink_url: str | None = None
    uplink_token: str = ""
    uplink_ca: str | None = None
    store_bytes_max: int | None = None
    snapshot_bytes: int = SNAPSHOT_BYTES
    trace: Path | None = None
    telemetry: TelemetrySection = field(default_factory=TelemetrySection)
    energy: EnergySettings = field(default_factory=lambda: EnergySettings(NO_BOARD))

    def segment_bytes(self) -> int:
        """Size of a file of the log: small beside a small store."""
        share = SEGMENT_BYTES if self.store_bytes_max is None else self.store_bytes_max // 16
        return max(1 << 20, min(SEGMENT_BYTES, share))

    def snapshot_bytes_now(self) -> int:
        """Log between snapshots: at most a quarter of the store, or it would fill up with log."""
        if self.store_bytes_max is None:
            return self.snapshot_bytes
        return min(self.snapshot_bytes, self.store_bytes_max // 4)


class Daemon:
    """A running daemon; `run` returns the exit code's cause or nothing."""

    def __init__(
        self,
        settings: Settings,
        plans: Sequence[JobPlan],
        log: Log | None = None,
        service: Service | None = None,
        origins: Mapping[str, str] | None = None,
    ) -> None:
        """`plans` are those of job files, which `origins` names by the jobs' names."""
        check_together(plans)
        check_room(settings, plans)
        self.settings = settings
        self.clock = SystemClock()
        self.service = service or Service(self.clock, {})
        self.started_us, self.started_wall_us = self.clock.monotonic_us(), self.clock.wall_us()
        self.workers = Workers(settings.workers)
        self.store = Store.open(
            settings.directory,
            bytes_max=settings.store_bytes_max,
            segment_bytes=settings.segment_bytes(),
        )
        self.events = Events(self.clock, log or Log(), self.store.session[0])
        self.energy = self._open_board()
        self.context = SinkContext(
            settings.device,
            self.store.device_epoch,
            str(settings.directory / "sinks"),
            self.workers,
        )
        self.service.starting("recovery")
        self.recovered: Recovered = recover(self.store, plans, self.context, self.clock, origins)
        check_together([job.plan for job in self.recovered.jobs])
        self.uplink = self._start_uplink()
        self.held = self._hold_pages()
        self.committer = Committer(self.store, self.held, self.clock)
        self.waiter = Waiter(self.clock)
        if self.uplink is not None:
            self.waiter.add_control(self.uplink.watch_fileno(), self._hear_uplink)
        if self.held is not None:
            self.waiter.add_control(self.held.timer.fileno(), self.release_held)
        self.stats = Stats(self.clock, settings.trace)
        self.committer.landed = self.stats.landed
        self.inputs = Inputs(self.waiter, self.workers, settings.directory)
        self.inputs.start(self.recovered.jobs)
        self.heart = Heart(
            self.recovered.book,
            self.inputs,
            self.store,
            self.committer,
            self.waiter,
            self.stats,
            self.clock,
            self.workers,
            self._governor(),
            beat=self.recovered.beat,
            directory=settings.directory,
            snapshot_bytes=settings.snapshot_bytes_now(),
            profile=load_profile(settings.directory),
        )
        if self.recovered.fresh:
            self.committer.snapshot(self.recovered.beat, *self.heart.save())
        self._follow_jobs()
        self._telling = Telling(self)
        self.planner = ThreadPoolExecutor(1, "edged-plan")
        load_kinds()
        watching = Watching(self.clock, self.events, lambda: picture(self))
        self.door = Door(settings.door or settings.directory / "door", Control(self), watching)
        self.waiter.add_control(self.door.fileno(), self.door.serve)
        self._watch()
        self.centre = None if self.uplink is None else Centre(self, self.uplink)
        self.reloader: Reloader | None = None
        """What SIGHUP and the door's `reload` run, where there is a configuration to read."""
        self._telling.started()

    def run(self) -> None:
        """Beat until a signal or the door says stop; raises what made it fail."""
        self.waiter.catch_signals((signal.SIGTERM, signal.SIGINT), self.stop)
        if self.reloader is not None:
            self.waiter.catch_signals((signal.SIGHUP,), self.reloader.begin)
        try:
            if self.energy is not None:
                self.energy.start()
            self.service.describe = self._describe
            if self.centre is not None:
                self.centre.start()
            self.service.ready(self.waiter)
            self.heart.run()
        finally:
            self.close()

    def stop(self, drain_us: int = 0) -> None:
        """Let the beat end, seal and commit what is there, and return from `run`.

        With `drain_us`, read nothing new and take so long, at most, to race all that was accepted
        and to have the centre take all pages; another stop then ends that at once.
        """
        if self.heart.state == "running":
            self.service.stopping(drain_us)
            self._telling.stopping(bool(drain_us))
        if drain_us and self.heart.state == "running":
            self.heart.drain(drain_us)
        elif not drain_us or self.heart.state == "stopping":
            self.heart.stop()

    def close(self) -> None:
        """Take everything apart; what was committed stays."""
        if self.energy is not None:
            self.energy.close()
        if self.centre is not None:
            self.centre.close()
        self.planner.shutdown(wait=False, cancel_futures=True)
        self.inputs.close()
        self.door.close()
        self.committer.close()
        if self.uplink is not None:
            self.uplink.close()
        if self.held is not None:
            self.held.close()
        self.waiter.close()
        self.stats.close()
        self.store.close()
        self.workers.close()
        self.service.close()

    def _describe(self) -> str:
        jobs, pages = len(self.heart.jobs), self.store.backlog_pages
        return (
            f"beat {self.heart.beat}, {jobs} {'job' if jobs == 1 else 'jobs'}, {pages} pages wait"
        )

    @property
    def sources(self) -> list[Source]:
        """The running sources."""
        return self.inputs.sources

    def _start_uplink(self) -> Uplink | None:
        if self.settings.uplink_url is None:
            return None
        uplink = Uplink(
            self.settings.uplink_url,
            self.settings.device,
            self.settings.uplink_token,
            self.store.device_epoch,
            self.store.session,
            self.recovered.book.schemas(),
            ca=self.settings.uplink_ca,
        )
        prepare(uplink, self.settings.directory, self.settings.telemetry)
        uplink.start()
        return uplink

    def _hold_pages(self) -> Held | None:
        if self.uplink is None:
            return None
        bound, pending = self.settings.store_bytes_max, self.store.pending()
        held = Held(self.uplink, self.clock, bound, pending)
        held.promise([job.plan for job in self.recovered.jobs])
        return held

    def release_held(self) -> None:
        """Send what waits for an upload window; a commit that is being written is not waited for:
        it is done soon after."""
        if self.held is None:
            return
        if self.committer.lock.acquire(blocking=False):
            try:
                self.held.release()
            finally:
                self.committer.lock.release()
        else:
            self.held.timer.arm(self.clock.monotonic_us() + WINDOW_RETRY_US)

    def pass_on(self, wanted: bool) -> None:
        """Somebody waits for the centre to have all pages, so they wait for no window; or nobody
        does any more."""
        if self.uplink is not None and self.held is not None:
            with self.committer.lock:
                self.held.pass_on(wanted)
                self.uplink.hear_acks(wanted)

    def _open_board(self) -> Energy | None:
        settings = self.settings.energy
        if settings.board == NO_BOARD:
            return None
        site = open_site(settings, self.settings.directory, self.clock.monotonic_us)
        tariff = board_tariff(site, self.settings.directory, settings.meters.radio)
        return Energy(settings, site, tariff, self.clock, self.settings.workers)

    def _governor(self) -> Governor:
        return LeaveAlone() if self.energy is None else self.energy

    def _watch(self) -> None:
        """Let the energy side see the jobs, the uplink and the wakes, and read its meters."""
        if self.energy is None:
            return
        self.recovered.notes.extend(self.energy.restore())
        self.energy.attach(self.heart.jobs)
        self.energy.wakes = lambda: self.waiter.wakes
        self.energy.tasks = self.workers.tasks
        if self.uplink is not None:
            uplink = self.uplink
            self.energy.uplink_pid = lambda: uplink.status()["pid"]
            self.energy.held = self.held
        self.waiter.add_control(self.energy.watch.timer.fileno(), self.energy.read)

    def _follow_jobs(self) -> None:
        """Let all sides know of changed jobs."""
        changes = self.heart.changes
        changes.changed, changes.check = self._jobs_changed, self.check
        if self.uplink is not None:
            changes.pending, changes.hear_acks = self.store.pending_of, self.pass_on

    def check(self, plans: Sequence[JobPlan]) -> None:
        """Raise EdgedError where these jobs cannot run together here."""
        check_together(plans)
        check_room(self.settings, plans)

    def _jobs_changed(self) -> None:
        if self.uplink is not None and self.held is not None:
            with self.committer.lock:
                self.uplink.register(self.recovered.book.schemas())
                self.held.promise([job.plan for job in self.heart.jobs])
        if self.energy is not None:
            self.energy.attach(self.heart.jobs)
        self.stats.keep(job.plan.name for job in self.heart.jobs)

    def _hear_uplink(self) -> None:
        """The uplink's process has died, or acknowledges what somebody waits for."""
        self.committer.settle()
        if self.centre is not None:
            self.centre.heard()
        self.waiter.kick()


def check_room(settings: Settings, plans: Sequence[JobPlan]) -> None:
    """A store must have room for a snapshot beside the one before it, and for a beat's inputs.

    Both are bounded by the jobs' memory; below that the store could be full for good.
    """
    least = STORE_PER_MEMORY * sum(plan.promises.memory_bytes for plan in plans)
    if settings.store_bytes_max is not None and settings.store_bytes_max < least:
        raise ConfigError(
            f"a store of {settings.store_bytes_max} bytes is too small for the jobs' memory: allow "
            f"at least {least} bytes ({STORE_PER_MEMORY} times what they promise to stay below), "
            "or let them promise less memory"
        )


def check_together(plans: Sequence[JobPlan]) -> None:
    """Jobs of one daemon must not clash: names, and what their sinks write to."""
    names = [plan.name for plan in plans]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two jobs are called {name}; rename one of them")
    owners: dict[str, str] = {}
    for plan in plans:
        for sink in plan.sinks.values():
            for claim in sink.claims():
                if owners.setdefault(claim, plan.name) != plan.name:
                    raise JobError(
                        f"{plan.name}.sinks.{sink.id}",
                        f"job {owners[claim]} makes {claim} already",
                        "name another stream, or another path",
                    )
