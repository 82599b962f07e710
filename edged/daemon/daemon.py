"""The daemon: the composition root that builds the parts, runs the heart, and closes in order.

    settings ─► store ─► board ─► recover jobs ─► sources ─► uplink ─► door ─► heart.run ─► close

All checks that need no socket are made before the first socket is opened.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy.ma  # noqa: F401  np.unique imports it at its first call, which would be in a beat

from edged.beat.committer import Committer
from edged.beat.forwarded_acks import ForwardedAcks
from edged.beat.heart import Heart
from edged.beat.inputs import Inputs
from edged.beat.recover import FaultyFile, Recovered, recover
from edged.beat.shelf import SHELVED
from edged.beat.stats import Stats
from edged.centre_link.link import CentreLink, prepare
from edged.control.door import Door
from edged.daemon.commands import DoorCommands
from edged.daemon.graph_records import GraphRecords
from edged.daemon.job_host import DaemonJobHost
from edged.daemon.job_states import JobStates
from edged.daemon.parts import Parts
from edged.daemon.reload import ConfigSource, Reloader
from edged.daemon.settings import DaemonSettings
from edged.daemon.startup import StartupSpaceWait
from edged.daemon.status import status_document
from edged.daemon.systemd import SystemdService
from edged.daemon.until_end import UntilEnd
from edged.daemon.uplink_control import UplinkControl
from edged.data.workers import Workers
from edged.energy.board import open_site
from edged.energy.policy_store import PolicyStore
from edged.energy.runtime import EnergyGovernor, board_tariff
from edged.energy.settings import NO_BOARD
from edged.events.log import Events, LineLog
from edged.events.publisher import EventPublisher
from edged.job.coexistence import check_coexistence, check_store_size
from edged.job.plan import JobPlan, load_kinds
from edged.links.in_flight import InFlight
from edged.links.segments import PageSegments
from edged.pages.container import GATEWAY_DIRECTORY
from edged.placement.profile import load_profile
from edged.platform.clock import Clock, SystemClock
from edged.platform.event_loop import EventLoop
from edged.platform.memory import release_code
from edged.plugin.installed import failures
from edged.sinks.base import SinkContext
from edged.sources.base import Source
from edged.store import Store
from edged.tables.costs import load_costs
from edged.uplink import Uplink
from edged.uplink.link_config import LinkConfig
from edged.uplink.upload_coalescer import UploadCoalescer
from governors.base import LeaveAlone


class Daemon:
    """A running daemon; `run` returns after `stop` or, once started, a signal."""

    def __init__(
        self,
        settings: DaemonSettings,
        plans: Sequence[JobPlan],
        log: LineLog | None = None,
        service: SystemdService | None = None,
        origins: Mapping[str, str] | None = None,
        source: ConfigSource | None = None,
        until_end: bool = False,
        faulty: Sequence[FaultyFile] = (),
    ) -> None:
        """Build all parts.  `plans` are those of job files; `origins` has the files' names by job,
        `faulty` the files that cannot be planned.

        `source` is the configuration to read again at a reload; None: there is no reload.  With
        `until_end` the daemon ends with its sources (`edged.daemon.until_end`).
        """
        check_coexistence(plans)
        check_store_size(settings.store_bytes_max, plans)
        clock = SystemClock()
        self.parts, self._uplink = _build(
            settings,
            partial(recover, plans=plans, origins=origins, faulty=faulty),
            clock,
            log or LineLog(),
            service or SystemdService(clock, {}),
        )
        parts = self.parts
        if parts.energy is not None:
            _connect_energy(parts, parts.energy)
        self.centre = _link_centre(parts, self._uplink) if self._uplink.has_centre else None
        self.reloader = None if source is None else Reloader(parts, self.centre, source)
        commands = DoorCommands(parts, self.centre, self.reloader, self.stop)
        self.door = Door(parts.door, commands, parts.clock, parts.events, self._watched_status)
        parts.event_loop.add_control(self.door.fileno(), self.door.serve)
        parts.event_loop.on_resumed = parts.uplink.resumed
        self._watch_uplink()
        self.until_end: UntilEnd | None = None
        if until_end:
            self.until_end = UntilEnd(parts)
            parts.heart.on_round = self.until_end.look
        self.last_status: dict[str, Any] | None = None
        """The status document at the end of `run`."""

    def start(self) -> None:
        """Catch signals, then publish the start.  The main thread calls it, and `run` after it."""
        event_loop = self.parts.event_loop
        event_loop.catch_signals((signal.SIGTERM, signal.SIGINT), self.stop)
        if self.reloader is not None:
            event_loop.catch_signals((signal.SIGHUP,), self.reloader.begin)
        _publish_start(self.parts)

    def run(self) -> None:
        """Beat until a signal, a command, or with `until_end` the end of all sources stops the
        daemon.  Raises the error that ended it."""
        parts = self.parts
        try:
            if parts.energy is not None:
                parts.energy.start()
            if self.centre is not None:
                self.centre.start()
            release_code()
            parts.service.ready(parts.event_loop, self._describe)
            if self.centre is not None:
                parts.heart.run(self.centre.reporter.on_beat)
            else:
                parts.heart.run()
            self.last_status = status_document(parts)
        finally:
            self.close()

    def stop(self, drain_us: int = 0) -> None:
        """Let the beat end, seal and commit all pages, and return from `run`.

        With `drain_us`, first process all accepted rows and wait until the centre has all pages,
        for at most that time; nothing new is read.  A second stop ends the drain at once.
        """
        parts, heart = self.parts, self.parts.heart
        if heart.state == "running":
            parts.service.stopping(drain_us)
            parts.publisher.daemon_stopping(bool(drain_us))
        if drain_us and (heart.state == "running" or self._delivers()):
            heart.drain(drain_us)
        elif not drain_us or heart.state == "stopping":
            heart.stop()

    def _delivers(self) -> bool:
        """Whether the daemon drains because all sources have ended, without a time limit."""
        ends = self.until_end is not None and self.until_end.is_delivering
        return ends and self.parts.heart.state == "draining"

    def close(self) -> None:
        """Close all parts; committed data stays."""
        parts = self.parts
        if self.until_end is not None:
            self.until_end.close()
        if parts.energy is not None:
            parts.energy.close()
        if self.centre is not None:
            self.centre.close()
        parts.planner.shutdown(wait=False, cancel_futures=True)
        parts.inputs.close()
        self.door.close()
        parts.committer.close()
        self._uplink.close()
        parts.uplink.coalescer.close()
        parts.event_loop.close()
        parts.stats.close()
        parts.store.close()
        parts.workers.close()
        parts.service.close()

    @property
    def sources(self) -> list[Source]:
        """The running sources."""
        return self.parts.inputs.sources

    def _describe(self) -> str:
        jobs, pages = len(self.parts.heart.jobs), self.parts.store.backlog_pages
        beat = self.parts.heart.beat
        return f"beat {beat}, {jobs} {'job' if jobs == 1 else 'jobs'}, {pages} pages wait"

    def _watched_status(self) -> dict[str, Any]:
        """The status document for subscribers; acks of up to now are in the next one."""
        self.parts.uplink.take_acks_soon()
        return status_document(self.parts)

    def _watch_uplink(self) -> None:
        """Have the commit thread serve the uplink's notices and the coalescer's timer."""
        committer, coalescer = self.parts.committer, self.parts.uplink.coalescer
        committer.watch(self._uplink.watch_fileno(), self._on_uplink_notice)
        committer.watch(coalescer.timer.fileno(), coalescer.release)

    def _on_uplink_notice(self) -> None:
        """On the commit thread: the uplink's process has died, has acks that are awaited or more of
        them than it can buffer, or has a desired state."""
        self._uplink.clear_notice()  # first, so that later news give another notice
        self.parts.committer.take_acks()
        if self.centre is not None:
            on_desired_state = partial(self.centre.on_desired_state, self._uplink.desired)
            self.parts.event_loop.call(on_desired_state)


def _build(
    settings: DaemonSettings,
    recover_jobs: Callable[..., Recovered],
    clock: Clock,
    log: LineLog,
    service: SystemdService,
) -> tuple[Parts, Uplink]:
    """Build the parts in the order of the module's diagram."""
    started_us, started_wall_us = clock.monotonic_us(), clock.wall_us()
    workers, space = Workers(settings.workers), StartupSpaceWait(settings.directory, service, log)
    store = space.retry(partial(_open_store, settings, service, log))
    events = Events(clock, log, store.session[0], store.device_epoch)
    publisher = EventPublisher(events)
    event_loop = EventLoop(clock)
    energy = _open_board(settings, clock, publisher, event_loop, workers)
    in_flight, segments = InFlight(), PageSegments()
    in_flight.on_low = event_loop.wake
    sinks, tables = (str(settings.directory / name) for name in ("sinks", "tables"))
    context = SinkContext(
        settings.device, store.device_epoch, sinks, workers, str(settings.files), tables,
        in_flight=in_flight, segments=segments, run_epoch=store.session[1], wake=event_loop.wake,
        pricing=load_costs(settings.directory),
    )  # fmt: skip
    if energy is not None:
        energy.merging = context.pricing
    service.starting("recovery")
    recovered = recover_jobs(store, context=context, clock=clock, await_room=space.wait)
    _write_shelves(store, recovered, space)
    check_coexistence([job.plan for job in recovered.jobs])
    uplink = _start_uplink(settings, store, recovered, publisher)
    coalescer = UploadCoalescer(uplink, clock, settings.store_bytes_max, store.pending(), in_flight)
    coalescer.set_jobs([job.plan for job in recovered.jobs])
    stats = Stats(clock, settings.trace, publisher)
    committer = Committer(store, coalescer, clock, publisher, wake_heart=event_loop.wake,
                          on_landed=stats.landed, segments=segments)  # fmt: skip
    links = LinkConfig(store.device_epoch, store.session, str(settings.files))
    control = UplinkControl(committer, event_loop, uplink, coalescer, links, in_flight)
    control.set_drops(recovered.registry.drops())
    inputs = Inputs(
        event_loop, workers, publisher, settings.directory, settings.files,
        recovered.registry.shelved,
    )  # fmt: skip
    inputs.start(recovered.jobs)
    host = DaemonJobHost(
        recovered.registry, store, settings.store_bytes_max, control, energy, stats,
        settings.energy.suspend,
    )  # fmt: skip
    heart = Heart(
        recovered.registry, inputs, store, committer, event_loop, stats, clock, workers,
        LeaveAlone() if energy is None else energy, publisher, host,
        beat=recovered.beat, directory=settings.directory,
        snapshot_bytes=settings.snapshot_bytes, profile=load_profile(settings.directory),
    )  # fmt: skip
    if recovered.fresh:
        space.retry(partial(committer.snapshot, recovered.beat, *heart.save()))
    heart.delete_unnamed()
    host.serve_uplink()
    in_flight.on_routes = host.serve_uplink
    committer.on_loose_acked = ForwardedAcks(recovered.registry, inputs).acked
    load_kinds()
    planner = ThreadPoolExecutor(1, "edged-plan")
    graphs = GraphRecords(settings.directory, planner)
    recovered.notes.extend([graphs.problem] if graphs.problem else [])
    parts = Parts(
        settings, clock, started_us, started_wall_us, service, workers, event_loop, store, events,
        publisher, energy, PolicyStore(settings.directory), graphs, JobStates(planner), context,
        recovered, stats, control, committer, inputs, host, heart, planner, _door_path(settings),
    )  # fmt: skip
    return parts, uplink


