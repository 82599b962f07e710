"""The ledger: known joules are found again, and books that cannot be right are not written.

The board is simulated here with physics of its own: P = idle + sum of busy x watts(clock), behind a
sensor that averages 0.42 s, is noisy and has steps of 39 mW (hardware.md 1.4).
"""

import math
from collections import deque
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from governors.attribution import ModelColumn, effects
from governors.energy import Provenance, Rail, RailEnergy
from governors.ledger import HISTORY, OTHER, SLOTS_MAX, Ledger, LedgerAccount
from governors.meters.base import PlainMeter, Reading
from governors.meters.sampler import Sampler

RAIL = Rail("VDD_IN", ("input",))
TICK_US = 10_000
JOIN = LedgerAccount("race", "wind", "join")
SUMS = LedgerAccount("race", "wind", "sums")
INGEST = LedgerAccount("ingest", "wind")

VOLTS = {0.52: 0.85, 0.92: 0.98, 1.22: 1.08, 1.43: 1.09}
"""GHz -> V: hardware.md 2.2, rounded."""


def core_watts(ghz):
    """What a busy core takes: hardware.md 2.1, least squares."""
    return 0.385 * ghz * VOLTS[ghz] ** 2 + 0.049


def linear_watts(ghz, calibrated=(0.52, 0.92)):
    """A model that knows two clocks and extrapolates on a straight line: it does not know that the
    voltage rises."""
    low, high = calibrated
    slope = (core_watts(high) - core_watts(low)) / (high - low)
    return core_watts(low) + slope * (ghz - low)


class Sensor(PlainMeter):
    """A meter that averages over 0.42 s, adds noise and rounds to its step."""

    name, provenance, rails = "ina3221", Provenance.MEASURED, (RAIL,)
    interval_us, span_us = 500_000, None

    def __init__(self, rng, noise_w=0.03, step_w=0.039):
        self.rng, self.noise_w, self.step_w = rng, noise_w, step_w
        self.recent = deque(maxlen=42)

    def read(self, now_us):
        watts = np.mean(self.recent) + self.rng.normal(0.0, self.noise_w)
        return [Reading(RAIL, now_us, round(watts / self.step_w) * self.step_w, None)]


