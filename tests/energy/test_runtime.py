"""The governor that the heart calls, driven by hand on a simulated board."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from edged.beat.stats import SATURATED_IDLE_US
from edged.energy import status
from edged.energy.board import open_site
from edged.energy.runtime import EnergyGovernor
from edged.energy.settings import EnergySettings
from edged.energy.tariffs import board_tariff
from edged.placement.placement import Placer
from edged.placement.profile import EnergyCalibration, KernelCurve, save_energy
from edged.platform.clock import SystemClock
from governors.base import Done, Forecast, LeaveAlone
from governors.curve import CalibrationCurve, CurvePoint
from governors.energy import Provenance
from governors.meters.settings import RadioSettings
from governors.placement_prices import KernelPart
from governors.policies.base import Decision
from governors.tariff import RadioPrice
from tests.beat.support import SECOND
from tests.energy.common import StepClock
from tests.governors.trees import plant


class Bench:
    """One side on a simulated Orin Nano, without a daemon."""

    def __init__(self, path, policy="hands_off", clock=None, allowed=(), begin=True, **settings):
        self.clock = clock or StepClock()
        asked = EnergySettings("simulated:orin-nano", policy, settings, allowed)
        self.site = open_site(asked, path, self.clock.monotonic_us)
        self.board = self.site.simulated.board
        self.side = EnergyGovernor(asked, self.site, board_tariff(self.site), self.clock, 2)
        if begin:
            self.side.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.side.close()

    def forecast(self):
        now = self.clock.monotonic_us()
        return Forecast(now, 0, now + SECOND // 10, SECOND // 10, 3_000)

    def beat(self, rows=10_000, cpu_s=0.002):
        """A beat every 100 ms, that keeps a core busy for so long."""
        self.clock.now += SECOND // 10
        steer = self.side.race(self.forecast())
        self.side.ingested()
        spin(cpu_s)
        self.clock.now += int(1e6 * cpu_s)
        self.side.idle(Done(rows, rows))
        return steer

    def read(self, times=1):
        for _ in range(times):
            self.clock.now += SECOND // 2
            self.side.read()


def a_job(name="j", **more):
    """As much of a job as this side looks at."""
    plan = SimpleNamespace(name=name, streams={}, governor=None)
    meta = SimpleNamespace(governor=None)
    return SimpleNamespace(plan=plan, meta=meta, **{"spent_ns": {}, "placers": {}, **more})


def spin(cpu_s):
    """Keep a core busy."""
    end = time.process_time() + cpu_s
    while time.process_time() < end:
        pass


def broken(*_):
    raise ZeroDivisionError("a bug")


@pytest.fixture
def bench(tmp_path):
    with Bench(tmp_path) as found:
        yield found


def test_an_error_in_a_policy_ends_neither_the_beats_nor_leaves_a_clock_set(tmp_path, capsys):
    with Bench(tmp_path, "fixed", cpu_mhz=960) as b:
        b.beat()
        assert b.side.limits.clock_hz() == 960_000_000
        b.side.policies.running.race = broken
        for _ in range(3):
            b.beat()
        told = status.status(b.side, b.clock.now)
        assert told["policy"]["policy"] == "hands_off"
        assert "ZeroDivisionError: a bug" in told["policy"]["problem"]
        assert told["limits"]["cpu.policy0"]["max_hz"] == 1_344_000_000
        assert told["owned"] == []
    assert capsys.readouterr().err.count("a bug") == 1, "said once"


def test_a_jobs_policy_overrules_a_default_and_no_choice_of_a_persons(bench):
    job = a_job()
    job.meta.governor = {"policy": "fixed", "settings": {"cpu_mhz": 960}}
    bench.side.attach([job])
    assert bench.side.policy()["policy"] == "combined"
    bench.beat()
    assert bench.side.limits.clock_hz() == 960_000_000
    bench.side.switch("hands_off", {})
    bench.beat()
    assert status.status(bench.side, bench.clock.now)["limits"]["cpu.policy0"]["max_hz"] > 10**9
    job.meta.governor = None
    bench.side.attach([job])
    assert bench.side.policy()["policy"] == "hands_off"
    assert status.status(bench.side, bench.clock.now)["owned"] == []


def test_a_failing_meter_reading_ends_nothing(bench, capsys):
    bench.side.watch.sampler.sample = broken
    bench.read(3)
    bench.beat()
    assert "a bug" in bench.side.policies.problem
    assert "a bug" in capsys.readouterr().err


def test_work_is_charged_to_the_board_at_the_clock_that_was_set(tmp_path):
    seconds = {}
    for mhz in (729.6, 1344.0):
        with Bench(tmp_path / str(mhz), "fixed", cpu_mhz=mhz) as b:
            for _ in range(6):
                b.beat(cpu_s=0.004)
            clocks = {hz: us for hz, us in b.side.watch.clocks_us.items() if us > 0}
            assert set(clocks) == {round(mhz * 1e6)}
            seconds[mhz] = sum(clocks.values()) / 1e6
    assert seconds[729.6] / seconds[1344.0] == pytest.approx(1344 / 729.6, rel=0.2)


def test_what_reading_meters_takes_is_bounded_with_all_that_is_booked(tmp_path, monkeypatch):
    """On files of a board, where that time is truly the board's."""
    plant(tmp_path / "board", "orin-nano-r36")
    clock, asked = StepClock(), EnergySettings(str(tmp_path / "board"))
    site = open_site(asked, tmp_path, clock.monotonic_us)
    side = EnergyGovernor(asked, site, board_tariff(site), clock, 2)
    book = side.watch._book
    monkeypatch.setattr(side.watch, "_book", lambda *told: (spin(0.002), book(*told)))
    side.read()
    began_us, spent_ns = clock.now, 0
    for _ in range(20):
        clock.now = max(clock.now, side.watch.sampler.due_us(clock.now))
        before_ns = time.thread_time_ns()
        side.read()
        spent_ns += time.thread_time_ns() - before_ns
    side.close()
    assert spent_ns / 1e3 / (clock.now - began_us) < 0.0015, "0.1 %, but what it varies by"
    (schedule,) = side.watch.sampler.schedules()
    assert schedule.share == pytest.approx(0.001, rel=0.01) and schedule.interval_us > 1_900_000


