"""The daemon: puts the house together, runs the heart, and takes it apart in order.

    settings ─► store ─► board ─► recover jobs ─► sources ─► uplink ─► door ─► heart.run ─► close

Everything that can be refused is refused before the first socket is opened.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edged import __version__
from edged.beat.committer import Committer
from edged.beat.heart import SNAPSHOT_BYTES, Heart
from edged.beat.recover import Recovered, recover
from edged.beat.runtime import JobRuntime
from edged.beat.stats import Stats
from edged.beat.waiter import Waiter
from edged.calibration import load_profile
from edged.clock import SystemClock
from edged.door import Door
from edged.energy import show
from edged.energy.board import open_site
from edged.energy.runtime import Energy, board_tariff
from edged.energy.settings import NO_BOARD, EnergySettings
from edged.errors import ConfigError, JobError
from edged.job.plan import JobPlan, parse_job
from edged.operators.base import WATERMARK_MAX_US, WATERMARK_MIN_US
from edged.placement import AUTO
from edged.sinks.base import SinkContext
from edged.sources.base import Source, SourcePlan
from edged.staging import Staging
from edged.store import Store
from edged.store.store import SEGMENT_BYTES
from edged.uplink import Uplink
from edged.workers import Workers
from governors.base import Governor, LeaveAlone

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

    def __init__(self, settings: Settings, plans: Sequence[JobPlan]) -> None:
        _check_together(plans)
        _check_room(settings, plans)
        self.settings = settings
        self.clock = SystemClock()
        self.started_us = self.clock.monotonic_us()
        self.workers = Workers(settings.workers)
        self.store = Store.open(
            settings.directory,
            bytes_max=settings.store_bytes_max,
            segment_bytes=settings.segment_bytes(),
        )
        self.energy = self._open_board()
        self.context = SinkContext(
            settings.device,
            self.store.device_epoch,
            str(settings.directory / "sinks"),
            self.workers,
        )
        self.recovered: Recovered = recover(self.store, plans, self.context, self.clock)
        self.uplink = self._start_uplink(plans)
        self.committer = Committer(self.store, self.uplink, self.clock)
        self.waiter = Waiter(self.clock)
        if self.uplink is not None:
            self.waiter.add_control(self.uplink.watch_fileno(), self.committer.settle)
        self.stats = Stats(self.clock, settings.trace)
        self.sources = build_sources(self.recovered.jobs, self.workers)
        for source in self.sources:
            source.start()
        self.heart = Heart(
            self.recovered.jobs,
            self.sources,
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
        self.door = Door(settings.door or settings.directory / "door", self._command)
        self.waiter.add_control(self.door.fileno(), self.door.serve)
        self._watch()

    def run(self) -> None:
        """Beat until a signal or the door says stop; raises what made it fail."""
        self.waiter.catch_signals((signal.SIGTERM, signal.SIGINT), self.heart.stop)
        try:
            if self.energy is not None:
                self.energy.start()
            self.heart.run()
        finally:
            self.close()

    def close(self) -> None:
        """Take everything apart; what was committed stays."""
        if self.energy is not None:
            self.energy.close()
        for source in self.sources:
            source.close()
        self.door.close()
        self.committer.close()
        if self.uplink is not None:
            self.uplink.close()
        self.waiter.close()
        self.stats.close()
        self.store.close()
        self.workers.close()

    def _start_uplink(self, plans: Sequence[JobPlan]) -> Uplink | None:
        if self.settings.uplink_url is None:
            return None
        uplink = Uplink(
            self.settings.uplink_url,
            self.settings.device,
            self.settings.uplink_token,
            self.store.device_epoch,
            self.store.session,
            _schemas(plans),
            ca=self.settings.uplink_ca,
        )
        uplink.start()
        uplink.offer(self.store.pending())
        return uplink

    def _open_board(self) -> Energy | None:
        settings = self.settings.energy
        if settings.board == NO_BOARD:
            return None
        site = open_site(settings, self.settings.directory, self.clock.monotonic_us)
        tariff = board_tariff(site, self.settings.directory)
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
        if self.uplink is not None:
            uplink = self.uplink
            self.energy.uplink_pid = lambda: uplink.status()["pid"]
        self.waiter.add_control(self.energy.watch.timer.fileno(), self.energy.read)

    # the door --------------------------------------------------------------------------------

    def _command(self, request: dict[str, Any]) -> Any:
        commands: Mapping[str, Callable[[dict[str, Any]], Any]] = {
            "status": lambda _: self.status(),
            "stop": lambda _: self._stop(),
            "replace": self._replace,
            "kernel": self._pin,
            "governor": self._steer,
            "energy": lambda _: show.energy(self._side(), self.clock.monotonic_us()),
        }
        cmd = str(request.get("cmd"))
        if cmd not in commands:
            raise ConfigError(f"unknown command {cmd!r}; there are {', '.join(commands)}")
        return commands[cmd](request)

    def _stop(self) -> dict[str, Any]:
        self.heart.stop()
        return {"stopping": True}

    def _replace(self, request: dict[str, Any]) -> dict[str, Any]:
        """Replace a running job by another document of the same name, keeping its state."""
        plan = parse_job(request.get("job") or {})
        others = [job.plan for job in self.heart.jobs if job.plan.name != plan.name]
        if len(others) < len(self.heart.jobs):
            _check_together([*others, plan])
        notes = self.heart.replace(plan, self.context)
        if self.uplink is not None:
            with self.committer.lock:
                self.uplink.register(_schemas([*others, plan]))
        return {"replaced": plan.name, "notes": notes}

    def _pin(self, request: dict[str, Any]) -> dict[str, Any]:
        """Choose the kernel of a job's operator, or with `auto` leave it to placement."""
        job, operator, kernel = (str(request.get(k)) for k in ("job", "operator", "kernel"))
        runs = self.heart.pin(job, operator, None if kernel == AUTO else kernel)
        return {"job": job, "operator": operator, "kernel": runs, "pinned": kernel != AUTO}

    def _steer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Go on with another policy, or say which one runs."""
        side, name = self._side(), request.get("policy")
        if name is None:
            return side.policy()
        settings = request.get("settings") or {}
        if not isinstance(settings, dict):
            raise ConfigError("settings: a table of the policy's settings")
        return side.switch(str(name), settings)

    def _side(self) -> Energy:
        if self.energy is None:
            raise ConfigError("no board is watched; start the daemon with --board")
        return self.energy

    def status(self) -> dict[str, Any]:
        """An immutable picture of the daemon, all of it JSON."""
        self.committer.settle()
        store = self.store
        return {
            "version": __version__,
            "pid": os.getpid(),
            "device": self.settings.device,
            "epoch": f"{store.device_epoch:016x}",
            "session": store.session[0],
            "uptime_s": round((self.clock.monotonic_us() - self.started_us) / 1e6, 3),
            "recovered": {
                "beat": self.recovered.beat,
                "replayed_beats": self.recovered.replayed_beats,
                "replayed_rows": self.recovered.replayed_rows,
                "notes": self.recovered.notes,
            },
            "beat": self.heart.beat,
            "wakes": self.waiter.wakes,
            "workers": self.workers.count,
            **self.stats.snapshot(),
            "jobs": {
                job.plan.name: _job_status(job, self.heart.settled) for job in self.heart.jobs
            },
            "sources": [dict(s.counters()) for s in self.sources],
            "store": {
                "bytes": store.bytes_used,
                "backlog_bytes": store.backlog_bytes,
                "backlog_pages": store.backlog_pages,
                "log_bytes_since_snapshot": store.log_bytes_since_snapshot,
            },
            "set_aside_rows": self.heart.set_aside_rows,
            "uplink": None if self.uplink is None else self.uplink.status(),
            "energy": None
            if self.energy is None
            else show.status(self.energy, self.clock.monotonic_us()),
        }


def build_sources(jobs: Sequence[JobRuntime], workers: Workers) -> list[Source]:
    """One running source for each group of streams that share it."""
    groups: dict[str, tuple[dict[str, Staging], dict[str, SourcePlan]]] = {}
    for job in jobs:
        for name, s in job.streams.items():
            stagings, plans = groups.setdefault(s.plan.source.share_key(), ({}, {}))
            if name in stagings:
                raise ConfigError(
                    f"two jobs have a stream {name} on {s.plan.source.share_key()}; "
                    "give one of them another name or another listener"
                )
            stagings[name], plans[name] = s.staging, s.plan.source
    return [
        next(iter(plans.values())).build(stagings, plans, workers)
        for stagings, plans in groups.values()
    ]


def _job_status(job: JobRuntime, settled: bool) -> dict[str, Any]:
    """A job's part of the status.  `ended`: all streams are over and all results are durable."""
    return {
        "streams": {
            name: {
                "rows": s.rows,
                "staged": s.staging.rows,
                "late": s.late,
                "refused_ahead": s.staging.refused_ahead,
                "producers": len(s.staging.producers.ids) - 1,
                "watermark_us": s.time.watermark_us
                if WATERMARK_MIN_US < s.time.watermark_us < WATERMARK_MAX_US
                else None,
                "ended": s.time.watermark_us == WATERMARK_MAX_US,
            }
            for name, s in job.streams.items()
        },
        "operators": {
            name: {"state_bytes": o.state_bytes(), **o.counters(), **_placement(job, name)}
            for name, o in job.operators.items()
        },
        "sinks": {
            name: {"open_rows": sink.open_rows(), **sink.counters()}
            for name, sink in job.sinks.items()
        },
        "ended": job.ended() and not job.open_rows() and settled,
    }


