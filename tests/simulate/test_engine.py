"""The simulator against closed forms, recursions, and its own log added up again."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import governors.profile
import governors.profile_reader
from edged.beat.batcher import MARGIN_US_MIN
from edged.simulate.device import SimulatedDevice
from edged.simulate.engine import Engine, Setup, percentiles
from edged.simulate.report import _setup, answer
from edged.simulate.work import COMMIT_US
from governors.work import RaceCost
from tests.simulate.common import ORIN, join_plan, plain_work, question, simulated
from tests.whole import examples

STEADY = 1e6
"""Messages a second: so many that arrivals are even."""


class TestAgainstClosedForms:
    """Even arrivals and a fixed clock leave nothing to chance."""

    COST = RaceCost(cycles=4e6, cycles_per_unit=200.0, cores=2.0)
    HZ = 1_036_800_000

    def run(self, rate: float, latency_us: int, seconds: float = 60.0):
        work = plain_work(rate, STEADY, self.COST)
        setup = Setup(
            work, latency_us, latency_us, 1 << 30, "fixed", {"cpu_mhz": self.HZ / 1e6}, seconds
        )
        return simulated(setup)

    def beat(self, rate: float, latency_us: int) -> tuple[float, float]:
        """Period and race of the steady state: a period and a race fill the tolerance, less what
        the batcher keeps for the commit and as a margin."""
        fixed, each = 1e6 * 4e6 / self.HZ, rate * 200.0 / self.HZ
        margin = max(MARGIN_US_MIN, latency_us // 50)
        period = (latency_us - COMMIT_US - margin - fixed) / (1 + each)
        return period, fixed + each * period

    @pytest.mark.parametrize("rate, latency_us", [(10_000, 100_000), (300_000, 500_000)])
    def test_period_race_latency_and_power(self, rate, latency_us):
        outcome, device = self.run(rate, latency_us)
        period, race = self.beat(rate, latency_us)
        assert outcome.beats / outcome.seconds == pytest.approx(1e6 / period, rel=0.03)
        assert outcome.busy_share == pytest.approx(race / period, rel=0.03)
        median = (period / 2 + race + COMMIT_US) / 1e3
        assert outcome.latency_ms["p50"] == pytest.approx(median, rel=0.03)
        assert outcome.latency_ms["p99"] <= latency_us / 1e3
        tariff = device.tariff
        above = tariff.race_watts("cpu", self.HZ, 2.0) - tariff.idle_watts
        watts = tariff.idle_watts + above * race / period + 1e6 * tariff.wake_j / period
        assert outcome.joules / outcome.seconds == pytest.approx(watts, rel=0.005)

    def test_what_a_board_cannot_do_piles_up_at_the_rate_of_the_difference(self):
        capacity = self.HZ / 200.0
        outcome, _ = self.run(1.5 * capacity, 1_000_000, 30.0)
        assert outcome.busy_share > 0.95  # but for the first wait
        assert outcome.waiting / outcome.seconds == pytest.approx(0.5 * capacity, rel=0.05)

    def test_ingests_follow_a_lindley_recursion(self):
        # W[n+1] = W[n] + P[n] where the next wake is the tolerance less the race that is expected,
        # the highest of the last ones with a tenth of forgetting, and never before the race is over
        rate, latency_us = 200_000, 200_000
        _, device = self.run(rate, latency_us, 20.0)
        starts = [p.start_us for p in device.log if p.state == "race"]
        margin, expected = latency_us // 50, 0.0
        at, race, wakes = 0.0, 0.0, []
        for _ in range(60):
            begin = max(at, latency_us - COMMIT_US * (len(wakes) > 0) - margin - expected + at)
            begin = max(begin, at + race)
            race = 1e6 * 4e6 / self.HZ + rate * (begin - at) / 1e6 * 200.0 / self.HZ * 1e6
            expected = max(race, 0.9 * expected + 0.1 * race)
            wakes.append(begin)
            at = begin
        # arrivals are random still: the error of a sum of n grows as its root
        assert np.allclose(starts[:60], wakes, atol=0.01 * latency_us * np.arange(1, 61) ** 0.5)


class TestConservation:
    """Nothing is lost and nothing is made up."""

    @settings(max_examples=examples(25), deadline=None)
    @given(
        rate=st.floats(1, 1e6),
        latency=st.sampled_from(["20ms", "100ms", "2s"]),
        policy=st.sampled_from(
            [
                ("hands_off", {}),
                ("race_to_idle", {"sleep": True}),
                ("power_cap", {"watts": 3.7}),
                ("energy_budget", {"joules_per_day": 320_000.0}),
                ("fixed", {"cpu_mhz": 900.0}),
            ]
        ),
        cap=st.booleans(),
        seed=st.integers(0, 1000),
    )
    def test_energy_is_power_times_time_over_the_log_and_every_row_is_accounted_for(
        self, rate, latency, policy, cap, seed
    ):
        asked = question(rate, latency, policy=policy[0], settings=policy[1], seed=seed)
        asked = replace(asked, seconds=10.0, memory_cap=cap)
        device = SimulatedDevice(ORIN, log=[], memory_cap=cap)
        outcome = Engine(_setup(asked, device), device).run()
        joules = sum(p.watts * p.us / 1e6 + p.joules for p in device.log)
        assert joules == pytest.approx(outcome.joules, rel=1e-9)
        at = 0.0
        for piece in device.log:
            assert piece.start_us == pytest.approx(at, abs=1e-3)
            at = piece.start_us + piece.us
        assert at == pytest.approx(1e6 * outcome.seconds)
        by_state = {}
        for piece in device.log:
            by_state[piece.state] = by_state.get(piece.state, 0.0) + piece.us
        for state, us in device.states_us.items():
            assert by_state[state] == pytest.approx(us)
        assert outcome.arrived == pytest.approx(outcome.raced + outcome.waiting, abs=1e-3)
        allowed = set(device.dials[0].choices_hz())
        assert {p.hz for p in device.log if p.state == "race"} <= allowed

    @pytest.mark.parametrize("watts, ack", [(3.45, "100ms"), (3.6, "100ms"), (4.0, "20ms")])
    def test_a_cap_holds_in_every_window_of_the_log_the_first_among_them(self, watts, ack):
        """With short acks, beats that only commit come between, which no policy is asked about."""
        asked = question(50_000, policy="power_cap", settings={"watts": watts, "window_s": 5.0})
        asked = replace(asked, plan=join_plan("100ms", ack=ack))
        device = SimulatedDevice(ORIN, log=[])
        outcome = Engine(_setup(asked, device), device).run()
        times = np.array([0.0] + [p.start_us + p.us for p in device.log])
        joules = np.cumsum([0.0] + [p.watts * p.us / 1e6 + p.joules for p in device.log])
        for window in np.arange(0.5e6, times[-1], 37e3):
            since = max(0.0, window - 5e6)
            drawn = np.interp(window, times, joules) - np.interp(since, times, joules)
            assert drawn <= watts * (window - since) / 1e6 * 1.001
        assert outcome.raced > 0
        assert outcome.wakes / outcome.seconds < 120

    def test_messages_are_poisson_and_rows_are_as_many_as_were_asked_for(self):
        asked = question(5_000, seconds=600.0)
        device = SimulatedDevice(ORIN)
        outcome = Engine(_setup(asked, device), device).run()
        assert outcome.arrived == pytest.approx(2 * 5_000 * 600, rel=4 / np.sqrt(40 * 600))


class TestAnswers:
    """What comes out."""

    def test_the_same_seed_gives_the_same_answer_and_another_one_another(self):
        one, two = (json.dumps(answer(question(seed=3))) for _ in range(2))
        assert one == two
        assert json.dumps(answer(question(seed=4))) != one

    def test_energy_comes_as_a_pair_and_everything_says_simulated(self):
        result = answer(question(battery_j=180_000.0))
        assert result["provenance"] == "simulated"
        w, j = result["watts"], result["joules_per_mtuple"]
        millions = result["tuples"]["processed"] / 1e6
        assert j["input"] * millions == pytest.approx(w["input"] * result["seconds"])
        assert w["input"] - w["above_idle"] == pytest.approx(3.37, abs=0.01)
        assert result["battery_hours"] == pytest.approx(50 / w["input"])
        assert sum(result["state_shares"].values()) == pytest.approx(1.0, abs=1e-4)

    def test_racing_at_the_optimum_takes_less_than_the_kernel_s_governor(self):
        left, raced = (
            answer(question(20_000, policy=p))["watts"]["above_idle"]
            for p in ("hands_off", "race_to_idle")
        )
        assert raced < 0.9 * left

    def test_a_longer_tolerance_takes_less_energy_and_fewer_wakeups(self):
        short, long = (answer(question(latency=latency)) for latency in ("50ms", "1s"))
        assert long["watts"]["above_idle"] < short["watts"]["above_idle"] / 3
        assert long["wakeups_per_s"] < short["wakeups_per_s"]

    def test_upload_windows_save_the_radio_s_fixed_joules(self, monkeypatch):
        up = governors.profile.UplinkFigures(0.5, 1e-6, 1.0, "made up")
        board = replace(ORIN, uplink=up)
        sent = {}
        for within in (0, 30_000_000):
            asked = question(latency="1s", policy="race_to_idle", upload_within_us=within)
            sent[within] = answer(replace(asked, board=board))["watts"]["above_idle"]
        assert sent[30_000_000] < sent[0] - 1.0

    @pytest.mark.parametrize("name", governors.profile_reader.names())
    def test_every_board_can_be_asked(self, name):
        result = answer(replace(question(1_000), board=governors.profile_reader.load(name)))
        assert result["tuples"]["processed"] > 0
        assert result["watts"]["error"] >= 0

    def test_a_battery_runs_on_virtual_time_faster_than_a_thousand_to_one(self):
        asked = question(latency="1s", seconds=3600.0)
        before = time.process_time()
        answer(asked)
        assert time.process_time() - before < 3.6


@settings(max_examples=examples(30), deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0, 1e5), st.floats(1e3, 1e5), st.integers(1, 50)),
        min_size=1,
        max_size=8,
    )
)
def test_percentiles_are_those_of_rows_spread_over_their_spans(spans):
    found, late = percentiles([(low, low + width, float(n)) for low, width, n in spans], 50_000)
    rows = np.concatenate([np.linspace(low, low + width, 400 * n) for low, width, n in spans])
    for name, share in (("p50", 50), ("p95", 95), ("p99", 99)):
        below = (rows / 1e3 <= found[name]).mean() * 100
        assert below == pytest.approx(share, abs=1.0)
    assert late == pytest.approx((rows > 50_000).mean(), abs=0.01)