def test_more_work_than_there_is_time_saturates_the_board_after_some_seconds(tmp_path):
    with Bench(tmp_path, "fixed", cpu_mhz=729.6) as b:
        assert not status.status(b.side, b.clock.now)["saturated"]
        b.side.site.simulated._scale *= 200
        for _ in range(8):
            b.beat()
        told = status.status(b.side, b.clock.now)
        assert not told["saturated"] and told["busy_share"] > 1.0
        for _ in range(16):
            b.beat()
        assert status.status(b.side, b.clock.now)["saturated"]
        b.clock.now += SATURATED_IDLE_US
        assert not status.status(b.side, b.clock.now)["saturated"]


def test_joules_at_any_moment_never_fall_and_agree_with_the_meter(bench):
    bench.read()
    before, told = bench.board.input_joules, []
    for _ in range(30):
        bench.beat(cpu_s=0.001)
        told.append(bench.side.watch.joules(bench.clock.now))
        if len(told) % 4 == 0:
            bench.read()
    assert told == sorted(told)
    bench.read(2)
    energy = bench.side.watch.sampler.input_energy({})
    assert told[-1] == pytest.approx(energy.joules, rel=0.1)
    assert bench.board.input_joules - before == pytest.approx(energy.joules, rel=0.1)


def test_a_reading_takes_back_nothing_of_work_that_its_sensor_cannot_tell_of_yet(bench):
    """A sensor's mean is of a while ago: policies would see room where there is none."""
    bench.read(4)
    before, told = bench.board.input_joules, bench.side.watch.joules(bench.clock.now)
    for _ in range(5):
        bench.beat(cpu_s=0.02)
        bench.clock.now = max(bench.clock.now, bench.side.watch.sampler.due_us(0))
        bench.side.read()
        took = bench.board.input_joules - before
        assert bench.side.watch.joules(bench.clock.now) - told > 0.8 * took
    bench.read(6)
    assert bench.side.watch._unreported_j == 0.0, "and nothing is counted twice for long"


