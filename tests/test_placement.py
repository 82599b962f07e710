"""Which kernel runs: the cheapest in time, changed only where that pays."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.errors import ConfigError
from edged.placement.placement import (
    DECIDE_BEATS,
    DEFAULT,
    Curve,
    KernelProfile,
    Placer,
    choose,
    outline,
)

WINDOWS, ROWS = (1_000, 100_000), (100, 10_000)
LATENCY = 1_000_000


def curve(fixed, each, device="cpu", carry=0.0, cpu=1.0):
    """A kernel whose beats cost `fixed` µs and `each` µs a tuple, on `cpu` times as many cores."""
    us = tuple(tuple(fixed + each * n for n in ROWS) for _ in WINDOWS)
    return Curve(device, WINDOWS, ROWS, us, tuple(tuple(cpu * x for x in r) for r in us), carry)


CHAIN, SLOW = curve(10, 0.02), curve(10, 0.2)
GPU = curve(200, 0.001, device="cuda", cpu=0.1)


def profile(watts=None, **kernels):
    return KernelProfile(2, {k.replace("_", "-"): c for k, c in kernels.items()}, watts or {})


def test_without_a_profile_it_is_the_default():
    assert choose(None, (), 1000, 1000, LATENCY).kernel == DEFAULT
    assert choose(profile(), (), 1000, 1000, LATENCY).kernel == DEFAULT
    assert outline(None, LATENCY) == [
        "placement: chain; run `edged calibrate` to find a better kernel"
    ]


def test_of_kernels_on_one_processor_it_is_the_one_of_least_time_at_that_size():
    p = profile(chain=curve(100, 0.01), bucket=curve(1, 0.2))
    assert choose(p, (), 1000, 100, LATENCY).kernel == "bucket"
    assert choose(p, (), 1000, 10_000, LATENCY).kernel == "chain"
    assert outline(p, LATENCY)[0] == (
        "placement at a window of 1000 a side: bucket, from 1024 tuples a beat chain"
    )


def test_energy_decides_between_processors_where_watts_are_known():
    told = {"cpu": 2.0, "cuda": 4.0}
    p = profile(told, chain=CHAIN, chain_cuda=GPU)
    assert choose(p, (), 1000, 100, LATENCY).kernel == "chain"
    many = choose(p, (), 1000, 1_000_000, LATENCY)
    assert many.kernel == "chain-cuda"
    cost = GPU.cost(1000, 1_000_000)
    assert many.joules == pytest.approx((2.0 * cost.cpu_us + 4.0 * cost.us) / 1e6)


def test_where_watts_are_not_known_another_processor_runs_only_where_the_tolerance_needs_it():
    p = profile(chain=CHAIN, chain_cuda=GPU)
    assert choose(p, (), 1000, 1_000_000, LATENCY).kernel == "chain"
    needed = choose(p, (), 1000, 1_000_000, 30_000)
    assert (needed.kernel, needed.joules) == ("chain-cuda", None)


class Board:
    """1 W on the CPU, 2 W on a GPU that is left 100 ms after its last work; 1 000 rows a second."""

    def __init__(self, wake_j):
        self.wake_j = wake_j

    def beat_j(self, part, instead):
        if part.device == "cpu":
            return part.us / 1e6
        gated = part.units > 100
        if gated and self.wake_j is None:
            return None
        return (2 * part.us + 1e5) / 1e6 + (self.wake_j if gated else 0.0)

    def work_j(self, cpu_us):
        return cpu_us / 1e6


def test_the_boards_prices_decide_where_there_are_some_and_what_they_leave_out_is_not_guessed():
    p = profile(
        {"cpu": 2.0, "cuda": 4.0}, chain=curve(10, 100.0), chain_cuda=curve(10, 1.0, "cuda")
    )
    placed = {
        wake_j: choose(p, (), 1000, 10_000, 10_000_000, Board(wake_j)).kernel
        for wake_j in (0.1, 2.0, None)
    }
    assert placed == {0.1: "chain-cuda", 2.0: "chain", None: "chain"}
    assert choose(p, (), 1000, 100, 10_000_000, Board(None)).kernel == "chain"
    assert choose(p, (), 1000, 10_000, 100_000, Board(None)).kernel == "chain-cuda", "in time"


def test_a_kernel_that_nobody_can_price_runs_no_longer_than_it_is_needed():
    p = profile(chain=curve(10, 10.0), chain_cuda=curve(10, 1.0, "cuda"))
    placer = Placer(p, 100_000, "chain")
    placer.prices = Board(None)
    assert beats(placer, 10_000, count=2 * DECIDE_BEATS) == ["chain-cuda"]
    assert beats(placer, 200, count=2 * DECIDE_BEATS) == ["chain"]


def test_where_none_is_in_time_it_is_the_fastest():
    p = profile({"cpu": 1.0, "cuda": 1000.0}, chain=CHAIN, bucket=SLOW, chain_cuda=GPU)
    assert choose(p, (), 1000, 1_000_000, 10).kernel == "chain-cuda"
    assert choose(p, ("chain-cuda",), 1000, 1_000_000, 10).kernel == "chain"


@given(st.integers(1, 10**8), st.integers(1, 10**7))
def test_costs_between_measured_points_lie_between_them_and_grow_in_proportion_beyond(window, rows):
    cost = CHAIN.cost(window, rows)
    least, most = CHAIN.us[0][0], CHAIN.us[0][-1]
    each = (most - least) / (ROWS[1] - ROWS[0])
    assert least * 0.999 <= cost.us <= (most + each * max(0, rows - ROWS[1])) * 1.001
    assert CHAIN.cost(window, rows + 1).us >= cost.us * 0.999999
    assert CHAIN.cost(WINDOWS[0], ROWS[1]).us == pytest.approx(most)


def beats(placer, rows, window=1000, count=DECIDE_BEATS):
    return [k for _ in range(count) if (k := placer.beat(rows, window))]


def test_a_switch_is_made_after_two_decisions_for_it():
    p = profile(chain=curve(100, 0.01), bucket=curve(1, 0.2))
    placer = Placer(p, LATENCY, "chain")
    assert beats(placer, 100) == []
    assert beats(placer, 100) == ["bucket"]
    assert beats(placer, 100, count=10 * DECIDE_BEATS) == []
    assert beats(placer, 10_000, count=2 * DECIDE_BEATS) == ["chain"]


def test_loads_that_change_all_the_time_cause_no_switches():
    placer = Placer(profile(chain=curve(100, 0.01), bucket=curve(1, 0.2)), LATENCY, "chain")
    for i in range(20):
        assert beats(placer, (100, 10_000)[i % 2]) == []


def test_a_small_gain_is_not_worth_a_switch_nor_one_that_the_carrying_eats_up():
    small = Placer(profile(chain=curve(10, 0.02), bucket=curve(10, 0.019)), LATENCY, "chain")
    assert beats(small, 10_000, count=10 * DECIDE_BEATS) == []
    dear = profile(chain=curve(10, 0.02), bucket=curve(10, 0.01, carry=1000.0))
    assert beats(Placer(dear, LATENCY, "chain"), 1000, 100_000, 10 * DECIDE_BEATS) == []
    cheap = profile(chain=curve(10, 0.02), bucket=curve(10, 0.01, carry=0.01))
    assert beats(Placer(cheap, LATENCY, "chain"), 1000, 100_000, 2 * DECIDE_BEATS) == ["bucket"]


def test_beats_without_tuples_decide_nothing():
    placer = Placer(profile(chain=curve(100, 0.01), bucket=curve(1, 0.2)), LATENCY, "chain")
    assert beats(placer, 0, count=1000) == []


def test_what_a_person_chose_stays_until_it_is_given_back():
    placer = Placer(profile(chain=curve(1, 0.01), bucket=curve(100, 0.2)), LATENCY, "chain")
    placer.pin("bucket")
    assert beats(placer, 1000, count=10 * DECIDE_BEATS) == []
    placer.pin(None)
    assert beats(placer, 1000, count=2 * DECIDE_BEATS) == ["chain"]


def test_a_kernel_that_could_not_be_switched_to_is_not_tried_again():
    placer = Placer(profile(chain=curve(100, 0.2), bucket=curve(1, 0.01)), LATENCY, "chain")
    assert beats(placer, 1000, count=2 * DECIDE_BEATS) == ["bucket"]
    placer.refuse("bucket", "chain", "no room")
    assert beats(placer, 1000, count=10 * DECIDE_BEATS) == []
    assert placer.problems == {"bucket": "no room"}


def test_a_profile_reads_back_as_it_was_written():
    p = profile({"cpu": 1.5}, chain=CHAIN, chain_cuda=GPU)
    assert KernelProfile.decode(p.encode(), "here") == p


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda d: d.pop("kernels"), "kernels"),
        (lambda d: d.update(format=2), "format 2"),
        (lambda d: d["kernels"]["chain"].update(windows=[5, 5]), "ascending"),
        (lambda d: d["kernels"]["chain"].update(windows=[]), "ascending"),
        (lambda d: d["kernels"]["chain"].update(us=[[1.0]]), "us is not 2 x 2"),
        (
            lambda d: d["kernels"]["chain"]["cpu_us"][0].__setitem__(0, math.nan),
            "cpu_us has a time",
        ),
        (lambda d: d["kernels"]["chain"]["us"][0].__setitem__(0, 0), "us has a time"),
        (lambda d: d.update(watts=[]), "profile"),
        (lambda d: d.update(kernels={"chain": 3}), "profile"),
    ],
)
def test_a_profile_that_is_none_is_named(change, text):
    document = json.loads(profile(chain=CHAIN).encode())
    change(document)
    with pytest.raises(ConfigError, match=f"(?s)/store/placement.json.*{text}"):
        KernelProfile.decode(json.dumps(document), "/store/placement.json")
    with pytest.raises(ConfigError):
        KernelProfile.decode("{", "here")
