"""The cost model against an exhaustive twin in plain loops."""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from governors.cost import BUCKETS, SHARES, CostModel
from governors.energy import Provenance
from governors.policies.base import Decision, Observation
from governors.policies.running import Running
from governors.schedutil import Schedutil, Utilisation
from governors.tariff import Gating, RadioPrice, Sleep
from governors.work import Dial, RaceCost, Work
from tests.governors.plant import TARIFFS, dials
from tests.whole import examples

TABLE = (400_000_000, 800_000_000, 1_200_000_000)
GPU = (300_000_000, 600_000_000)
DIALS = (
    Dial("cpu.policy0", "cpu", TABLE, TABLE[0], TABLE[-1]),
    Dial("gpu", "gpu", GPU, GPU[0], GPU[-1]),
)


@dataclass
class Flat:
    """A made-up board: 2 W idle, cubic CPU, linear GPU."""

    idle_watts: float = 2.0
    wake_j: float = 1e-4
    byte_j: float = 1e-10
    cycle_j: float = 1e-9
    awake_watts: float = 0.2
    states: tuple[Sleep, ...] = (Sleep("c7", 0.2, 0, 1e-4),)
    sleeps: tuple[Sleep, ...] = (
        Sleep("deep", 0.3, 5_000, 2e-3),
        Sleep("deeper", 0.1, 90_000, 0.02),
    )
    gating: Gating = field(default_factory=lambda: Gating(0.3, 200_000, 0.01))
    radio: RadioPrice = field(default_factory=lambda: RadioPrice(0.05, 1e-7))

    def race_watts(self, device, hz, cores, memory_hz=None) -> float:
        ghz = hz / 1e9
        above = 0.4 + cores * (0.3 * ghz + 0.5 * ghz**3) if device == "cpu" else 1.0 + 2 * ghz
        return self.idle_watts + above

    def standing_watts(self, high_hz: int, low_hz: int) -> float:
        return 0.0


def batcher(wait_s: float, work: Work) -> tuple[float, int]:
    """The period that the batcher makes of a wait, and its beats that only commit, one by one."""
    if work.period_us_max <= work.commit_every_us or not work.commit_every_us:
        return min(wait_s, work.period_us_max / 1e6), 0
    ack_s, quarter_s, commits = work.commit_every_us / 1e6, work.latency_us / 4e6, 0
    while wait_s - (commits + 1) * ack_s > quarter_s:
        commits += 1
    period_s = min(wait_s, (commits + 1) * ack_s)
    return min(period_s, (commits + 1) * work.period_us_max / 1e6), commits


def committing(board: Flat, work: Work, write_j: float) -> float:
    """The least joules of a beat that only commits, with the work after it: clocks only, as in
    `naive`."""
    cycles = max(cost.commit_cycles for cost in work.costs.values())
    hz = min(TABLE, key=lambda hz: alone(board, cycles, hz))
    most = max(cost.beside_cycles for cost in work.costs.values())
    return write_j + alone(board, cycles, hz) + alone(board, most, hz)


def alone(board: Flat, cycles: float, hz: int) -> float:
    """Joules above idle of one core at a clock."""
    return (board.race_watts("cpu", hz, 1.0) - board.idle_watts) * cycles / hz