def test_a_frozen_sensor_becomes_a_gap_while_the_work_changes(tmp_path):
    with Bench(tmp_path) as b:
        b.side.site.simulated._scale *= 60
        b.read(3)
        b.board.freeze("1-0040")
        for i in range(24):
            if i % 8 < 4:
                for _ in range(3):
                    b.beat(cpu_s=0.003)
            b.read()
        assert status.energy(b.side, b.clock.now)["input"]["gap_us"] > 0
        problem = b.side.watch.sampler.problems()["ina3221", "VDD_IN"]
        assert "frozen" in problem


def test_the_ledger_books_what_was_read_by_phase_job_and_operator(bench):
    job = a_job(spent_ns={"joined": 0, "sink": 0})
    bench.side.attach([job])
    for _ in range(14):
        for _ in range(4):
            bench.beat(cpu_s=0.002)
            job.spent_ns["joined"] += 3_000_000
            job.spent_ns["sink"] += 1_000_000
        bench.read()
    books = status.status(bench.side, bench.clock.now)["ledger"]
    assert books["provenance"] == "simulated" and books["measured_s"] >= 5.0
    race = {e["operator"]: e["modelled_j"] for e in books["entries"] if e["phase"] == "race"}
    assert race["joined"] / race["sink"] == pytest.approx(3.0, rel=0.05)
    wholes = sum(e["whole_input"]["joules"] for e in books["entries"])
    assert wholes == pytest.approx(books["input"]["joules"], rel=1e-6)


def test_a_commit_takes_joules_only_where_tuples_came(tmp_path):
    """Control and telemetry of a daemon without input are part of being idle."""
    booked = {}
    for rows in (0, 1_000):
        with Bench(tmp_path / str(rows), "fixed", cpu_mhz=960) as b:
            for _ in range(14):
                for _ in range(4):
                    spin(0.001)
                    b.beat(rows, cpu_s=0.001)
                b.read()
            entries = status.status(b.side, b.clock.now)["ledger"]["entries"]
            booked[rows] = {e["phase"]: e["whole_input"]["joules"] for e in entries}
    assert booked[0].get("commit", 0.0) == 0.0 and booked[0]["idle"] > 0
    assert booked[1_000]["commit"] > 0


def test_a_hook_of_hands_off_costs_no_more_than_a_thousandth_of_a_beats_work(tmp_path):
    """A beat takes 3.6 ms of CPU time (`edged.simulate.work`); on the machine's own tree."""
    asked = EnergySettings("/")
    clock = SystemClock()
    site = open_site(asked, tmp_path, clock.monotonic_us)
    side = EnergyGovernor(asked, site, board_tariff(site), clock, 2)
    side.start()
    try:
        costs = {}
        for name, governor in (("none", LeaveAlone()), ("hands_off", side)):
            forecast, best = Forecast(clock.monotonic_us(), 0, 10**15, 10**5, 0), 1e9
            for _ in range(5):
                began = time.thread_time_ns()
                for _ in range(200):
                    governor.race(forecast)
                    governor.ingested()
                    governor.idle(Done(1000, 1000))
                best = min(best, (time.thread_time_ns() - began) / 200)
            costs[name] = best
        assert costs["none"] < 3_000
        assert costs["hands_off"] < 20_000, "ns; 850 measured above none's 350"
    finally:
        side.close()