def _open_store(settings: DaemonSettings, service: SystemdService, log: LineLog) -> Store:
    def tell(step: str) -> None:
        service.starting(step)
        log("info", step)

    return Store.open(
        settings.directory,
        bytes_max=settings.store_bytes_max,
        segment_bytes=settings.segment_bytes(),
        tell=tell,
    )


def _write_shelves(store: Store, recovered: Recovered, space: StartupSpaceWait) -> None:
    """Make newly shelved jobs durable, before the snapshot without them."""
    for name, draft in recovered.drafts.items():
        key = (name, recovered.registry.shelved[name].beat)
        space.retry(partial(store.shelve, key, *draft.contents()))
    recovered.drafts.clear()


def _open_board(
    settings: DaemonSettings,
    clock: Clock,
    publisher: EventPublisher,
    event_loop: EventLoop,
    workers: Workers,
) -> EnergyGovernor | None:
    board = settings.energy
    if board.board == NO_BOARD:
        return None
    site = open_site(board, settings.directory, clock.monotonic_us)
    tariff = board_tariff(site, settings.directory, board.meters.radio)
    return EnergyGovernor(
        board, site, tariff, clock, settings.workers,
        publish=publisher.energy_event, wakes=lambda: event_loop.wakes, tasks=workers.tasks,
    )  # fmt: skip


