"""The sampler and its totals: joules beside a naive twin, gaps, schedules, cost, frozen sensors."""

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governors.energy import Provenance, Rail, RailEnergy
from governors.meters.base import PlainMeter, Reading
from governors.meters.sampler import SHARE_MAX, Sampler
from governors.meters.totals import Total

IN = Rail("VDD_IN", ("input",))
STEP_W = 0.039
SECOND = 1_000_000


class Script(PlainMeter):
    """A meter with scripted readings."""

    provenance, steps_w = Provenance.MEASURED, {}

    def __init__(self, says, name="ina3221", interval_us=500_000, span_us=None, steps_w=()):
        self.name, self.interval_us, self.span_us = name, interval_us, span_us
        self.rails, self.steps_w, self.says = (IN,), dict(steps_w), says
        self.reads = []

    def read(self, now_us):
        self.reads.append(now_us)
        value = self.says(now_us)
        if value is None:
            return [Reading(IN, now_us, None, None, "EAGAIN")]
        watts, joules = (value, None) if self.span_us is None else (None, value)
        return [Reading(IN, now_us, watts, joules)]


def drive(sampler, until_us, busy=lambda at_us: None, since_us=0):
    """Wake when it is due."""
    now_us = since_us
    while (now_us := max(now_us, sampler.due_us(now_us))) <= until_us:
        sampler.sample(now_us, busy(now_us))
    return now_us


def watts(at_us, value, problem=""):
    return Reading(IN, at_us, value, None, problem)


def joules(at_us, value, problem=""):
    return Reading(IN, at_us, None, value, problem)


def naive_watts(readings, bridge_us):
    """Trapezoids with exact fractions, pair by pair."""
    energy, gap_us = Fraction(0), 0
    for (a_us, a), (b_us, b) in pairwise(readings):
        if a is None or b is None or b_us - a_us > bridge_us:
            gap_us += b_us - a_us
        else:
            heights = Fraction(max(a, 0.0)) + Fraction(max(b, 0.0))
            energy += heights / 2 * Fraction(b_us - a_us, SECOND)
    return float(energy), gap_us


steps = st.integers(1, 3 * SECOND)
power = st.one_of(st.none(), st.floats(-5.0, 100.0))


def mean_of(power, since_us, until_us, parts=200):
    """The mean of a power over some time."""
    step = (until_us - since_us) / parts
    return sum(power(since_us + (i + 0.5) * step) for i in range(parts)) / parts


class TestLag:
    """A sensor that tells the mean over its last whole interval, as an INA3221 does."""

    @given(st.integers(0, 3 * SECOND), st.integers(0, 499_999), st.integers(0, 500_000))
    def test_after_it_joules_are_of_the_power_that_is_now(self, step_us, phase_us, more_us):
        def power(at_us):
            return 9.0 if at_us >= step_us else 3.0

        def says(at_us):
            end_us = (at_us + phase_us) // 500_000 * 500_000 - phase_us
            return mean_of(power, end_us - 500_000, end_us)

        sampler = Sampler([Script(says)], cpu_us=lambda: 0.0)
        lag_us = sampler.lag_us("VDD_IN")
        drive(sampler, step_us + lag_us + more_us)
        first = sampler.input_energy({})
        drive(sampler, first.until_us + 5 * SECOND, since_us=first.until_us)
        last = sampler.input_energy({})
        seconds = (last.until_us - first.until_us) / SECOND
        assert (last.joules - first.joules) / seconds == pytest.approx(9.0)

    def test_it_is_of_the_meter_that_tells_the_input(self):
        slow = Script(lambda at_us: 1.0, name="battery", interval_us=10 * SECOND)
        slow.rails = (Rail("BAT0", ("input",)),)
        sampler = Sampler([slow, Script(lambda at_us: 1.0)], cpu_us=lambda: 0.0)
        lags_us = [sampler.lag_us(name) for name in ("BAT0", "VDD_IN", "nothing")]
        assert lags_us == [35 * SECOND, 1_750_000, 0]


