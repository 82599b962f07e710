"""The event publisher: one method for each kind of event, with its text, level and facts.

Every part of the daemon that reports events gets the publisher in its constructor.  The methods
take names and figures, so that this module depends on no part of the daemon.  They may be called on
any thread.  docs/control.md lists the events.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from edged.events.log import Events

Facts = Mapping[str, Any]


class EventPublisher:
    """Writes the daemon's events to an event log."""

    def __init__(self, events: Events) -> None:
        self._events = events

    # the daemon --------------------------------------------------------------------------------

    def daemon_started(self, device: str, session: int, door: str) -> None:
        """The daemon runs and its control door answers."""
        facts = {"device": device, "session": session}
        self._events.add("daemon.started", f"started, door {door}", facts=facts)

    def plugin_failed(self, name: str, group: str, problem: str) -> None:
        """An installed plug-in did not load; jobs that need it are refused."""
        facts = {"name": name, "group": group, "problem": problem}
        self._events.add("plugin.failed", problem, level="error", facts=facts)

    def daemon_recovered(
        self, beat: int, replayed_beats: int, replayed_rows: int, notes: Sequence[str]
    ) -> None:
        """The state of an earlier session was recovered from the store."""
        text = f"recovered at beat {beat}, {replayed_beats} beats replayed"
        facts = {"beat": beat, "replayed_beats": replayed_beats,
                 "replayed_rows": replayed_rows, "notes": list(notes)}  # fmt: skip
        self._events.add("daemon.recovered", text, facts=facts)

    def daemon_stopping(self, drain: bool) -> None:
        """A stop has begun, with or without a drain."""
        text = "draining, then stopping" if drain else "stopping"
        self._events.add("daemon.stopping", text, facts={"drain": drain})

    def sources_ended(self, pages: int) -> None:
        """All sources of `edged run --until-end` have ended; the centre still lacks `pages`."""
        wait = f"; the centre has yet to acknowledge {pages} pages" if pages else ""
        self._events.add("sources.ended", f"all sources have ended{wait}", facts={"pages": pages})

    def config_reloaded(self, applied: Sequence[str], later: Sequence[str]) -> str:
        """A reload was applied; `later` are keys that need a restart.  Returns the text."""
        text = "configuration reloaded: " + (", ".join(applied) or "nothing changed")
        if later:
            text += f"; at the next start: {', '.join(later)}"
        facts = {"applied": list(applied), "later": list(later)}
        self._events.add("config.reloaded", text, facts=facts)
        return text

    def config_refused(self, problem: str) -> str:
        """A reload was refused.  Returns the text."""
        text = f"configuration refused: {problem}"
        self._events.add("config.refused", text, level="error", facts={"problem": problem})
        return text

    # jobs --------------------------------------------------------------------------------------

    def job_changed(self, event: str, name: str, version: int, origin: str, facts: Facts) -> None:
        """A job is `created`, `replaced`, `resumed`, `paused`, `draining`, `drained`, `deleted`,
        `failed` or `shelved`."""
        text = f"job {name} {'is ' if event in ('drained', 'draining', 'shelved') else ''}{event}"
        text += f": {facts['problem']}" if facts.get("problem") else ""
        level = "error" if event in ("failed", "shelved") else "info"
        facts = {"version": version, "origin": origin, **facts}
        self._events.add(f"job.{event}", text, level=level, job=name, facts=facts)

    def kernel_switched(self, job: str, operator: str, kernel: str, pinned: bool) -> None:
        """A command chose the kernel of an operator, or gave the choice back to placement."""
        text = f"job {job}: {operator} runs {kernel}, {'pinned' if pinned else 'placed'}"
        facts = {"operator": operator, "kernel": kernel, "pinned": pinned}
        self._events.add("kernel.switched", text, job=job, facts=facts)

    def input_set_aside(self, job: str, stream: str, rows: int, file: str) -> None:
        """Rows that killed the process repeatedly were moved to a file of the quarantine."""
        text = f"job {job}: {rows} rows of {stream} killed the process and are set aside in {file}"
        facts = {"stream": stream, "rows": rows, "file": file}
        self._events.add("input.set_aside", text, level="error", job=job, facts=facts)

    def rows_refused(self, job: str, operator: str, rows: int, reason: str, file: str) -> None:
        """An operator could not process rows; they are set aside."""
        text = f"job {job}: operator {operator} set {rows} rows aside in {file}: {reason}"
        facts = {"operator": operator, "rows": rows, "reason": reason, "file": file}
        self._events.add("operator.refused", text, level="warning", job=job, facts=facts)

    def rows_late(self, job: str, stream: str, rows: int, fate: str) -> None:
        """Rows came after the watermark had passed them."""
        text = f"job {job}: {rows} rows of {stream} came too late and are {fate}"
        facts = {"stream": stream, "rows": rows}
        self._events.add("stream.late", text, level="warning", job=job, facts=facts)

    def rows_ahead(self, job: str, stream: str, rows: int) -> None:
        """Rows were refused because their time was too far ahead of the wall clock."""
        text = f"job {job}: {rows} rows of {stream} are refused: their times are too far ahead"
        facts = {"stream": stream, "rows": rows}
        self._events.add("stream.ahead", text, level="warning", job=job, facts=facts)

    def producer_behind(self, job: str, stream: str, producer: str, behind_us: int) -> None:
        """A producer is so far behind that the watermark no longer waits for it.  Events of one
        stream are rate-limited."""
        text = (
            f"job {job}: producer {producer or 'without an id'} of {stream} is"
            f" {behind_us / 1e6:.0f} s behind; the stream no longer waits for it"
        )
        facts = {"stream": stream, "producer": producer, "behind_us": behind_us}
        self._events.add_rarely("producer.behind", f"{job} {stream}", text, job=job, facts=facts)

    def producer_in_time(self, job: str, stream: str, producer: str) -> None:
        """A producer has caught up, and the stream waits for it again; rate-limited, too."""
        text = f"job {job}: producer {producer or 'without an id'} of {stream} has caught up"
        facts = {"stream": stream, "producer": producer}
        key = f"{job} {stream}"
        self._events.add_rarely("producer.in_time", key, text, "info", job=job, facts=facts)

    def latency_promise_missed(self, latency_us: int) -> None:
        """Results have become late: a latency promise is missed again and again."""
        text = f"latency promise missed: {latency_us / 1e6:.3f} s from arrival to durable results"
        facts = {"latency_us": latency_us}
        self._events.add("promise.missed", text, level="warning", facts=facts)

    def latency_promise_kept(self) -> None:
        """Results are no longer late."""
        self._events.add("promise.kept", "latency promises are kept again")

    def saturation_begun(self) -> None:
        """Senders have sent more than is processed, for several beats."""
        text = "saturated: input arrives faster than it is processed, so senders wait"
        self._events.add("saturation.begun", text, level="warning")

    def saturation_ended(self) -> None:
        """Input is processed as fast as it arrives again."""
        self._events.add("saturation.ended", "input is processed as fast as it arrives again")

    # store, sources, uplink --------------------------------------------------------------------

    def store_full(self, reason: str, bytes_used: int, bytes_max: int | None) -> None:
        """A commit or a sink waits for disk space."""
        text = f"the store is full, the sources wait until there is room: {reason}"
        facts = {"bytes": bytes_used, "bytes_max": bytes_max}
        self._events.add("store.full", text, level="warning", facts=facts)

    def store_has_room(self, bytes_used: int, bytes_max: int | None) -> None:
        """Nothing waits for disk space any more."""
        facts = {"bytes": bytes_used, "bytes_max": bytes_max}
        self._events.add("store.room", "the store has room again", facts=facts)

    def store_migrated(self, found: int, format: int) -> None:
        """The start brought the store from an earlier version's format to this one's."""
        text = f"the store was of format {found} and is now of format {format}"
        self._events.add("store.migrated", text, facts={"found": found, "format": format})

    def store_gap(self, text: str, facts: Facts) -> None:
        """The store has lost a range for good; `facts` are those of `edged.store.gaps.Gap`."""
        job = facts["job"] or None
        text = f"lost: {text}"
        self._events.add("store.gap", text, level="error", job=job, facts=dict(facts))

    def store_salvaged(self, text: str, facts: Facts) -> None:
        """A damaged place of the store was passed; `facts` are those of
        `edged.store.salvage.Salvaged`."""
        text = f"damage in the store: {text}"
        self._events.add("store.salvaged", text, level="error", facts=dict(facts))

    def source_refused(self, source: str, reason: str, text: str) -> None:
        """A source refused a sender.  Events of one source and reason are rate-limited."""
        text = f"{source} refused a sender ({reason}): {text}"
        self._events.add_rarely(
            "source.refused", f"{source} {reason}", text, facts={"reason": reason}
        )

    def peer_defect(self, place: str, peer: str, problem: BaseException) -> None:
        """A defect of edged ended a peer's connection at `place`.  Events of one place and one
        line of code are rate-limited."""
        frames = traceback.extract_tb(problem.__traceback__)
        at = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        text = f"{place}: a defect ended the connection of {peer}: {type(problem).__name__}"
        self._events.add_rarely(
            "peer.defect", f"{place} {at}", f"{text}: {problem} at {at}", "error",
            facts={"place": place, "peer": peer,
                   "traceback": "".join(traceback.format_exception(problem))},
        )  # fmt: skip

    def uplink_changed(self, state: str, problem: str) -> None:
        """The centre is unreachable (`down`), reachable again (`up`), or reports a state that must
        not occur (`alarm`)."""
        texts = {"down": f"the centre is unreachable: {problem}", "up": "the centre answers",
                 "alarm": f"alarm from the centre: {problem}"}  # fmt: skip
        level = {"down": "warning", "up": "info", "alarm": "error"}[state]
        self._events.add(f"uplink.{state}", texts[state], level=level, facts={"problem": problem})

    # energy ------------------------------------------------------------------------------------

    def policy_switched(
        self, policy: str, running: str, previous: str, settings: Mapping[str, Any]
    ) -> None:
        """A command or the centre chose the daemon's policy; `running` is in effect now."""
        facts = {"policy": running, "was": previous, "settings": dict(settings)}
        self._events.add("policy.switched", f"policy {policy}; {running} runs", facts=facts)

    def job_policy_switched(self, job: str, policy: str, settings: Mapping[str, Any]) -> None:
        """A command chose a job's policy."""
        facts = {"policy": policy, "settings": dict(settings)}
        self._events.add("policy.switched", f"policy {policy} for job {job}", job=job, facts=facts)

    def limits_restored(self, line: str) -> None:
        """Limits of the board that an earlier process had set were restored."""
        text = f"limits that an earlier process left on the board: {line}"
        self._events.add("limits.restored", text, facts={"what": line})

    def energy_event(self, kind: str, level: str, text: str, facts: dict[str, Any]) -> None:
        """An event of the energy side."""
        self._events.add(kind, text, level=level, facts=facts)