def _start_uplink(
    settings: DaemonSettings, store: Store, recovered: Recovered, publisher: EventPublisher
) -> Uplink:
    uplink = Uplink(
        settings.uplink_url,
        settings.device,
        settings.uplink_token,
        store.device_epoch,
        store.session,
        recovered.registry.schemas(),
        ca=settings.uplink_ca,
        on_event=publisher.uplink_changed,
    )
    lost = (g for g in store.gaps.newest if g.partition is not None)
    uplink.lost((g.stream, g.partition or 0, g.first, g.last) for g in lost)
    if uplink.has_centre:
        prepare(uplink, settings.directory, settings.telemetry)
        uplink.forward_from(str(settings.directory / GATEWAY_DIRECTORY))
        uplink.start()
    return uplink


def _door_path(settings: DaemonSettings) -> Path:
    return settings.door or settings.directory / "door"


def _connect_energy(parts: Parts, energy: EnergyGovernor) -> None:
    """Restore the energy side and connect it with the jobs, the uplink and its meters' timer."""
    parts.recovered.notes.extend(energy.restore())
    parts.recovered.notes.extend(energy.recall(parts.policy_store))
    energy.attach(parts.heart.jobs)
    if parts.uplink.exists:
        energy.connect_uplink(parts.uplink.pid, parts.uplink.coalescer)
    parts.event_loop.add_control(energy.watch.timer.fileno(), energy.read)
    energy.suspends.connect(
        parts.inputs.sources, lambda: parts.heart.jobs, partial(_awaits, parts),
        lambda us: parts.event_loop.on_resumed(us),
    )  # fmt: skip
    parts.event_loop.before_wait = energy.suspends.before_wait