class Rig:
    """A board on which beats run, and the ledger that is told of them what a model says."""

    def __init__(self, seed, ledger, idle_w=1.6):
        self.sensor = Sensor(np.random.default_rng(seed))
        self.sampler = Sampler([self.sensor], cpu_us=lambda: 0.0)
        self.ledger, self.idle_w = ledger, idle_w
        self.now_us, self.mark = 0, {}
        self.truth = {}

    def run(self, seconds, busy, watts, modelled, opp, unseen=lambda at_us: 0.0):
        """`busy[account](at_us)` is the mean number of busy cores in a tick, `watts[account]` what
        one takes, `modelled[account]` what the model says; `unseen` is load without bookings."""
        for _ in range(int(seconds * 1e6) // TICK_US):
            total = self.idle_w + unseen(self.now_us)
            until_us = self.now_us + TICK_US
            for account, share in busy.items():
                cores = share(self.now_us)
                joules = cores * watts[account] * TICK_US / 1e6
                self.truth[account] = self.truth.get(account, 0.0) + joules
                total += cores * watts[account]
                if cores:
                    told = cores * modelled[account] * TICK_US / 1e6
                    self.ledger.book(account, told, self.now_us, until_us, opp)
            self.now_us = until_us
            self.sensor.recent.append(total)
            if self.now_us >= self.sampler.due_us(self.now_us):
                self.sampler.sample(self.now_us)
                self.ledger.measure(self.sampler.input_energy(self.mark))
                self.mark = self.sampler.totals


def beats(rng, period_us, share, sway):
    """Duty cycles of beats: busy for a share of each period that sways from minute to minute."""
    levels = np.clip(share + sway * rng.standard_normal(4096), 0.02, 0.95)

    def busy(at_us):
        level = levels[at_us // 7_000_000 % len(levels)]
        return 4.0 if (at_us % period_us) < level * period_us else 0.0

    return busy


class TestRecovery:
    @pytest.mark.parametrize("seed", [1, 2, 3])
    @pytest.mark.parametrize("held_out", [1.22, 1.43])
    def test_two_operators_are_found_again_at_a_clock_that_was_not_calibrated(self, seed, held_out):
        rng = np.random.default_rng(100 + seed)
        ledger = Ledger(1.6, 0.05, lag_us=210_000)
        rig = Rig(seed, ledger)
        busy = {JOIN: beats(rng, 100_000, 0.3, 0.12), SUMS: beats(rng, 130_000, 0.15, 0.08)}
        own = {JOIN: 1.1, SUMS: 0.85}  # what their instructions cost beside the model's
        for ghz in (0.52, 0.92):
            watts = {a: own[a] * core_watts(ghz) for a in busy}
            told = {a: core_watts(ghz) for a in busy}
            rig.run(100, busy, watts, told, f"{ghz}")
        before = dict(rig.truth)
        watts = {a: own[a] * core_watts(held_out) for a in busy}
        modelled = {a: linear_watts(held_out) for a in busy}
        assert linear_watts(held_out) < 0.95 * core_watts(held_out)  # it does extrapolate wrongly
        booked = ledger.report().entries
        rig.run(300, busy, watts, modelled, f"{held_out}")
        entries = ledger.report().entries
        for account in busy:
            true = rig.truth[account] - before[account]
            found = entries[account].above_idle.joules - booked[account].above_idle.joules
            assert found == pytest.approx(true, rel=0.10), account
        raw = entries[JOIN].modelled_j / rig.truth[JOIN]
        assert raw < 0.9  # what the model alone would have said

    def test_the_intervals_hold_what_is_true_about_as_often_as_they_say(self):
        inside = total = 0
        for seed in range(12):
            rng = np.random.default_rng(seed)
            rig = Rig(seed, Ledger(1.6, 0.05, lag_us=210_000))
            wrong = 1 + 0.3 * rng.standard_normal() + 0.15 * rng.standard_normal(2)
            busy = {JOIN: beats(rng, 100_000, 0.25, 0.08), SUMS: beats(rng, 130_000, 0.2, 0.08)}
            watts = dict(zip(busy, np.maximum(0.1, wrong), strict=True))
            rig.run(60, busy, watts, {JOIN: 1.0, SUMS: 1.0}, "a")
            for account, entry in rig.ledger.report().entries.items():
                error = abs(entry.above_idle.joules - rig.truth[account])
                inside += error <= entry.above_idle.error_j + 0.03 * rig.truth[account]
                total += 1
        assert inside >= 0.85 * total

    def test_shares_that_never_vary_are_scaled_alike_with_a_wide_interval(self):
        rng = np.random.default_rng(5)
        rig = Rig(5, Ledger(1.6, 0.02, lag_us=210_000))
        busy = {JOIN: beats(rng, 100_000, 0.4, 0.0), SUMS: beats(rng, 100_000, 0.4, 0.0)}
        rig.run(120, busy, {JOIN: 1.1, SUMS: 0.9}, {JOIN: 0.8, SUMS: 0.8}, "a")
        report = rig.ledger.report()
        one, two = report.entries[JOIN].above_idle, report.entries[SUMS].above_idle
        assert one.joules == pytest.approx(two.joules, rel=0.01)
        assert one.joules + two.joules == pytest.approx(sum(rig.truth.values()), rel=0.05)
        assert abs(one.joules - rig.truth[JOIN]) < one.error_j
        both = rig.ledger.report(by=lambda account: account.job).entries["wind"].above_idle
        assert both.error_j < one.error_j / 3  # together they are known well

    def test_load_that_nobody_booked_stays_unattributed(self):
        rng = np.random.default_rng(6)
        rig = Rig(6, Ledger(1.6, 0.02, lag_us=210_000))
        busy = {JOIN: beats(rng, 100_000, 0.3, 0.1), SUMS: beats(rng, 130_000, 0.2, 0.08)}

        def fan(at_us):
            return 2.0 if at_us // 20_000_000 % 5 == 2 else 0.0

        rig.run(300, busy, {JOIN: 1.1, SUMS: 0.9}, {JOIN: 0.9, SUMS: 0.9}, "a", fan)
        report = rig.ledger.report()
        for account in busy:
            found = report.entries[account].above_idle.joules
            assert found == pytest.approx(rig.truth[account], rel=0.10)
        assert report.unattributed.joules == pytest.approx(2.0 * 60, rel=0.25)

    def test_what_was_settled_long_ago_is_still_right(self):
        ledger = Ledger(2.0, 0.01)
        rng = np.random.default_rng(7)
        truth = dict.fromkeys((JOIN, SUMS), 0.0)
        for i in range(2 * HISTORY + 30):
            at, joules = i * 5_000_000, 10.0
            for account, scale in ((JOIN, 1.3), (SUMS, 0.9)):
                told = rng.uniform(0.5, 5.0)
                ledger.book(account, told, at, at + 5_000_000)
                truth[account] += scale * told
                joules += scale * told
            ledger.measure(RailEnergy(RAIL, joules, Provenance.MEASURED, at, at + 5_000_000))
        report = ledger.report()
        for account, true in truth.items():
            figure = report.entries[account].above_idle
            assert figure.joules == pytest.approx(true, rel=0.03)
            assert figure.error_j < 0.1 * true
        assert report.measured_s == pytest.approx(5 * (2 * HISTORY + 30))
        assert ledger.report(recent=True).measured_s < 5 * HISTORY


class TestPairs:
    def test_wholes_add_up_to_the_input_and_aboves_with_the_rest_too(self):
        rng = np.random.default_rng(8)
        rig = Rig(8, Ledger(1.6, 0.1))
        busy = {
            JOIN: beats(rng, 100_000, 0.3, 0.1),
            INGEST: beats(rng, 100_000, 0.1, 0.05),
            LedgerAccount(OTHER): beats(rng, 1_000_000, 0.1, 0.05),
        }
        rig.run(60, busy, dict.fromkeys(busy, 1.0), dict.fromkeys(busy, 0.8), "a")
        report = rig.ledger.report()
        wholes = sum(e.whole_input.joules for e in report.entries.values())
        above = sum(e.above_idle.joules for e in report.entries.values())
        assert wholes == pytest.approx(report.input.joules)
        rest = report.baseline.joules + report.unattributed.joules
        assert above + rest == pytest.approx(report.input.joules)
        for entry in report.entries.values():
            assert entry.whole_input.joules > entry.above_idle.joules > 0
            assert entry.above_idle.error_j > 0 and entry.whole_input.error_j > 0

    def test_groups_add_up_their_accounts(self):
        ledger = Ledger(1.0, 0.1)
        for i in range(10):
            for account in (JOIN, SUMS, INGEST):
                ledger.book(account, 1.0 + i % 3, i * 1_000_000, (i + 1) * 1_000_000)
            ledger.measure(_energy(i, i + 1, 8.0))
        single, phases = ledger.report().entries, ledger.report(by=lambda a: a.phase).entries
        assert set(phases) == {"race", "ingest"}
        races = single[JOIN].above_idle.joules + single[SUMS].above_idle.joules
        assert phases["race"].above_idle.joules == pytest.approx(races)
        assert phases["race"].modelled_j == single[JOIN].modelled_j + single[SUMS].modelled_j


def _energy(since_s, until_s, joules, provenance=Provenance.MEASURED, gap_s=0.0):
    times = int(since_s * 1e6), int(until_s * 1e6), int(gap_s * 1e6)
    return RailEnergy(RAIL, joules, provenance, *times)


class TestGaps:
    def test_time_without_a_meter_is_modelled_and_says_so(self):
        ledger = Ledger(1.5, 0.01)
        for i in range(40):
            gap = 20 <= i < 30
            ledger.book(JOIN, 2.0 + i % 4, i * 5_000_000, (i + 1) * 5_000_000)
            told = 0.0 if gap else 7.5 + 1.5 * (2.0 + i % 4)
            ledger.measure(_energy(i * 5, i * 5 + 5, told, gap_s=5.0 if gap else 0.0))
        report = ledger.report()
        assert (report.measured_s, report.unmeasured_s) == (150.0, 50.0)
        true = sum(7.5 + 1.5 * (2.0 + i % 4) for i in range(40))
        assert report.input.joules == pytest.approx(true, rel=0.03)
        assert report.input.error_j > 0
        assert report.entries[JOIN].above_idle.joules == pytest.approx(
            1.5 * sum(2.0 + i % 4 for i in range(40)), rel=0.05
        )

    def test_a_hole_between_two_measurements_is_a_gap(self):
        ledger = Ledger(1.0, 0.1)
        ledger.measure(_energy(0, 5, 5.0))
        ledger.measure(_energy(15, 20, 5.0))
        report = ledger.report()
        assert (report.measured_s, report.unmeasured_s) == (10.0, 10.0)

    def test_time_that_two_meters_told_is_counted_once(self):
        ledger = Ledger(1.0, 0.1)
        ledger.measure(_energy(0, 10, 20.0))
        ledger.measure(_energy(5, 15, 20.0))
        report = ledger.report()
        assert (report.measured_s, report.input.joules) == (15.0, 30.0)

    def test_bookings_before_the_first_measurement_are_not_lost(self):
        ledger = Ledger(1.0, 0.1)
        ledger.book(JOIN, 3.0, 0, 8_000_000)
        ledger.measure(_energy(8, 13, 5.0))
        assert ledger.report().entries[JOIN].modelled_j == pytest.approx(3.0)

    def test_a_model_is_no_measurement(self):
        ledger = Ledger(1.0, 0.1)
        ledger.book(JOIN, 3.0, 0, 5_000_000)
        ledger.measure(_energy(0, 5, 500.0, Provenance.MODELLED))
        report = ledger.report()
        assert (report.measured_s, report.unmeasured_s) == (0.0, 5.0)
        assert report.entries[JOIN].above_idle.joules == pytest.approx(3.0)
        assert report.entries[JOIN].above_idle.error_j > 0.5

    def test_nothing_is_scaled_over_less_than_five_seconds(self):
        ledger = Ledger(1.0, 0.1)
        ledger.book(JOIN, 3.0, 0, 4_000_000)
        ledger.measure(_energy(0, 4.9, 9.0))
        assert ledger.report().measured_s == 0.0
        ledger.measure(_energy(4.9, 5.0, 0.1))
        assert ledger.report().measured_s == pytest.approx(5.0)

    def test_a_simulated_total_makes_simulated_books(self):
        ledger = Ledger(1.0, 0.1)
        ledger.measure(_energy(0, 5, 5.0, Provenance.SIMULATED))
        assert ledger.report().provenance is Provenance.SIMULATED

    @pytest.mark.parametrize("kind", [Provenance.MEASURED, Provenance.SIMULATED])
    def test_a_simulated_total_that_agrees_with_its_model_proves_nothing(self, kind):
        """60 windows, each exactly as modelled: a measurement narrows the interval, the model's own
        total does not."""
        ledger = Ledger(1.0, 0.1)
        for at in range(0, 300, 5):
            joules = 2.0 + at % 4
            ledger.book(JOIN, joules, at * 1_000_000, (at + 5) * 1_000_000)
            ledger.measure(_energy(at, at + 5, 5.0 + joules, kind))
        report = ledger.report()
        found = report.entries[JOIN]
        assert found.above_idle.joules == pytest.approx(found.modelled_j, rel=0.02)
        relative = found.above_idle.error_j / found.above_idle.joules
        model_sd = math.sqrt(0.3**2 + 0.2**2 + 0.15**2)  # of model, OPP and account
        if kind is Provenance.SIMULATED:
            assert relative == pytest.approx(1.96 * model_sd, rel=0.05)
            least = math.hypot(found.above_idle.error_j, 1.96 * 0.1 * 300)
            assert report.input.error_j == pytest.approx(least, rel=0.05)
            assert found.whole_input.error_j >= found.above_idle.error_j
        else:
            assert relative < 0.1
            assert report.input.error_j == 0.0


class TestBookings:
    @given(
        since_us=st.integers(0, 10_000_000),
        length_us=st.integers(0, 10_000_000),
        joules=st.floats(0.0, 1e6),
        cuts=st.lists(st.integers(1, 29_999_999), max_size=6, unique=True),
    )
    def test_no_joule_is_lost_however_windows_cut_a_booking(
        self, since_us, length_us, joules, cuts
    ):
        ledger = Ledger(1.0, 0.1)
        ledger.book(JOIN, joules, since_us, since_us + length_us)
        edges = [0, *sorted(cuts), 30_000_000]
        for begin, end in pairwise(edges):
            ledger.measure(RailEnergy(RAIL, 1.0, Provenance.MEASURED, begin, end))
        ledger.measure(RailEnergy(RAIL, 1.0, Provenance.MEASURED, 30_000_000, 40_000_000))
        entries = ledger.report().entries
        assert entries[JOIN].modelled_j == pytest.approx(joules, rel=1e-9, abs=1e-12)

    @pytest.mark.parametrize("hours", [0.5, 3.0])
    def test_hours_that_nobody_asked_for_take_the_room_of_a_minute(self, hours):
        ledger, s = Ledger(1.0, 0.1), 3600 * hours
        ledger.book(JOIN, 3.0, 0, int(s * 1e6))
        assert len(ledger._slots) <= SLOTS_MAX
        for since_s, until_s in ((0, s / 3), (s / 3, s)):
            ledger.measure(_energy(since_s, until_s, 5.0, Provenance.MODELLED))
            found = ledger.report().entries[JOIN].modelled_j
            assert found == pytest.approx(3.0 * until_s / s, rel=4 / SLOTS_MAX)

    def test_a_report_changes_with_a_window_and_not_before(self):
        ledger, told = Ledger(1.0, 0.1), []
        for second in range(12):
            ledger.book(JOIN, 1.0, second * 1_000_000, (second + 1) * 1_000_000)
            ledger.measure(_energy(second, second + 1, 2.0))
            told.append((ledger.closed, ledger.report().measured_s))
        assert [count for count, _ in told] == [0] * 4 + [1] * 5 + [2] * 3
        assert all(measured == 5.0 * count for count, measured in told)

    def test_what_ends_at_a_windows_edge_is_told_by_the_sensor_in_the_next(self):
        ledger = Ledger(1.0, 0.1, lag_us=210_000)
        ledger.book(JOIN, 3.0, 4_900_000, 5_000_000)
        ledger.measure(_energy(0, 5, 5.0))
        assert ledger.report().entries[JOIN].modelled_j == 0.0
        ledger.measure(_energy(5, 10, 8.0))
        assert ledger.report().entries[JOIN].modelled_j == pytest.approx(3.0)

    @pytest.mark.parametrize("joules", [-1.0, math.nan, math.inf])
    def test_impossible_joules_are_refused(self, joules):
        with pytest.raises(ValueError, match="race"):
            Ledger(1.0, 0.1).book(JOIN, joules, 0, 1)

    def test_a_phase_that_is_none_is_refused_with_those_that_are(self):
        with pytest.raises(ValueError, match="ingest, race, commit, ship"):
            LedgerAccount("lunch")

    @given(
        st.lists(
            st.tuples(st.integers(0, 3), st.sampled_from("ab"), st.sampled_from(("cpu", "radio"))),
            max_size=8,
        )
    )
    def test_priors_are_those_of_the_docstring(self, named):
        columns = [ModelColumn(account, opp, part) for account, opp, part in named]
        moved = effects(columns, 0.1)
        covariance = moved @ moved.T
        assert covariance[0, 0] == pytest.approx(0.01)
        for i, one in enumerate(columns, 1):
            for j, two in enumerate(columns, 1):
                expected = (
                    0.09 + 0.04 * (one.opp == two.opp) + 0.0225 * (one.account == two.account)
                )
                assert covariance[i, j] == pytest.approx(expected * (one.part == two.part))
