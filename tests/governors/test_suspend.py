"""Suspends to memory: when they pay, and how the machine is put to sleep and woken."""

import errno
import math

import pytest

from governors.actuators.allow import AllowList
from governors.actuators.suspend import MEM_SLEEP, POWER_STATE, RTC, cannot_suspend, suspend
from governors.profile_reader import load
from governors.simulated.board import SimulatedBoard
from governors.simulated.kernel import SimulatedSysfs
from governors.suspend import FAILURES_MAX, SuspendCost, Suspended, SuspendPlanner
from tests.governors.trees import plant

COST = SuspendCost(
    idle_watts=3.0, watts=0.5, source="a meter", transition_watts=5.5, transition_us=4e6,
    leave_us=2e6,
)  # fmt: skip
ALARM = f"{RTC}/rtc0/wakealarm"


@pytest.fixture
def board(tmp_path):
    """A simulated board whose suspends move its own clock and take no time."""
    made = SimulatedBoard(load("orin-nano"), tmp_path).sysfs
    made.now_s, made.slept = 1_000_000.4, []
    made.wall_s = lambda: made.now_s

    def pause(seconds):
        assert made.peek(ALARM)
        made.slept.append(seconds)
        made.now_s += seconds

    made.pause = pause
    return made


class TestWhatPays:
    def test_the_break_even_is_where_a_suspend_costs_what_the_idle_board_draws(self):
        wait_us = COST.break_even_us
        assert wait_us == pytest.approx(8e6)
        suspended_j = COST.joules(wait_us - COST.transition_us, COST.transition_us)
        assert suspended_j == pytest.approx(COST.idle_watts * wait_us / 1e6)

    def test_a_board_that_draws_no_less_when_suspended_never_suspends(self):
        cost = SuspendCost(3.0, 3.0, "a meter", 5.5)
        assert math.isinf(cost.break_even_us)
        assert SuspendPlanner(cost).seconds(10**12) == 0

    def test_the_alarm_leaves_time_to_be_back_at_the_end_of_the_wait(self):
        planner = SuspendPlanner(COST)
        assert planner.seconds(int(COST.wait_us_min) - 1) == 0
        assert planner.seconds(60_000_000) == 57

    def test_times_of_suspends_replace_the_assumed_ones_and_the_longest_counts(self):
        planner = SuspendPlanner(COST)
        for leave_s in (3, 5):
            assert not planner.done(Suspended(50, 49_000_000, (50 + leave_s) * 1_000_000, 0))
        assert planner.cost.timed and planner.cost.leave_us == 5e6
        assert planner.cost.transition_us == 6e6
        assert planner.seconds(60_000_000) == 54

    @pytest.mark.parametrize(
        ("one", "why"),
        [
            (Suspended(50, 0, 20_000, 0, "EBUSY"), "EBUSY"),
            (Suspended(50, 60_000_000, 62_000_000, 9_000_000), "9.0 s late"),
            (Suspended(50, 400_000, 2_000_000, 0), "after 0.4 of 50 s"),
        ],
    )
    def test_three_failures_in_a_row_end_it(self, one, why):
        planner, good = SuspendPlanner(COST), Suspended(50, 49_000_000, 53_000_000, 0)
        for outcome in (one, one, good, one, one):
            planner.done(outcome)
        assert planner.failures == FAILURES_MAX - 1 and planner.seconds(90_000_000)
        assert why in planner.done(one)
        assert why in planner.ended and not planner.seconds(90_000_000)


class TestTheMachine:
    def test_it_sleeps_until_the_alarm_and_leaves_none_behind(self, board):
        assert suspend(board, "mem", 57).problem == ""
        assert board.slept == [pytest.approx(56.6)]
        assert board.read(ALARM) == ""

    def test_an_alarm_of_another_program_is_left_alone(self, board):
        board.write(ALARM, "+30")
        assert "busy" in suspend(board, "mem", 57).problem
        assert board.slept == [] and board.read(ALARM) == "1000030"

    def test_a_state_that_the_kernel_refuses_leaves_no_alarm(self, board):
        board.set_faults([(POWER_STATE, errno.EBUSY, "w")])
        assert "busy" in suspend(board, "mem", 57).problem
        assert board.slept == [] and board.read(ALARM) == ""

    def test_mem_that_means_suspend_to_idle_is_refused_with_advice(self, board):
        board.store(MEM_SLEEP, "[s2idle] deep")
        assert "write deep to" in cannot_suspend(board, "mem")
        assert cannot_suspend(board, "freeze") == ""

    def test_a_clock_without_an_alarm_is_passed_over(self, board):
        board.root.joinpath(ALARM.lstrip("/")).unlink()
        assert "wakealarm" in cannot_suspend(board, "mem")

    @pytest.mark.parametrize("state", ["disk", "", "mem\nx"])
    def test_no_other_state_is_written(self, board, state):
        assert "no state" in suspend(board, state, 57).problem

    @pytest.mark.parametrize("seconds", [0, -5, 86_401])
    def test_no_other_time_is_slept(self, board, seconds):
        assert "within" in suspend(board, "mem", seconds).problem
        assert board.slept == []

    def test_a_board_whose_profile_knows_nothing_of_it_cannot(self, tmp_path):
        sysfs = SimulatedBoard(load("raspberry-pi-5"), tmp_path).sysfs
        assert "has nothing" in cannot_suspend(sysfs, "mem")


class TestTheHelper:
    def test_without_the_option_it_suspends_for_no_peer(self, board):
        assert "--suspend" in AllowList(board).answer({"suspend": "mem", "seconds": 57})["refused"]
        assert board.slept == []

    def test_with_the_option_it_suspends_until_its_own_alarm(self, board):
        helper = AllowList(board, suspends=True)
        assert helper.answer({"suspend": "mem", "seconds": 57}) == {"ok": True}
        assert len(board.slept) == 1

    @pytest.mark.parametrize(
        "request_", [{"suspend": "mem"}, {"suspend": 1, "seconds": 5},
                     {"suspend": "mem", "seconds": True}, {"suspend": "mem", "seconds": 5.0}],
    )  # fmt: skip
    def test_a_request_of_another_shape_is_refused(self, board, request_):
        assert "refused" in AllowList(board, suspends=True).answer(request_)
        assert board.slept == []

    def test_on_a_machine_without_a_clock_it_says_so(self, tmp_path):
        helper = AllowList(plant(tmp_path, "orin-nano-r36"), suspends=True)
        assert "has nothing" in helper.answer({"suspend": "mem", "seconds": 5})["refused"]


def test_another_process_sees_the_alarm_and_the_clock(board):
    other = SimulatedSysfs(board.root)
    board.write(ALARM, "+30")
    assert other.read(ALARM) == "1000030"
