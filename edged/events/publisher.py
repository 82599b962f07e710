"""What happens to the daemon's parts, as events (docs/control.md lists them)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edged.beat.runtime import JobRuntime
from edged.sources.base import Source

if TYPE_CHECKING:
    from edged.daemon.daemon import Daemon

Facts = dict[str, Any]


class Telling:
    """Hears of everything and tells the events.  Its methods are called on any thread."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon, self._events = daemon, daemon.events
        daemon.committer.room.told = self.room
        daemon.inputs.refused = self.refused
        daemon.stats.overload = self.overload
        daemon.heart.changes.told = self.job
        daemon.heart.quarantine.told = self.set_aside
        if daemon.uplink is not None:
            daemon.uplink.on_event = self.uplink
        if daemon.energy is not None:
            daemon.energy.tell = self.energy

    def started(self) -> None:
        """Everything is up."""
        daemon, found = self._daemon, self._daemon.recovered
        session = daemon.store.session[0]
        if session > 1:
            text = f"recovered at beat {found.beat}, {found.replayed_beats} beats replayed"
            facts = {"beat": found.beat, "replayed_beats": found.replayed_beats,
                     "replayed_rows": found.replayed_rows, "notes": found.notes}  # fmt: skip
            self._events.add("daemon.recovered", text, facts=facts)
        for line in [] if daemon.energy is None else daemon.energy.limits.restored:
            text = f"what an earlier process had left of the board's limits: {line}"
            self._events.add("limits.restored", text, facts={"what": line})
        for job in found.jobs:
            if job.problem:
                self.job("failed", job, {"problem": job.problem})
        facts = {"device": daemon.settings.device, "session": session}
        self._events.add("daemon.started", f"started, door {daemon.door.path}", facts=facts)

    def stopping(self, drain: bool) -> None:
        """A stop has begun."""
        text = "draining, then stopping" if drain else "stopping"
        self._events.add("daemon.stopping", text, facts={"drain": drain})

    def job(self, event: str, job: JobRuntime, facts: Facts) -> None:
        """`event` has befallen a job."""
        name, about = job.plan.name, job.about
        text = f"job {name} {'is ' if event in ('drained', 'draining') else ''}{event}"
        text += f": {facts['problem']}" if facts.get("problem") else ""
        more = {"version": about.version, "origin": about.origin, **facts}
        level = "error" if event == "failed" else "info"
        self._events.add(f"job.{event}", text, level=level, job=name, facts=more)

    def room(self, room: bool, why: str) -> None:
        """The store, or the disk of a sink, is full, or no longer."""
        store = self._daemon.store
        facts = {"bytes": store.bytes_used, "bytes_max": store.bytes_max}
        if room:
            self._events.add("store.room", "the store has room again", facts=facts)
        else:
            text = f"full, the sources wait until there is room: {why}"
            self._events.add("store.full", text, level="warning", facts=facts)

    def uplink(self, event: str, problem: str) -> None:
        """The way to the centre is `down`, `up`, or gives an `alarm`."""
        texts = {"down": f"the centre is not reached: {problem}", "up": "the centre answers",
                 "alarm": f"the centre has what cannot be: {problem}"}  # fmt: skip
        level = {"down": "warning", "up": "info", "alarm": "error"}[event]
        self._events.add(f"uplink.{event}", texts[event], level=level, facts={"problem": problem})

    def refused(self, source: Source, reason: str, text: str) -> None:
        """A source has refused a sender; who tries again and again is told of now and then."""
        told = f"{source.name} refused a sender ({reason}): {text}"
        self._events.add_rarely("source.refused", f"{source.name} {reason}", told, reason=reason)

    def set_aside(self, job: JobRuntime, stream: str, rows: int, file: str) -> None:
        """Rows that killed the process are in a file of the quarantine."""
        name = job.plan.name
        text = f"job {name}: {rows} rows of {stream} killed the process and are set aside in {file}"
        facts = {"stream": stream, "rows": rows, "file": file}
        self._events.add("input.set_aside", text, level="error", job=name, facts=facts)

    def overload(self, begun: bool, latency_us: int) -> None:
        """Beats break a promise of latency, one after the other, or no longer."""
        facts = {"latency_us": latency_us}
        if begun:
            text = f"results are later than promised: {latency_us / 1e6:.3f} s"
            self._events.add("overload.begun", text, level="warning", facts=facts)
        else:
            self._events.add("overload.ended", "results are in time again", facts=facts)

    def energy(self, event: str, level: str, text: str, facts: Facts) -> None:
        """The energy side's own events."""
        self._events.add(event, text, level=level, facts=facts)
