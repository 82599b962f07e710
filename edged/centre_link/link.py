"""The link to the centre beside the pages: telemetry reports go out, the desired state comes in.

    snapshot ──► Reporter ──► uplink process ──► collector
    collector ──► uplink process ──► DesiredStateFollower ──► commands through the control door

`CentreLink` connects the two (`edged.centre_link.reporter`, `edged.centre_link.follower`) to the
running daemon.  It exists only in a daemon with an uplink.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from edged.centre_link.desired_state import RECEIVED
from edged.centre_link.follower import DesiredStateFollower
from edged.centre_link.reporter import AfterAcks, Reporter
from edged.config.sections import TelemetrySection
from edged.energy.policies import CENTRE, COMMAND
from edged.energy.runtime import EnergyGovernor
from edged.errors import EdgedError
from edged.events.log import Events
from edged.platform.clock import Clock
from edged.platform.event_loop import EventLoop
from edged.uplink import Uplink, telemetry


class CentreLink:
    """Telemetry reports and the desired state of one daemon; the heart's thread only.

    `run_on_commit_thread` queues a call for the thread that owns the uplink.  `snapshot` returns
    the daemon's status document; `reports_go_first` says whether a running job promises that
    reports are sent before pages.  `after_acks` is described in `Reporter`.
    """

    def __init__(
        self,
        uplink: Uplink,
        *,
        directory: Path,
        door: Path,
        telemetry: TelemetrySection,
        event_loop: EventLoop,
        clock: Clock,
        events: Events,
        energy: EnergyGovernor | None,
        run_on_commit_thread: Callable[[Callable[[], object]], None],
        snapshot: Callable[[], dict[str, Any]],
        reports_go_first: Callable[[], bool],
        after_acks: AfterAcks,
    ) -> None:
        self._uplink, self._events, self._energy = uplink, events, energy
        self._run_on_commit_thread = run_on_commit_thread
        self._snapshot, self._reports_go_first = snapshot, reports_go_first
        self.follower = DesiredStateFollower(directory, door, event_loop, events, self._on_result)
        self.reporter = Reporter(telemetry, self._row, self._send, after_acks, event_loop, clock)

    def start(self) -> None:
        """Apply the desired state once the control door answers.

        The centre's policy is set again, unless a command has chosen a policy since.
        """
        self._publish_outcome()
        energy, policy = self._energy, self.follower.policy
        if policy is not None and energy is not None and energy.policies.own.origin != COMMAND:
            try:
                energy.switch(policy["name"], policy["settings"], CENTRE)
            except EdgedError as problem:
                text = f"the centre's policy cannot run: {problem}"
                self._events.add("policy.fell_back", text, level="warning",
                                 facts={"problem": str(problem)})  # fmt: skip
        self.follower.follow()

    def on_desired_state(self, announced: Any) -> None:
        """Follow the version that the uplink announces (`Uplink.desired`)."""
        previous = self.follower.received
        self.follower.follow(announced)
        if self.follower.received != previous:
            self._publish_outcome()

    def set_telemetry(self, settings: TelemetrySection) -> None:
        """Report by `settings` from now on."""
        self._run_on_commit_thread(partial(_register, self._uplink, settings))
        self.reporter.set(settings)

    def close(self) -> None:
        """Release the timer and the child process."""
        self.reporter.close()
        self.follower.close()

    def _row(self, interval_s: float) -> list[Any]:
        return telemetry.row(self._snapshot(), interval_s, self.follower.outcome())

    def _send(self, values: list[Any], bytes_max: int, first: bool) -> None:
        first = first or self._reports_go_first()
        self._run_on_commit_thread(partial(self._uplink.report, values, bytes_max, first))

    def _publish_outcome(self) -> None:
        self._uplink.outcome = self.follower.outcome() if self.follower.received else {}

    def _on_result(self) -> None:
        self._publish_outcome()
        self._run_on_commit_thread(partial(self._uplink.set_windows, self.follower.windows))
        self.reporter.report_soon()


def prepare(uplink: Uplink, directory: Path, settings: TelemetrySection) -> None:
    """Configure an uplink before its start: the telemetry schema, the file for desired states and
    the upload windows."""
    _register(uplink, settings)
    found = DesiredStateFollower.read(directory)
    uplink.follow_desired_state(str(directory / RECEIVED), found["received"])
    uplink.set_windows(found["windows"])


def _register(uplink: Uplink, settings: TelemetrySection) -> None:
    if settings.interval_s:
        uplink.register([(telemetry.STREAM, telemetry.VERSION, telemetry.SCHEMA)])
