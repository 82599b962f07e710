"""The daemon: puts the house together, runs the heart, and takes it apart in order.

    settings ─► store ─► board ─► recover jobs ─► sources ─► uplink ─► door ─► heart.run ─► close

Everything that can be refused is refused before the first socket is opened.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from edged.beat.committer import Committer
from edged.beat.disk_full_gate import ROOM_MS
from edged.beat.heart import Heart
from edged.beat.inputs import Inputs
from edged.beat.recover import Recovered, recover
from edged.beat.stats import Stats
from edged.centre_link.link import CentreLink, prepare
from edged.control.door import Door
from edged.control.watchers import Watching
from edged.daemon.commands import Control
from edged.daemon.reload import Reloader
from edged.daemon.settings import Settings
from edged.daemon.status import picture
from edged.daemon.systemd import Service
from edged.data.workers import Workers
from edged.energy.board import open_site
from edged.energy.policies import CENTRE, PolicyChoice
from edged.energy.policy_store import PolicyStore
from edged.energy.runtime import EnergyGovernor, board_tariff
from edged.energy.settings import NO_BOARD
from edged.events.log import Events, Log
from edged.events.publisher import Telling
from edged.job.coexistence import check_listeners, check_room, check_together
from edged.job.plan import JobPlan, load_kinds
from edged.placement.profile import load_profile
from edged.platform.clock import SystemClock
from edged.platform.disk import room
from edged.platform.event_loop import Waiter
from edged.sinks.base import SinkContext
from edged.sources.base import Source
from edged.store import Store, StoreFull
from edged.uplink import Uplink
from edged.uplink.upload_coalescer import UploadCoalescer
from governors.base import LeaveAlone

ROOM_TRIES = 30
"""So many times the disk is asked whether it has more room before a start tries anyway."""
T = TypeVar("T")


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
        check_room(settings.store_bytes_max, plans)
        self.settings = settings
        self.clock = SystemClock()
        self.service = service or Service(self.clock, {})
        self.started_us, self.started_wall_us = self.clock.monotonic_us(), self.clock.wall_us()
        self.workers = Workers(settings.workers)
        self.log, self._told_room = log or Log(), False
        self.store = self._open_store()
        self.events = Events(self.clock, self.log, self.store.session[0], self.store.device_epoch)
        self.energy = self._open_board()
        self.kept = PolicyStore(settings.directory)
        """The policy that a command chose."""
        self.context = self._sink_context()
        self.recovered = self._recover(plans, origins)
        self.uplink = self._start_uplink()
        self.held = self._hold_pages()
        self.committer = Committer(self.store, self.held, self.clock)
        self.waiter = Waiter(self.clock)
        self.stats = Stats(self.clock, settings.trace)
        self.inputs = Inputs(self.waiter, self.workers, settings.directory)
        self.inputs.start(self.recovered.jobs)
        self.heart = self._build_heart()
        self._follow_jobs()
        self.planner = ThreadPoolExecutor(1, "edged-plan")
        """Builds jobs: too slow for the heart's thread."""
        load_kinds()
        self.door = self._open_door()
        self._telling = Telling(self)
        self._watch_energy()
        self.centre = self._link_centre()
        self._watch_uplink()
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

    # building ----------------------------------------------------------------------------------

    def _open_store(self) -> Store:
        settings = self.settings
        return self._once_there_is_room(
            partial(
                Store.open,
                settings.directory,
                bytes_max=settings.store_bytes_max,
                segment_bytes=settings.segment_bytes(),
            )
        )

    def _once_there_is_room(self, step: Callable[[], T]) -> T:
        """What `step` returns, on a full disk when it has room."""
        while True:
            try:
                return step()
            except StoreFull as problem:
                self._await_room(problem)

    def _await_room(self, problem: Exception) -> None:
        """Nothing goes on at the start until the disk of the store has more room, or might (a quota
        does not show): no source is open yet, so that producers and their data wait."""
        self.service.starting(f"waiting for room: {problem}")
        if not self._told_room:
            self._told_room = True
            self.log("warning", f"the start waits for room on the disk: {problem}")
        directory = str(self.settings.directory)
        free = room(directory)[0]
        for _ in range(ROOM_TRIES):
            time.sleep(ROOM_MS / 1000)
            if room(directory)[0] > free:
                return

    def _open_board(self) -> EnergyGovernor | None:
        settings = self.settings.energy
        if settings.board == NO_BOARD:
            return None
        site = open_site(settings, self.settings.directory, self.clock.monotonic_us)
        tariff = board_tariff(site, self.settings.directory, settings.meters.radio)
        return EnergyGovernor(settings, site, tariff, self.clock, self.settings.workers)

    def _sink_context(self) -> SinkContext:
        sinks = str(self.settings.directory / "sinks")
        return SinkContext(self.settings.device, self.store.device_epoch, sinks, self.workers)

    def _recover(self, plans: Sequence[JobPlan], origins: Mapping[str, str] | None) -> Recovered:
        self.service.starting("recovery")
        recovered = recover(self.store, plans, self.context, self.clock, origins, self._await_room)
        check_together([job.plan for job in recovered.jobs])
        return recovered

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

    def _hold_pages(self) -> UploadCoalescer | None:
        if self.uplink is None:
            return None
        bound, pending = self.settings.store_bytes_max, self.store.pending()
        held = UploadCoalescer(self.uplink, self.clock, bound, pending)
        held.set_jobs([job.plan for job in self.recovered.jobs])
        return held

    def _build_heart(self) -> Heart:
        settings, recovered = self.settings, self.recovered
        self.committer.landed = self.stats.landed
        heart = Heart(
            recovered.book,
            self.inputs,
            self.store,
            self.committer,
            self.waiter,
            self.stats,
            self.clock,
            self.workers,
            LeaveAlone() if self.energy is None else self.energy,
            beat=recovered.beat,
            directory=settings.directory,
            snapshot_bytes=settings.snapshot_bytes,
            profile=load_profile(settings.directory),
        )
        if recovered.fresh:
            snapshot = partial(self.committer.snapshot, recovered.beat, *heart.save())
            self._once_there_is_room(snapshot)
        return heart

    def _open_door(self) -> Door:
        path = self.settings.door or self.settings.directory / "door"
        door = Door(path, Control(self), Watching(self.clock, self.events, self._watched))
        self.waiter.add_control(door.fileno(), door.serve)
        return door

    def _watch_energy(self) -> None:
        """Let the energy side see the jobs, the uplink and the wakes, and read its meters."""
        if self.energy is None:
            return
        self.recovered.notes.extend(self.energy.restore())
        self.recovered.notes.extend(self.energy.recall(self.kept))
        self.energy.attach(self.heart.jobs)
        self.energy.wakes = lambda: self.waiter.wakes
        self.energy.tasks = self.workers.tasks
        if self.uplink is not None:
            uplink = self.uplink
            self.energy.uplink_pid = lambda: uplink.status()["pid"]
            self.energy.held = self.held
        self.waiter.add_control(self.energy.watch.timer.fileno(), self.energy.read)

    def _link_centre(self) -> CentreLink | None:
        if self.uplink is None:
            return None
        heart = self.heart
        link = CentreLink(
            self.uplink,
            directory=self.settings.directory,
            door=self.door.path,
            telemetry=self.settings.telemetry,
            event_loop=self.waiter,
            clock=self.clock,
            events=self.events,
            energy=self.energy,
            run_on_commit_thread=self.committer.call,
            snapshot=partial(picture, self),
            reports_go_first=lambda: any(job.plan.promises.telemetry_first for job in heart.jobs),
            after_acks=self.after_acks,
        )
        self.heart.before_commit = link.reporter.on_beat
        return link

    def _watch_uplink(self) -> None:
        """The commit thread hears the uplink; the heart is told of what it cannot do."""
        if self.uplink is None or self.held is None:
            return
        self.committer.heard = self.waiter.kick
        self.committer.watch(self.uplink.watch_fileno(), self._hear_uplink)
        self.committer.watch(self.held.timer.fileno(), self.held.release)

    # the jobs ----------------------------------------------------------------------------------

    def _follow_jobs(self) -> None:
        """Let all sides know of changed jobs."""
        changes = self.heart.changes
        changes.changed, changes.check = self._jobs_changed, self.check
        if self.uplink is not None:
            changes.pending, changes.hear_acks = self.store.pending_of, self._pass_on

    def check(self, plans: Sequence[JobPlan]) -> None:
        """Raise EdgedError where these jobs cannot run together here."""
        check_together(plans)
        check_listeners(plans)
        check_room(self.settings.store_bytes_max, plans)

    def _jobs_changed(self) -> None:
        if self.uplink is not None and self.held is not None:
            plans = [job.plan for job in self.heart.jobs]
            self.committer.call(partial(self.uplink.register, self.recovered.book.schemas()))
            self.committer.call(partial(self.held.set_jobs, plans))
        if self.energy is not None:
            self.energy.attach(self.heart.jobs)
        self.stats.keep(job.plan.name for job in self.heart.jobs)

    # the uplink --------------------------------------------------------------------------------

    def after_acks(self, then: Callable[[], object]) -> None:
        """Call `then` on this thread when what the centre has acknowledged is taken in; at once
        where the commit thread is at work, which takes that in by itself and may take long."""
        if self.uplink is None or self.committer.at_work:
            then()
            return
        self.committer.call(self.committer.take_acks)
        self.committer.call(partial(self.waiter.call, then))

    def unchosen(self) -> PolicyChoice:
        """The daemon's policy where no command has chosen one: the centre's, or the
        configuration's.  With a board only."""
        assert self.energy is not None
        wanted = None if self.centre is None else self.centre.follower.policy
        if wanted is None:
            return self.energy.configured
        return PolicyChoice(wanted["name"], wanted["settings"], CENTRE)

    def retry_uplink(self) -> None:
        """Send now whatever waits, for better times or for an upload window."""
        if self.uplink is not None and self.held is not None:
            self.committer.call(self.held.release)
            self.committer.call(self.uplink.retry)  # which opens windows for what it knows of

    def _pass_on(self, wanted: bool) -> None:
        """Somebody waits for the centre to have all pages, or nobody does any more."""
        if self.held is not None:
            self.committer.call(partial(self.held.bypass, wanted))

    def _hear_uplink(self) -> None:
        """On the commit thread: the uplink's process has died, acknowledges what somebody waits
        for or more than it can keep to itself, or has a desired state."""
        assert self.uplink is not None and self.centre is not None
        self.uplink.clear_notice()  # before: what comes after this is told again
        self.committer.take_acks()
        self.waiter.call(partial(self.centre.on_desired_state, self.uplink.desired))

    def _watched(self) -> dict[str, Any]:
        """The snapshot for those who watch: they have the acks of up to now with the next one."""
        if not self.committer.at_work:
            self.committer.call(self.committer.take_acks)
        return picture(self)