def naive(board: Flat, work: Work, rate: float, write_j: float) -> tuple[float, bool]:
    """The least mean power over all candidates, and whether any is in time (clocks only: leaving
    it alone is checked apart)."""
    found = []
    for share in SHARES:
        for device, clocks in (("cpu", TABLE), ("gpu", GPU)):
            if device not in work.costs:
                continue
            c = work.costs[device]
            for hz in clocks:
                fixed_s = c.cycles / hz + c.stall_us / 1e6
                each_s = c.cycles_per_unit / hz + c.stall_us_per_unit / 1e6
                room_s = share * work.latency_us / 1e6 - work.commit_us / 1e6 - fixed_s
                wait_s = room_s / (1 + each_s * rate)
                period_s, commits = batcher(wait_s, work)
                race_s = fixed_s + each_s * rate * period_s
                if period_s <= 0 or race_s > period_s or race_s > work.latency_us / 2e6:
                    continue
                joules = board.idle_watts * (period_s - race_s)
                joules += board.race_watts(device, hz, c.cores) * race_s
                left_hz = hz if device == "cpu" else TABLE[0]
                joules += write_j + board.wake_j + alone(board, c.beside_cycles, left_hz)
                joules += min(0.2 * (period_s - race_s), 1e-4)  # awake, or asleep and woken
                joules += commits * (2 * board.wake_j + committing(board, work, write_j))
                if device == "gpu":
                    joules += 0.3 * min(0.2, period_s - race_s)
                    joules += 0.01 if period_s - race_s > 0.2 else 0.0
                joules += board.byte_j * c.bytes_per_unit * rate * period_s
                for sleep in board.sleeps:
                    gain = sleep.watts * (period_s - race_s - sleep.us / 1e6) - sleep.joules
                    joules -= max(0.0, gain) if period_s - race_s > sleep.us / 1e6 else 0.0
                watts = joules / period_s
                if work.upload_bytes_per_s:
                    beats = max(1, int(work.upload_within_us / 1e6 // period_s))
                    watts += board.radio.joules / (beats * period_s)
                    watts += board.radio.joules_per_byte * work.upload_bytes_per_s
                found.append(watts)
    return (min(found), True) if found else (float("inf"), False)


works = st.builds(
    Work,
    units=st.just(0.0),
    units_per_s=st.floats(1, 1e6),
    costs=st.fixed_dictionaries(
        {
            "cpu": st.builds(
                RaceCost, st.floats(0, 1e6), st.floats(1, 2000), st.floats(0, 500),
                st.floats(0, 0.5),
                st.floats(1, 4), st.floats(0, 500), st.floats(0, 1e6), st.floats(0, 1e6),
            )
        },
        optional={
            "gpu": st.builds(
                RaceCost, st.floats(0, 1e6), st.floats(1, 300), st.floats(0, 3000),
                st.floats(0, 0.2),
            )
        },
    ),
    latency_us=st.integers(10_000, 5_000_000),
    commit_us=st.floats(0, 3000),
    upload_bytes_per_s=st.sampled_from([0.0, 1e4]),
    upload_within_us=st.sampled_from([0, 10_000_037]),
    period_us_max=st.sampled_from([math.inf, 30_000.0, 1e6]),
    commit_every_us=st.sampled_from([0.0, 7_013.0, 200_021.0]),
)  # fmt: skip


MUCH_BESIDE = Work(
    units=0.0, units_per_s=1.0, latency_us=10_863, commit_us=1134.0, upload_bytes_per_s=1e4,
    upload_within_us=0, period_us_max=math.inf, commit_every_us=7013.0,
    costs={"cpu": RaceCost(0.0, 1.0, cores=1.0, commit_cycles=1.0, beside_cycles=1e6)},
)  # fmt: skip
"""Beats that only commit, with a short commit and much work beside it."""


@settings(max_examples=examples(150), deadline=None)
@given(work=works, write_j=st.floats(0, 1e-3))
@example(work=MUCH_BESIDE, write_j=2.7e-5)
def test_a_plan_is_the_best_of_an_exhaustive_search(work, write_j):
    model = CostModel(Flat())
    rate = 2 ** (round(BUCKETS * _log2(work.units_per_s)) / BUCKETS)
    if abs(BUCKETS * _log2(work.units_per_s)) <= 1:
        rate = 1.0  # the bucket that a model starts in
    plan = model.plan(work, DIALS, write_j)
    least, in_time = naive(Flat(), work, rate, write_j)
    left_alone = not plan.option.clocks
    if work.commit_every_us:
        left_alone |= not model.commit_fit(work, DIALS, write_j, 0.0).option.clocks
    if not left_alone:
        assert plan.in_time == in_time
        if in_time:
            assert plan.watts == pytest.approx(least, rel=1e-9)
    elif plan.in_time:
        assert plan.watts <= least * (1 + 1e-9)


def _log2(x: float) -> float:
    return math.log2(x)


def test_wait_sleep_and_upload_are_decided_together():
    calm = Work(0, 100, {"cpu": RaceCost(1e5, 300)}, 2_000_000, 0, 100.0, 60_000_000)
    plan = CostModel(Flat()).plan(calm, DIALS)
    assert plan.share == 1.0
    assert plan.sleeps == ("deep", "deeper")
    assert plan.upload_us == pytest.approx(60_000_000 // plan.period_us * plan.period_us)
    hasty = Work(0, 100, {"cpu": RaceCost(1e5, 300)}, 10_000, 0, 100.0, 0)
    plan = CostModel(Flat()).plan(hasty, DIALS)
    assert plan.sleeps == () and plan.upload_us == plan.period_us


@pytest.mark.parametrize("write_us, sets", [(None, True), (100.0, True), (50_000.0, False)])
def test_a_gpus_clock_is_set_only_where_that_saves_more_than_its_own_writing_takes(write_us, sets):
    """13 to 57 ms a write were seen on Thor; what setting the CPU's clocks takes is not asked."""
    gpu = Dial("gpu", "gpu", GPU, GPU[0], GPU[-1], write_us=write_us)
    work = Work(1000.0, 1e4, {"gpu": RaceCost(1e6, 1000, stall_us=2e4)}, 1_000_000)
    model = CostModel(Flat(gating=Gating(0.0, 0, 0.0)))
    write_j = 1e-6 if write_us is None else 1e6
    best = model.fit(model.options(work, (gpu,)), work, 900_000, math.inf, write_j).option
    assert bool(best.clocks) == sets


def test_a_memory_cap_is_priced_with_its_own_writing():
    cpu, memory = DIALS[0], Dial("emc", "memory", GPU, GPU[0], GPU[-1], write_us=3000.0)
    work = Work(1000.0, 1e4, {"cpu": RaceCost(1e6, 1000)}, 1_000_000)
    capped = [
        w for w in CostModel(Flat()).options(work, (cpu, memory), 100.0) if len(w.clocks) == 2
    ]
    plain = [w for w in CostModel(Flat()).options(work, (cpu,), 100.0) if w.clocks]
    one_w = Flat().race_watts("cpu", TABLE[0], 1.0) - Flat().idle_watts
    for option, same in zip(capped, plain, strict=True):
        assert option.us == pytest.approx(same.us + 3000.0)
        assert option.joules(0, 0.5) == pytest.approx(
            option.above_watts * option.us / 1e6 + 0.5 + one_w * 3e-3
        )


def test_the_gpu_is_taken_where_it_is_cheaper_and_not_where_its_start_is_not_paid():
    costs = {"cpu": RaceCost(1e4, 4000, cores=4), "gpu": RaceCost(0, 100, stall_us=3000)}
    few = CostModel(Flat()).plan(Work(0, 10, costs, 1_000_000), DIALS)
    many = CostModel(Flat()).plan(Work(0, 200_000, costs, 1_000_000), DIALS)
    assert few.option.device == "cpu" and many.option.device == "gpu"


def test_where_no_clock_may_be_set_leaving_it_alone_is_all_there_is():
    model = CostModel(TARIFFS["orin-nano"])
    options = model.options(
        Work(0, 1e4, {"cpu": RaceCost(1e5, 300, cores=6)}, 10**6),
        dials("orin-nano", writable=False),
    )
    assert [w.clocks for w in options] == [()]


@given(jitter=st.lists(st.floats(0.96, 1.04), min_size=2, max_size=60))
def test_a_rate_that_jitters_changes_the_plan_once_at_most(jitter):
    model = CostModel(Flat())
    plans = [
        model.plan(Work(0, 5e4 * j, {"cpu": RaceCost(1e5, 300)}, 10**6), DIALS) for j in jitter
    ]
    assert sum(a is not b for a, b in itertools.pairwise(plans)) <= 1


@settings(max_examples=examples(100), deadline=None)
@given(
    units=st.floats(1, 1e6), left_us=st.floats(1, 1e6), room=st.floats(0, 2),
    cost=st.builds(RaceCost, st.floats(0, 1e6), st.floats(1, 2000), st.floats(0, 500)),
)  # fmt: skip
def test_a_fit_never_takes_more_than_there_is_room_for(units, left_us, room, cost):
    board = Flat()
    model = CostModel(board)
    options = model.options(Work(units, 1e4, {"cpu": cost}, 10**6), DIALS)
    fit = model.fit(options, Work(units, 1e4, {"cpu": cost}, 10**6), left_us, room, 1e-5)
    assert 0.0 <= fit.share <= 1.0
    if fit.share > 0:
        clocks = [fit.option.hz] if fit.option.clocks else list(TABLE)
        for hz in clocks:
            joules = (board.race_watts("cpu", hz, 1.0) - 2.0) * cost.us(units * fit.share, hz) / 1e6
            assert joules <= room * (1 + 1e-6) + 1e-9
    fastest = cost.us(units, TABLE[-1]) <= left_us
    assert fit.in_time or not fastest


def test_a_new_plan_takes_well_under_a_millisecond_and_a_kept_one_some_microseconds():
    model = CostModel(TARIFFS["orin-nano"])
    costs, clocks = {"cpu": RaceCost(1e5, 300, cores=6)}, dials("orin-nano")
    fresh, kept = [], []
    for i in range(20):
        work = Work(0, 100.0 * 2**i, costs, 10**6)
        for times in (fresh, kept):
            before = time.perf_counter()
            model.plan(work, clocks)
            times.append(time.perf_counter() - before)
    assert min(fresh) < 5e-3
    assert min(kept) < 1e-4


@pytest.mark.parametrize("share", [0.06, 0.15, 0.35, 0.7, 1.0])
def test_a_race_that_is_left_alone_takes_what_schedutil_makes_of_races_at_that_period(share):
    """Run for forty periods of that length; the model knows five lengths and what is between."""
    board, rate, latency_us = TARIFFS["orin-nano"], 50_000.0, 1_000_000
    cost = RaceCost(12e6, 700.0, 0.0, 0.01, cores=3.0)
    alone = CostModel(board).options(Work(0, rate, {"cpu": cost}, latency_us), dials("orin-nano"))[
        0
    ]
    rate = 2.0 ** (round(BUCKETS * math.log2(rate)) / BUCKETS)
    units, used = rate * share * latency_us / 1e6, Utilisation()
    dial = dials("orin-nano")[0]
    kernel = Schedutil(dial.choices_hz(), dial.table_hz[-1])
    for _ in range(40):
        pieces = kernel.race(12e6 + 700.0 * units, 0.01 * units, used)
        us = sum(piece[1] for piece in pieces)
        used.sleep(share * latency_us - us)
    joules = sum((board.race_watts("cpu", hz, 3.0) - board.idle_watts) * t for hz, t in pieces)
    assert alone.clocks == ()
    assert alone.takes_us(units) == pytest.approx(us, rel=0.1)
    assert alone.joules(units, 0.0) == pytest.approx(joules / 1e6, rel=0.1)


def test_a_short_race_after_long_ones_is_priced_at_the_clock_that_those_left_behind():
    """The daemon's policy sees races only; the truth is schedutil's law run beside it."""
    board, clocks = TARIFFS["orin-nano"], dials("orin-nano")
    cost, dial = RaceCost(12e6, 700.0, cores=3.0), clocks[0]
    running = Running("race_to_idle", {}, CostModel(board))
    kernel, used = Schedutil(dial.choices_hz(), dial.table_hz[-1]), Utilisation()
    priced: list[Observation] = []

    def see(seen: Observation) -> Decision:
        priced.append(seen)
        return Decision("left alone")

    running.policy.race = see
    at_us = 0
    for units in [400_000] * 6 + [20_000]:
        work = Work(units, 50_000.0, {"cpu": cost}, 10**6)
        running.race(Observation(at_us, work, at_us + 10**6, 0.0, Provenance.SIMULATED, clocks))
        pieces = kernel.race(12e6 + 700.0 * units, 0.0, used)
        us = round(sum(piece[1] for piece in pieces))
        running.idle(Observation(at_us + us, work, 0, 0.0, Provenance.SIMULATED, clocks))
        used.sleep(10**6 - us)
        at_us += 10**6
    alone = running.policy.options(priced[-1])[0]
    settled = CostModel(board).options(priced[-1].work, clocks)[0]
    assert alone.takes_us(20_000) == pytest.approx(us, rel=0.01)
    assert settled.takes_us(20_000) > 1.3 * us