class TestJoules:
    @given(st.lists(st.tuples(steps, power), min_size=1, max_size=40))
    def test_trapezoids_are_those_of_the_naive_twin_and_time_is_covered_or_a_gap(self, moves):
        at_us, readings = 0, []
        total = Total(IN, Provenance.MEASURED, counts=False)
        for step_us, value in moves:
            at_us += step_us
            readings.append((at_us, value))
            total.take(watts(at_us, value, "" if value is not None else "EIO"), 1_500_000)
        energy = total.energy()
        expected_j, expected_gap_us = naive_watts(readings, 1_500_000)
        assert energy.joules == pytest.approx(expected_j, rel=1e-9, abs=1e-12)
        assert energy.gap_us == expected_gap_us
        assert (energy.since_us, energy.until_us) == (readings[0][0], at_us)

    @given(st.lists(st.tuples(steps, st.floats(0.0, 50.0), st.booleans()), min_size=2, max_size=40))
    def test_a_counter_tells_what_passed_while_it_could_not_be_read(self, moves):
        at_us, counted = 0, 0.0
        total = Total(IN, Provenance.MEASURED, counts=True)
        total.take(joules(0, 0.0), 10**12)
        for step_us, more, fails in moves:
            at_us += step_us
            counted += more
            total.take(joules(at_us, None, "EIO") if fails else joules(at_us, counted), 10**12)
        total.take(joules(at_us + 1, counted), 10**12)
        energy = total.energy()
        assert energy.joules == pytest.approx(counted, rel=1e-9, abs=1e-12)
        assert (energy.gap_us, energy.until_us) == (0, at_us + 1)

    @given(st.lists(st.tuples(st.integers(1, 10**6), st.none() | st.floats(0, 100)), max_size=8))
    def test_a_counter_tells_the_mean_watts_since_it_was_told_before(self, moves):
        total = Total(IN, Provenance.MEASURED, counts=True)
        at_us, counter, before = 0, 5.0, (0, 5.0)
        total.take(joules(0, counter), 10**9)
        assert total.watts is None
        for step_us, power in moves:
            at_us += step_us
            if power is None:
                total.take(joules(at_us, None, "away"), 10**9)
                assert total.watts is None
                continue
            counter += power * step_us / 1e6
            total.take(joules(at_us, counter), 10**9)
            mean = (counter - before[1]) / (at_us - before[0]) * 1e6
            assert total.watts == pytest.approx(mean, abs=1e-6)
            before = (at_us, counter)

    def test_a_negative_offset_is_counted_as_none_and_not_subtracted(self):
        total = Total(IN, Provenance.MEASURED, counts=False)
        for second, value in enumerate((2.0, 2.0, -0.392, -0.392)):
            total.take(watts(second * SECOND, value), 5 * SECOND)
        assert total.energy().joules == pytest.approx(2.0 + 1.0)

    def test_totals_between_two_marks_are_their_difference(self):
        sampler = Sampler([Script(lambda at_us: 4.0)], cpu_us=lambda: 0.0)
        drive(sampler, 10 * SECOND)
        mark = sampler.totals
        drive(sampler, 30 * SECOND, since_us=10 * SECOND)
        got = sampler.energies(mark)["ina3221", "VDD_IN"]
        assert got.since_us == mark["ina3221", "VDD_IN"].until_us
        assert got.joules == pytest.approx(4.0 * (got.until_us - got.since_us) / SECOND)
        assert sampler.energies({}) == sampler.totals


class TestGaps:
    def test_the_time_around_a_failed_reading_is_a_gap_and_is_not_filled(self):
        total = Total(IN, Provenance.MEASURED, counts=False)
        for second, value in enumerate((5.0, 5.0, None, 5.0, 5.0)):
            total.take(watts(second * SECOND, value, "" if value else "EAGAIN"), 5 * SECOND)
        assert total.energy() == RailEnergy(
            IN, 10.0, Provenance.MEASURED, 0, 4 * SECOND, gap_us=2 * SECOND
        )

    def test_a_counter_that_stays_away_longer_than_it_may_leaves_a_gap(self):
        total = Total(IN, Provenance.MEASURED, counts=True)
        for second, value in ((0, 0.0), (1, 5.0), (2, None), (9, None), (10, 50.0), (11, 55.0)):
            problem = "" if value is not None else "ENODEV"
            total.take(joules(second * SECOND, value, problem), 5 * SECOND)
        energy = total.energy()
        assert (energy.joules, energy.gap_us) == (10.0, 9 * SECOND)

    def test_a_counter_that_began_anew_loses_what_came_before_and_says_so(self):
        total = Total(IN, Provenance.MEASURED, counts=True)
        total.take(joules(0, 0.0), 5 * SECOND)
        total.take(joules(SECOND, 7.0), 5 * SECOND)
        total.take(joules(2 * SECOND, 7.0, "it began anew"), 5 * SECOND)
        assert total.problem == "it began anew"
        total.take(joules(3 * SECOND, 9.0), 5 * SECOND)
        assert (total.energy().joules, total.energy().gap_us) == (9.0, SECOND)
        assert total.problem == ""

    @pytest.mark.parametrize("jump", [-1.0, 1e9])
    def test_a_counter_that_moved_as_nothing_can_is_a_gap(self, jump):
        total = Total(IN, Provenance.MEASURED, counts=True)
        for second, value in enumerate((5.0, 7.0, 7.0 + jump, 9.0 + jump)):
            total.take(joules(second * SECOND, value), 5 * SECOND)
            assert ("impossible" in total.problem) == (second == 2)
        assert (total.energy().joules, total.energy().gap_us) == (4.0, SECOND)

    def test_a_meter_that_forgets_a_rail_leaves_a_gap_for_it(self):
        meter = Script(lambda at_us: 1.0)
        sampler = Sampler([meter], cpu_us=lambda: 0.0)
        sampler.sample(0)
        meter.read = lambda now_us: []
        sampler.sample(SECOND)
        assert sampler.totals["ina3221", "VDD_IN"].gap_us == SECOND
        assert "gave no reading" in sampler.problems()["ina3221", "VDD_IN"]

    def test_a_sampler_that_woke_late_leaves_a_gap(self):
        sampler = Sampler([Script(lambda at_us: 1.0)], cpu_us=lambda: 0.0)
        for at_us in (0, 1_500_000, 3_000_001):
            sampler.sample(at_us)
        total = sampler.totals["ina3221", "VDD_IN"]
        assert (total.joules, total.gap_us) == (1.5, 1_500_001)