def test_what_beats_only_counted_is_booked_when_somebody_asks(tmp_path):
    """On a tree of files, which is no simulated board."""
    (tmp_path / "tree").mkdir()
    plant(tmp_path / "tree", "orin-nano-r36")
    asked, clock = EnergySettings(str(tmp_path / "tree")), StepClock()
    site = open_site(asked, tmp_path, clock.monotonic_us)
    side = EnergyGovernor(asked, site, board_tariff(site), clock, 2)
    try:
        side.start()
        for _ in range(16):
            clock.now += 90_000
            side.race(Forecast(clock.now, 0, 10**15, 10**5, 0))
            clock.now += 1_000
            side.ingested()
            clock.now += 3_000
            side.idle(Done(1000, 500))
        assert side.watch.beats == 0, "only counted"
        races, race = [], side.watch.race
        side.watch.race = lambda *told: (races.append(told), race(*told))
        told = status.status(side, clock.monotonic_us())
        assert sum(told["race_clock_s"].values()) == pytest.approx(16 * 0.004)
        assert (side.watch.beats, side.watch.tuples) == (16, 8000)
        (booked,) = races
        assert booked[1] == pytest.approx(0.25), "the share of ingest"
        assert status.status(side, clock.monotonic_us())["race_clock_s"] == told["race_clock_s"]
    finally:
        side.close()


def test_admitting_nothing_holds_the_beat_until_the_time_that_was_said(tmp_path):
    with Bench(tmp_path, "fixed", cpu_mhz=960) as b:
        b.side.policies.running.race = lambda seen: Decision("no", admit_share=0.0, not_before_us=5)
        steer = b.side.race(b.forecast())
        assert steer.units_max == 0
        assert steer.not_before_us > b.clock.now, "never a busy loop"


