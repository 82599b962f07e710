"""Suspends between beats: on a simulated board whose clock jumps, and with the real clock."""

import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from edged.config import read
from edged.daemon.configuration import problems
from edged.energy.board import open_site
from edged.energy.runtime import EnergyGovernor
from edged.energy.settings import EnergySettings
from edged.energy.suspends import LINGER_US, LOOK_US, Suspends
from edged.energy.tariffs import board_tariff
from edged.errors import JobError
from edged.job.coexistence import check_hearing
from edged.job.plan import parse_job
from governors.actuators.suspend import SuspendReply
from governors.meters import settings as meters
from tests.beat.loop import Loop
from tests.beat.support import SECOND, changed, copy_job
from tests.energy.common import StepClock
from tests.energy.jumping import ENVIRONMENT, JUMP_S, WAIT_S
from tests.governors.trees import plant

MINUTE = 60 * SECOND
WATTS = 0.4


class Sleeping:
    """The suspends of an Orin Nano whose clock jumps while it sleeps."""

    def __init__(self, path, files=(), **more):
        self.clock, self.events, self.due_us, self.awaits = StepClock(), [], None, False
        settings = EnergySettings("simulated:orin-nano", suspend="mem", **more)
        for name, text in dict(files).items():
            place = path / "board" / name.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        self.site = open_site(settings, path, self.clock.monotonic_us)
        self.late_s = 0
        sysfs = self.site.simulated.board.sysfs
        sysfs.wall_s = lambda: self.clock.now / 1e6
        sysfs.pause = self.pause
        self.side = EnergyGovernor(
            settings, self.site, board_tariff(self.site), self.clock, 1,
            publish=lambda kind, level, text, facts: self.events.append((kind, facts)),
        )  # fmt: skip
        self.suspends = self.side.suspends
        plan = parse_job(generated())
        job = SimpleNamespace(plan=plan, dormant=False, draining=False)
        self.jobs, self.resumed = [job], []
        source = SimpleNamespace(due_us=lambda: self.due_us)
        self.suspends.connect([source], lambda: self.jobs, lambda: self.awaits, self.resumed.append)
        self.clock.now += MINUTE

    def pause(self, seconds):
        self.clock.now += round(1e6 * (seconds + self.late_s))

    def wait(self, us=MINUTE, muted=True):
        """One wait of the event loop; returns how long it is to go on."""
        return self.suspends.before_wait(self.clock.now + us, muted) - self.clock.now


def generated(**promises):
    source = {"type": "generator", "rate": 2.0, "rows": 16}
    job = changed(copy_job(), promises={"latency": "60s", **promises})
    for stream in job["streams"].values():
        stream["source"] = source
    return job


@pytest.fixture
def asleep(tmp_path):
    made = Sleeping(tmp_path, suspend_watts=WATTS)
    yield made
    made.side.close()


class TestWhen:
    def test_a_long_wait_is_slept_and_ends_in_time(self, asleep):
        until = asleep.clock.now + MINUTE
        assert asleep.wait() == 0
        slept_us = asleep.suspends.asleep_us
        assert 50 * SECOND < slept_us < MINUTE and asleep.clock.now <= until
        assert asleep.resumed == [slept_us] and not asleep.events

    def test_a_short_wait_is_not(self, asleep):
        assert asleep.wait(5 * SECOND) == 5 * SECOND and not asleep.suspends.count

    def test_not_before_the_first_minute_is_over(self, asleep):
        asleep.clock.now -= 20 * SECOND
        assert asleep.wait(10 * MINUTE) == 20 * SECOND and not asleep.suspends.count

    def test_a_source_that_is_due_ends_the_sleep_unless_sources_are_muted(self, asleep):
        asleep.due_us = asleep.clock.now + 3 * SECOND
        assert asleep.wait(muted=False) == MINUTE and not asleep.suspends.count
        assert asleep.wait(muted=True) == 0 and asleep.suspends.count == 1

    def test_a_wait_without_end_is_slept_for_the_shortest_promise(self, asleep):
        began = asleep.clock.now
        assert asleep.suspends.before_wait(None, False) == asleep.clock.now
        assert 50 * SECOND < asleep.clock.now - began < MINUTE

    def test_a_commit_or_pages_on_their_way_are_awaited_for_a_while(self, asleep):
        asleep.awaits = True
        assert asleep.wait() == LOOK_US
        asleep.clock.now += LINGER_US
        assert asleep.wait() == 0 and asleep.suspends.count == 1

    def test_a_source_with_peers_keeps_the_machine_awake(self, asleep):
        asleep.jobs.append(
            SimpleNamespace(plan=parse_job(copy_job()), dormant=False, draining=False)
        )
        assert asleep.wait() == MINUTE and not asleep.suspends.count

    def test_without_known_watts_there_is_none_and_the_status_asks_for_them(self, tmp_path):
        made = Sleeping(tmp_path)
        assert made.wait() == MINUTE
        assert "energy.suspend_watts" in made.suspends.describe()["problem"]
        made.side.close()

    def test_off_is_the_default(self, tmp_path):
        assert EnergySettings().suspend == "off"