def _awaits(parts: Parts) -> bool:
    """Whether a commit is in flight, or pages are on their way: neither held back until their
    upload is due, nor without a centre that answers."""
    if parts.committer.at_work or parts.heart.state != "running":
        return True
    uplink = parts.uplink.status()
    if uplink is None or uplink["state"] != "sending":
        return False
    parts.uplink.take_acks_soon()
    return bool(parts.store.backlog_pages > uplink["held"]["pages"])


def _link_centre(parts: Parts, uplink: Uplink) -> CentreLink:
    heart = parts.heart
    return CentreLink(
        uplink,
        directory=parts.settings.directory,
        door=parts.door,
        telemetry=parts.settings.telemetry,
        event_loop=parts.event_loop,
        clock=parts.clock,
        events=parts.events,
        energy=parts.energy,
        run_on_commit_thread=parts.committer.call,
        snapshot=partial(status_document, parts),
        reports_go_first=lambda: any(job.plan.promises.telemetry_first for job in heart.jobs),
        after_acks=parts.uplink.after_acks,
    )


def _publish_start(parts: Parts) -> None:
    """Publish failed plug-ins, the recovery, restored limits, failed and shelved jobs, and the
    start."""
    publisher, recovered, session = parts.publisher, parts.recovered, parts.store.session[0]
    parts.store.listen(
        lambda found: publisher.store_salvaged(found.text(), found.to_json()),
        lambda gap: publisher.store_gap(gap.text(), gap.to_json()),
    )
    if parts.store.migrated is not None:
        publisher.store_migrated(*parts.store.migrated)
    for failure in failures():
        publisher.plugin_failed(failure.name, failure.group, str(failure))
    if session > 1:
        publisher.daemon_recovered(
            recovered.beat, recovered.replayed_beats, recovered.replayed_rows, recovered.notes
        )
    for line in [] if parts.energy is None else parts.energy.limits.restored:
        publisher.limits_restored(line)
    for job in recovered.jobs:
        if job.problem:
            meta, facts = job.meta, {"problem": job.problem}
            publisher.job_changed("failed", job.plan.name, meta.version, meta.origin, facts)
    for shelved in recovered.registry.shelved.values():
        told = {"problem": shelved.problem, "packages": shelved.footprint.packages}
        meta = shelved.meta
        publisher.job_changed(SHELVED, shelved.name, meta.version, meta.origin, told)
    publisher.daemon_started(parts.settings.device, session, str(parts.door))