def test_a_beat_that_only_commits_has_a_clock_where_that_saves_joules(tmp_path):
    with Bench(tmp_path, "race_to_idle") as b:

        def pinned():
            told = status.status(b.side, b.clock.now)["limits"]["cpu.policy0"]
            return told["max_hz"] if told["min_hz"] == told["max_hz"] else None

        for _ in range(20):
            b.beat()
        for _ in range(3):
            b.clock.now += SECOND // 10
            assert pinned() is None
            b.side.commit(replace(b.forecast(), commit_every_us=SECOND // 20))
            assert pinned() == 1_344_000_000
            b.side.ingested()
            b.side.idle(Done(100, 0))
        assert pinned() is None and b.side.policies.problem == ""


def test_a_calibration_of_this_board_prices_races_and_one_of_another_does_not(tmp_path, bench):
    points = (CurvePoint(729_600_000, 2000.0, 4.0), CurvePoint(1_344_000_000, 1000.0, 9.0))
    curve = CalibrationCurve("cpu", 1000, points, 3.0, Provenance.SIMULATED)
    for board, watts in (("orin-nano", 9.0), ("orin-nx", None)):
        kernels = {"chain": KernelCurve(curve, 2.0)}
        save_energy(EnergyCalibration(board, True, "ina3221", 1, 600.0, (), kernels), tmp_path)
        tariff = board_tariff(bench.site, tmp_path)
        modelled = board_tariff(bench.site).race_watts("cpu", 1_344_000_000, 2.0)
        expected = modelled if watts is None else watts
        assert tariff.race_watts("cpu", 1_344_000_000, 2.0) == pytest.approx(expected)


def test_placement_asks_for_the_boards_joules_at_the_pace_of_the_arrivals(bench):
    placer = Placer(None, SECOND, "chain")
    bench.side.attach([a_job(placers={"o": placer})])
    for _ in range(30):
        bench.beat(rows=10_000, cpu_s=0.0)
    short, long = (KernelPart("cuda", rows, 1e4, 1e3) for rows in (1_000, 20_000))
    price = placer.prices.beat_j(short, None)
    assert price > 0
    assert placer.prices.beat_j(long, None) == pytest.approx(20 * price, rel=0.01), "a row's share"
    assert placer.prices.beat_j(KernelPart("cpu", 1_000, 1e4, 1e4), None) < price, (
        "no GPU stays powered"
    )


def test_the_policy_is_told_what_buffers_and_acks_leave(tmp_path):
    seen = []
    with Bench(tmp_path, "race_to_idle") as b:
        b.side.policies.running.race = lambda told: seen.append(told) or Decision("")
        now = b.clock.monotonic_us()
        b.side.race(Forecast(now, 0, now + SECOND, SECOND, 3_000, 150_000.0, 80_000.0))
    assert seen[0].work.period_us_max == 150_000.0
    assert seen[0].work.commit_every_us == 80_000.0
    assert seen[0].work.costs["cpu"].commit_cycles > 0


def test_the_uplinks_radio_is_the_one_that_a_person_described(bench):
    described = RadioSettings("wwan0", 0.1, 2e-6, tail_joules=1.5, tail_s=4.0)
    assert board_tariff(bench.site, radio=described).radio == RadioPrice(1.5, 2e-6)


def test_a_jobs_policy_that_cannot_run_on_this_board_is_told_and_the_job_runs_without(tmp_path):
    """On a board without a power model."""
    (tmp_path / "tree").mkdir()
    plant(tmp_path / "tree", "no-control")
    asked, clock = EnergySettings(str(tmp_path / "tree")), StepClock()
    site = open_site(asked, tmp_path, clock.monotonic_us)
    side = EnergyGovernor(asked, site, None, clock, 2)
    try:
        side.start()
        job = a_job()
        job.meta.governor = {"policy": "power_cap", "settings": {"watts": 5}}
        side.attach([job])
        told = side.policy()
        assert "needs a power model" in told["jobs"]["j"]["problem"]
        assert (told["policy"], told["problem"]) == ("hands_off", "")
    finally:
        side.close()


def test_a_policy_that_somebody_asks_for_meanwhile_is_not_overridden_later(tmp_path):
    """Nor is the first one retried: it has ended."""
    clock = StepClock()
    with Bench(tmp_path / "first", "fixed", clock=clock, cpu_mhz=960) as first:
        asked = EnergySettings(str(tmp_path / "first" / "board"), "fixed", {"cpu_mhz": 729.6})
        site = open_site(asked, tmp_path, clock.monotonic_us)
        side = EnergyGovernor(asked, site, board_tariff(site), clock, 2)
        side.start()
        told = side.policy()
        assert (told["policy"], told["awaited"]) == ("hands_off", "fixed")
        assert "another daemon" in told["problem"]
        side.switch("hands_off", {})
        first.side.switch("hands_off", {})
        for _ in range(8):
            clock.now += 3 * SECOND
            side.read()
        told = side.policy()
        assert (told["policy"], told["awaited"], told["problem"]) == ("hands_off", None, "")
        side.close()


def test_a_jobs_policy_waits_for_a_board_that_another_daemon_owns_and_then_counts_alone(tmp_path):
    """The daemon's own is the default, which has no voice then either."""
    clock = StepClock()
    with Bench(tmp_path / "first", "fixed", clock=clock, cpu_mhz=960) as first:
        tree = str(tmp_path / "first" / "board")
        asked = EnergySettings(tree)
        site = open_site(asked, tmp_path, clock.monotonic_us)
        side = EnergyGovernor(asked, site, board_tariff(site), clock, 2)
        job = a_job()
        job.meta.governor = {"policy": "fixed", "settings": {"cpu_mhz": 729.6}}
        side.start()
        side.attach([job])
        told = side.policy()
        assert (told["policy"], told["awaited"]) == ("hands_off", "fixed")
        first.side.switch("hands_off", {})
        clock.now += 3 * SECOND
        side.read()
        told = side.policy()
        assert (told["policy"], told["awaited"], told["problem"]) == ("combined", None, "")
        side.race(Forecast(clock.now, 0, clock.now + SECOND, SECOND, 0))
        assert side.limits.clock_hz() == 729_600_000
        side.close()