class TestFailures:
    def test_a_late_wake_is_an_event_and_three_in_a_row_end_it(self, asleep):
        for number in range(1, 4):
            asleep.late_s = 9 * 4 ** (number - 1)  # the last ones' lateness is planned for
            assert asleep.wait() == 0
            assert asleep.events[number - 1][0] == "suspend.late"
            assert asleep.events[number - 1][1]["late_us"] > 4 * SECOND
        assert asleep.events[3][0] == "suspend.ended"
        assert asleep.wait() == MINUTE and asleep.suspends.count == 3
        found = asleep.suspends.describe()
        assert found["late"] == 3 and "in a row failed" in found["problem"]

    def test_a_refusal_is_not_repeated_within_the_same_wait(self, asleep):
        asleep.suspends._sleeper = lambda state, seconds: SuspendReply("a driver is busy")
        until = asleep.clock.now + MINUTE
        assert asleep.wait() == 0
        assert asleep.suspends.before_wait(until, True) == until
        assert [kind for kind, _ in asleep.events] == ["suspend.failed"]
        assert asleep.suspends.describe()["failed"] == 1 and not asleep.suspends.count


class TestEnergy:
    def test_the_time_asleep_is_booked_at_the_watts_of_the_suspended_board(self, asleep):
        watch, clock = asleep.side.watch, asleep.clock
        before_j, began = watch.joules(clock.now), clock.now
        asleep.site.simulated.board.advance(began)
        board_j = asleep.site.simulated.board.input_joules
        asleep.wait()
        seconds = (clock.now - began) / 1e6
        assert watch.joules(clock.now) - before_j == pytest.approx(WATTS * seconds, rel=0.02)
        spent_j = asleep.site.simulated.board.input_joules - board_j
        assert spent_j == pytest.approx(WATTS * seconds, rel=0.02)
        told = asleep.suspends.describe()
        assert told["joules"] == pytest.approx(WATTS * told["seconds"])
        assert told["source"] == "energy.suspend_watts"

    def test_a_meter_that_counts_through_the_suspend_replaces_the_figure(self, tmp_path):
        meter = {"name": "plug", "file": "/sys/plug/joules", "quantity": "joules"}
        counter = tmp_path / "board/sys/plug/joules"
        made = Sleeping(
            tmp_path, suspend_watts=WATTS, meters=meters.parse({"external": [meter]}),
            files={"/sys/plug/joules": "1000.0"},
        )  # fmt: skip

        def count(seconds):
            counter.write_text(str(float(counter.read_text()) + 0.25 * seconds))
            made.pause(seconds)

        made.site.simulated.board.sysfs.pause = count
        made.side.read()
        assert made.wait() == 0
        told = made.suspends.describe()
        assert told["source"] == "plug, simulated", "as all of this board"
        assert told["watts"] == pytest.approx(0.25)
        assert told["joules"] == pytest.approx(0.25 * told["seconds"])
        made.side.close()


