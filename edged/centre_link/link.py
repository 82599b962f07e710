"""What a daemon with an uplink has to do with the centre beside its pages: reports go there
(`edged.centre_link.reporter`), the desired state comes from there
(`edged.centre_link.follower`)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edged.centre_link.desired_state import RECEIVED
from edged.centre_link.follower import Follower
from edged.centre_link.reporter import Reporter
from edged.config.sections import TelemetrySection
from edged.daemon.status import picture
from edged.energy.policies import CENTRE, COMMAND
from edged.errors import EdgedError
from edged.uplink import Uplink, telemetry

if TYPE_CHECKING:
    from edged.daemon.daemon import Daemon


class Centre:
    """Both, put together; the heart's thread only."""

    def __init__(self, daemon: Daemon, uplink: Uplink) -> None:
        self._daemon, self._uplink = daemon, uplink
        self.follower = Follower(daemon.settings.directory, daemon.waiter, daemon.events)
        self.follower.ended = self._judged
        self.reporter = Reporter(
            daemon.settings.telemetry,
            self._row,
            self._send,
            daemon.after_acks,
            daemon.waiter,
            daemon.clock,
        )
        daemon.heart.before_commit = self.reporter.beaten

    def start(self) -> None:
        """The door answers: what the centre wants is applied again, or for the first time; but a
        policy that a command has named since counts first."""
        self._show()
        side, policy = self._daemon.energy, self.follower.policy
        if policy is not None and side is not None and side.policies.own.origin != COMMAND:
            try:
                side.switch(policy["name"], policy["settings"], CENTRE)
            except EdgedError as problem:
                text = f"the policy that the centre wants: {problem}"
                self._daemon.events.add("policy.fell_back", text, level="warning",
                                        facts={"problem": str(problem)})  # fmt: skip
        self.follower.look(None, self._daemon.door.path)

    def heard(self, told: Any) -> None:
        """The uplink tells of this desired state (`Uplink.desired`)."""
        was = self.follower.received
        self.follower.look(told, self._daemon.door.path)
        if self.follower.received != was:
            self._show()

    def set(self, settings: TelemetrySection) -> None:
        """Report as `settings` say from now on."""
        self._daemon.committer.call(partial(_register, self._uplink, settings))
        self.reporter.set(settings)

    def close(self) -> None:
        """Release timer and child."""
        self.reporter.close()
        self.follower.close()

    def _row(self, interval_s: float) -> list[Any]:
        return telemetry.row(picture(self._daemon), interval_s, self.follower.outcome())

    def _send(self, values: list[Any], bytes_max: int, first: bool) -> None:
        first = first or any(job.plan.promises.telemetry_first for job in self._daemon.heart.jobs)
        self._daemon.committer.call(partial(self._uplink.report, values, bytes_max, first))

    def _show(self) -> None:
        self._uplink.outcome = self.follower.outcome() if self.follower.received else {}

    def _judged(self) -> None:
        self._show()
        self._daemon.committer.call(partial(self._uplink.open_at, self.follower.windows))
        self.reporter.soon()


def prepare(uplink: Uplink, directory: Path, settings: TelemetrySection) -> None:
    """Before the uplink starts: what it is to do with desired states, and when it may send."""
    _register(uplink, settings)
    found = Follower.read(directory)
    uplink.receive(str(directory / RECEIVED), found["received"])
    uplink.open_at(found["windows"])


def _register(uplink: Uplink, settings: TelemetrySection) -> None:
    if settings.interval_s:
        uplink.register([(telemetry.STREAM, telemetry.VERSION, telemetry.SCHEMA)])