def _placement(job: JobRuntime, name: str) -> dict[str, Any]:
    placer = job.placers.get(name)
    if placer is None:
        return {}
    failed = {"kernels_failed": dict(placer.problems)} if placer.problems else {}
    return {"kernel_pinned": placer.pinned, **failed}


def _check_room(settings: Settings, plans: Sequence[JobPlan]) -> None:
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


def _schemas(plans: Sequence[JobPlan]) -> list[tuple[str, int, str]]:
    """Streams, versions and schemas of all pages that the jobs make."""
    return [s for plan in plans for sink in plan.sinks.values() for s in sink.schemas()]


def _check_together(plans: Sequence[JobPlan]) -> None:
    """Jobs of one daemon must not clash: names, and the streams that their pages go to."""
    if not plans:
        raise ConfigError("no job was given; name at least one job document")
    names = [plan.name for plan in plans]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two jobs are called {name}; rename one of them")
    owners: dict[str, str] = {}
    for plan in plans:
        for sink in plan.sinks.values():
            for stream, _, _ in sink.schemas():
                if owners.setdefault(stream, plan.name) != plan.name:
                    raise JobError(
                        f"{plan.name}.sinks.{sink.id}",
                        f"job {owners[stream]} ships pages of {stream} already",
                        "name another stream",
                    )