class TestSchedule:
    def test_each_meter_is_read_at_its_own_interval_on_average(self):
        fast = Script(lambda at_us: 1.0, interval_us=500_000)
        slow = Script(lambda at_us: 1.0, name="battery", interval_us=10 * SECOND)
        drive(Sampler([fast, slow], cpu_us=lambda: 0.0), 1000 * SECOND)
        assert len(fast.reads) == pytest.approx(2000, rel=0.2)  # read along: a little more often
        assert len(slow.reads) == pytest.approx(100, rel=0.35)

    def test_nothing_is_due_between(self):
        meter = Script(lambda at_us: 1.0)
        sampler = Sampler([meter], cpu_us=lambda: 0.0)
        sampler.sample(0)
        due_us = sampler.due_us(0)
        assert 250_000 <= due_us <= 750_000
        assert sampler.sample(due_us // 4) == []
        assert len(meter.reads) == 1

    def test_without_meters_nothing_is_ever_due(self):
        assert Sampler([]).due_us(0) is None
        assert Sampler([]).sample(0) == []

    @pytest.mark.parametrize("period_us", [100_000, 250_000, 500_000, SECOND])
    def test_beats_in_step_with_the_interval_are_not_met_at_one_phase(self, period_us):
        """A sensor of moments, and beats that take 20 W in a fifth of their period: readings at
        fixed intervals would say 2 W or 20 W for ever."""

        def now(at_us):
            return 20.0 if at_us % period_us < period_us // 5 else 2.0

        sampler = Sampler([Script(now)], cpu_us=lambda: 0.0)
        drive(sampler, 1000 * SECOND)
        total = sampler.totals["ina3221", "VDD_IN"]
        assert total.joules / 1000 == pytest.approx(5.6, rel=0.05)


class Costly:
    """A thread's CPU time, of which each look at a meter takes `us`."""

    def __init__(self, us):
        self.us, self.spent, self.looks = us, 0.0, 0

    def __call__(self):
        self.looks += 1
        self.spent += self.us if self.looks % 2 == 0 else 0.0
        return self.spent


class TestCost:
    @pytest.mark.parametrize("cost_us", [10.0, 400.0, 5_000.0, 40_000.0])
    def test_reading_costs_at_most_its_share_of_a_core(self, cost_us):
        cpu = Costly(cost_us)
        sampler = Sampler([Script(lambda at_us: 1.0)], cpu_us=cpu)
        end_us = drive(sampler, 3000 * SECOND)
        assert cpu.spent / end_us <= SHARE_MAX * 1.05
        (schedule,) = sampler.schedules()
        assert schedule.cost_us == pytest.approx(cost_us)
        assert schedule.share <= SHARE_MAX
        assert (schedule.interval_us > schedule.wanted_us) == (cost_us > 500.0)

    def test_what_is_booked_after_a_read_is_part_of_its_cost(self):
        sampler = Sampler([Script(lambda at_us: 1.0)], cpu_us=Costly(400.0))
        spent_us = now_us = 0
        while now_us < 3000 * SECOND:
            now_us = max(now_us, sampler.due_us(now_us))
            sampler.sample(now_us)
            sampler.booked(1_600.0)
            spent_us += 2_000
        assert spent_us / now_us <= SHARE_MAX * 1.05
        (schedule,) = sampler.schedules()
        assert (schedule.cost_us, schedule.interval_us) == (2_000.0, 2 * SECOND)

    def test_a_stretched_interval_is_no_gap(self):
        sampler = Sampler([Script(lambda at_us: 3.0)], cpu_us=Costly(20_000.0))
        drive(sampler, 600 * SECOND)
        total = sampler.totals["ina3221", "VDD_IN"]
        assert total.gap_us == 0
        assert total.joules == pytest.approx(3.0 * (total.until_us - total.since_us) / SECOND)

    def test_a_counter_is_read_before_it_can_wrap_whatever_that_costs(self):
        meter = Script(lambda at_us: at_us / SECOND, name="rapl", span_us=4 * SECOND)
        sampler = Sampler([meter], cpu_us=Costly(50_000.0))
        drive(sampler, 100 * SECOND)
        distances = [b - a for a, b in pairwise(meter.reads)]
        assert max(distances) < 4 * SECOND
        (schedule,) = sampler.schedules()
        assert schedule.share > SHARE_MAX  # and says so
        assert sampler.totals["rapl", "VDD_IN"].gap_us == 0

    def test_the_threads_own_cpu_time_is_what_is_measured(self):
        def busy(at_us):
            return float(sum(range(20_000)) > 0)

        sampler = Sampler([Script(busy)])
        drive(sampler, 10 * SECOND)
        (schedule,) = sampler.schedules()
        assert schedule.cost_us > 20.0


class TestFrozen:
    def work(self, at_us):
        """One core more for half of each ten seconds."""
        return 2.0 if at_us % (10 * SECOND) < 5 * SECOND else 0.5

    def sampler(self, says):
        return Sampler([Script(says, steps_w={"VDD_IN": STEP_W})], cpu_us=lambda: 0.0)

    def test_a_sensor_that_stands_still_while_the_work_changes_is_frozen_and_becomes_a_gap(self):
        def says(at_us):
            return 4.0 if at_us > 60 * SECOND else 3.0 + self.work(at_us) + at_us % 7 * STEP_W

        sampler = self.sampler(says)
        drive(sampler, 60 * SECOND, self.work)
        assert sampler.problems() == {}
        drive(sampler, 120 * SECOND, self.work, since_us=60 * SECOND)
        assert "frozen at 4" in sampler.problems()["ina3221", "VDD_IN"]
        gap_s = sampler.totals["ina3221", "VDD_IN"].gap_us / SECOND
        assert 45 < gap_s <= 60

    def test_it_is_believed_again_when_it_moves(self):
        def says(at_us):
            frozen = 20 * SECOND < at_us < 60 * SECOND
            return 4.0 if frozen else 3.0 + self.work(at_us) + at_us % 7 * STEP_W

        sampler = self.sampler(says)
        drive(sampler, 100 * SECOND, self.work)
        assert sampler.problems() == {}
        total = sampler.totals["ina3221", "VDD_IN"]
        assert 20 < total.gap_us / SECOND < 45

    def test_an_idle_rail_that_stays_within_one_step_is_not_frozen(self):
        sampler = self.sampler(lambda at_us: 1.6)
        drive(sampler, 600 * SECOND, lambda at_us: 0.02 + at_us % 3 * 0.05)
        assert sampler.problems() == {}
        assert sampler.totals["ina3221", "VDD_IN"].gap_us == 0

    def test_a_sensor_with_steps_too_coarse_to_see_the_work_is_not_frozen(self):
        """AGX Orin: 40 µV over 2 mΩ at 19 V are steps of 0.38 W."""
        meter = Script(lambda at_us: 9.5, steps_w={"VDD_IN": 0.38})
        sampler = Sampler([meter], cpu_us=lambda: 0.0)
        drive(sampler, 300 * SECOND, self.work)
        assert sampler.problems() == {}

    def test_where_the_work_is_not_known_nothing_is_called_frozen(self):
        sampler = self.sampler(lambda at_us: 4.0)
        drive(sampler, 300 * SECOND)
        assert sampler.problems() == {}

    def test_a_rail_that_does_not_follow_the_cores_is_not_called_frozen(self):
        """POM_5V_GPU of a Nano says 39 mW for hours."""
        sampler = Sampler([Script(lambda at_us: 0.039)], cpu_us=lambda: 0.0)
        drive(sampler, 300 * SECOND, self.work)
        assert sampler.problems() == {}