class TestHearing:
    def test_a_source_with_peers_is_refused_with_its_name_and_what_to_do(self):
        with pytest.raises(JobError, match="tcp would miss input") as refused:
            check_hearing([parse_job(copy_job())], "mem")
        assert ".source" in refused.value.path and "energy.suspend = off" in refused.value.advice

    def test_validate_refuses_a_configuration_with_such_a_job(self, tmp_path):
        (tmp_path / "job.json").write_text(json.dumps(copy_job()))
        file = tmp_path / "edged.toml"
        for state, faults in (("mem", 1), ("off", 0)):
            file.write_text(f'[run]\njobs = ["job.json"]\n[energy]\nsuspend = "{state}"\n')
            config, wrong = read(str(file))
            found = [str(fault) for fault in (*wrong, *problems(config))]
            assert len(found) == faults and all("would miss input" in text for text in found)

    def test_sources_that_poll_are_heard(self):
        check_hearing([parse_job(generated())], "mem")
        check_hearing([parse_job(copy_job())], "off")


def test_a_job_between_suspends_loses_no_row_and_keeps_its_promise(tmp_path):
    """The real clock: the simulated board sleeps by waiting for its alarm."""
    settings = EnergySettings("simulated:orin-nano", suspend="mem", suspend_watts=WATTS)
    with Loop(generated(latency="6s"), tmp_path / "store") as loop:
        site = open_site(settings, tmp_path, loop.clock.monotonic_us)
        side = EnergyGovernor(settings, site, board_tariff(site), loop.clock, 1)
        suspends = Suspends(
            settings, site, side.tariff, side.watch, loop.clock, lambda *_: None, lambda: None,
            awake_us=0,
        )  # fmt: skip
        suspends.planner._cost = quick(suspends.planner.cost)
        suspends.connect(
            loop.inputs.sources, lambda: loop.heart.jobs, lambda: loop.committer.at_work,
            loop.event_loop.on_resumed,
        )  # fmt: skip
        loop.event_loop.before_wait = suspends.before_wait
        loop.event_loop.wake()
        until = time.monotonic() + 120
        while not all(s.staging.received >= 16 for s in loop.job.streams.values()):
            assert time.monotonic() < until and loop.problem is None
            time.sleep(0.1)
        assert suspends.count and not suspends.planner.failures
        side.close()


def quick(cost):
    """The same board with faster transitions, so that a test need not wait for long."""
    from dataclasses import replace

    return replace(cost, transition_us=200_000.0, leave_us=100_000.0)


def test_a_jump_of_the_machine_s_own_clock_is_a_suspend_and_every_wait_counts_it(tmp_path):
    plant(tmp_path, "orin-nano-r36")
    for path, text in {"sys/power/state": "freeze mem", "sys/class/rtc/rtc0/wakealarm": ""}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "tests.energy.jumping", str(tmp_path)], capture_output=True,
        text=True, timeout=120, env={**os.environ, **ENVIRONMENT},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["asleep_us"] == pytest.approx(JUMP_S * SECOND, abs=10_000)
    assert found["resumed_us"] == [pytest.approx(JUMP_S * SECOND, abs=10_000)]
    assert found["waited_s"] < WAIT_S - JUMP_S + 20 and found["late_us"] >= -1_000
    assert found["fired"] == 1 and found["events"] == []


def test_every_timer_and_wait_counts_on_the_same_clock():
    """In a time namespace CLOCK_BOOTTIME is ten days ahead of the other, as after suspends."""
    code = """
import time
from edged.platform.clock import SystemClock, suspended_us
from edged.platform.event_loop import EventLoop
from edged.platform.timers import TimerFd
assert suspended_us() > 863_000_000_000
clock, fired = SystemClock(), []
loop, timer = EventLoop(clock), TimerFd()
loop.add_control(timer.fileno(), lambda: (fired.append(1), timer.disarm()))
timer.arm(clock.monotonic_us() + 50_000)
began = time.monotonic()
loop.until(clock.monotonic_us() + 100_000, lambda: False)
assert fired and 0.05 < time.monotonic() - began < 60
"""
    command = ["unshare", "--time", "--boottime", "864000", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
