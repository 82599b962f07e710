"""Permissions to write limits that change while a daemon runs: a helper that starts later, rights
that udev grants later, rights lost when a driver is bound again. The helper is the real process."""

from __future__ import annotations

import time

import pytest

from edged.energy import status
from edged.energy.board import open_site
from edged.energy.runtime import EnergyGovernor
from edged.energy.settings import EnergySettings
from edged.energy.tariffs import board_tariff
from governors.actuators.writers import ReselectingWriter
from governors.base import Done, Forecast
from governors.sysfs import Sysfs
from tests.beat.support import SECOND
from tests.energy.test_runtime import StepClock
from tests.governors.helping import DEADLINE_S, Running

PINNED = 960_000


class Partly(Sysfs):
    """A daemon that may write what contains one of these words."""

    may: tuple[str, ...] = ()

    def writable(self, path):
        return super().writable(path) and any(word in path for word in self.may)


class Side:
    """The energy side of a daemon on a tree, which begins with `fixed`."""

    def __init__(self, path, root, may=()):
        self.clock, self.sysfs = StepClock(), Partly(root)
        self.sysfs.may, self.events = may, []
        settings = EnergySettings(
            str(root), "fixed", {"cpu_mhz": PINNED / 1000}, helper=path / "governor.sock"
        )
        self.site = open_site(settings, path, self.clock.monotonic_us)
        self.site.sysfs = self.sysfs
        self.site.writer = ReselectingWriter(self.sysfs, self.site.knobs, settings.helper)
        self.energy = EnergyGovernor(
            settings, self.site, board_tariff(self.site), self.clock, 2,
            publish=lambda *event: self.events.append(event[0]),
        )  # fmt: skip
        self.energy.start()

    def beat(self, seconds=6):
        self.clock.now += seconds * SECOND
        now = self.clock.now
        self.energy.race(Forecast(now, 0, now + SECOND, SECOND, 0))
        self.energy.ingested()
        self.energy.idle(Done(1000, 1000))
        return status.status(self.energy, self.clock.now)

    def until(self, condition):
        """Beats until it holds of the status."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition(told := self.beat()):
            assert time.monotonic() < deadline, told
        return told


def pinned(told):
    """The CPU clocks that stand where `fixed` wants them."""
    return {
        name for name, now in told["limits"].items()
        if now["min_hz"] == now["max_hz"] == 1000 * PINNED
    }  # fmt: skip


BOTH = {"cpu.policy0", "cpu.policy4"}


@pytest.fixture
def board(tmp_path):
    """A board and its helper, which does not run yet."""
    running = Running(tmp_path, "orin-nano-r36")
    running.stop()
    yield running
    if running.process.poll() is None:
        running.stop()


def test_a_policy_begins_once_a_helper_that_was_not_there_at_the_start_is(tmp_path, board):
    side = Side(tmp_path, board.root)
    told = side.beat()
    assert (told["policy"]["policy"], told["policy"]["awaited"]) == ("hands_off", "fixed")
    assert told["writer"]["name"] == "none" and "does not answer" in told["policy"]["problem"]
    side.beat()
    assert side.events.count("policy.fell_back") == 1, "not told at each try"
    board.start()
    told = side.until(lambda told: told["policy"]["policy"] == "fixed")
    assert told["writer"]["name"] == "helper" and told["policy"]["problem"] == ""
    assert pinned(side.beat()) == BOTH
    side.energy.close()


def test_a_policy_begins_once_this_process_may_write(tmp_path, board):
    side = Side(tmp_path, board.root)
    assert side.beat()["policy"]["awaited"] == "fixed"
    side.sysfs.may = ("/",)
    told = side.until(lambda told: told["policy"]["policy"] == "fixed")
    assert told["writer"]["name"] == "direct" and pinned(side.beat()) == BOTH
    side.energy.close()


def test_a_clock_that_nobody_might_set_is_set_once_somebody_may(tmp_path, board):
    side = Side(tmp_path, board.root, may=("policy0",))
    told = side.beat()
    assert pinned(told) == {"cpu.policy0"} and "cpu.policy4" in told["refused"]
    assert told["writer"]["name"] == "direct"
    board.start()
    told = side.until(lambda told: pinned(told) == BOTH)
    assert told["writer"]["name"] == "helper" and not told["refused"].keys() & BOTH
    assert any(c["text"] == "cpu.policy4 can be set now" for c in told["changes"])
    assert "limits.taken_over" not in side.events, "no other process changed a limit"
    side.energy.close()
    assert pinned(status.status(side.energy, side.clock.now)) == set(), "all is given back"


def test_rights_that_are_lost_while_a_policy_runs_are_made_up_for_by_the_helper(tmp_path, board):
    side = Side(tmp_path, board.root, may=("/",))
    assert pinned(side.beat()) == BOTH
    board.start()
    side.site.writer._writer.write = refused  # as the kernel would
    side.sysfs.may = ()
    side.energy.switch("fixed", {"cpu_mhz": 729.6})
    told = side.until(
        lambda told: {n["max_hz"] for k, n in told["limits"].items() if k in BOTH} == {729_600_000}
    )
    assert told["writer"]["name"] == "helper"
    side.energy.close()


def refused(path, _text):
    from governors.sysfs import Denied

    raise Denied(path, OSError(13, "Permission denied"))
