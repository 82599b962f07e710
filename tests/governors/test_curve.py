"""Calibration's curve: its fits, and the clock that it finds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governors.curve import CalibrationCurve, CurvePoint
from governors.energy import Provenance
from governors.errors import ProfileError

NANO_4_CORES = {
    102000: 1.721, 204000: 1.928, 307200: 2.139, 403200: 2.827, 518400: 3.020, 614400: 3.201,
    710400: 3.411, 825600: 3.576, 921600: 3.808, 1036800: 3.982, 1132800: 4.173, 1224000: 4.412,
    1326000: 4.786, 1428000: 5.213,
}  # fmt: skip
"""Watts of the whole board by kHz, four busy cores (ecoJoin's cpuAll_freq_iter.csv)."""
SECOND_US = 1e6


def nano(cycles: float, stall_us: float, idle: float, **more: object) -> CalibrationCurve:
    """A beat of so many cycles and so much waiting on the paper's board."""
    points = tuple(
        CurvePoint(khz * 1000, 1e3 * cycles / khz + stall_us, watts)
        for khz, watts in NANO_4_CORES.items()
    )
    return CalibrationCurve("cpu.policy0", 1, points, idle, Provenance.MEASURED, **more)


def test_over_the_whole_input_the_measured_nano_computes_cheapest_at_1224_mhz():
    # hardware.md 2.1: 0.90 W per busy core and GHz at 1224 and 1326 MHz, 0.91 at 1428
    best = nano(1e9, 0, idle=0.0).optimum(1e12).best
    assert best.hz == 1_224_000_000


def test_above_idle_a_kernel_that_waits_for_memory_is_not_raced_at_the_highest_clock():
    # from 403 MHz on: below it a rail is off (hardware.md 2.1), and slowest is cheapest
    allowed = [khz * 1000 for khz in NANO_4_CORES if khz >= 403_200]
    compute = nano(1e7, 0, idle=1.55).optimum(1e12, allowed)
    waiting = nano(1e7, 20_000, idle=1.55).optimum(1e12, allowed)
    assert compute.best.hz == 1_132_800_000
    assert waiting.best.hz is not None and waiting.best.hz < 1_000_000_000
    assert "waits for memory" in waiting.why


def test_a_tight_deadline_raises_the_clock_and_one_that_cannot_be_met_takes_the_fastest():
    curve = nano(1e9, 0, idle=1.55)
    tight = curve.optimum(1e9 / 1.428e9 * SECOND_US + 1)
    assert tight.best.hz == 1_428_000_000 and tight.best.in_time
    missed = curve.optimum(1000.0)
    assert missed.best.hz == 1_428_000_000 and "none ends in time" in missed.why


def test_leaving_it_alone_wins_where_the_writes_cost_more_than_they_save():
    alone = (1e9 / 1.428e9 * SECOND_US, 5.213)
    short = nano(1e9, 0, idle=1.55, left_alone=alone)
    assert short.optimum(1e12).best.hz is not None
    assert short.optimum(1e12, write_j=1.0).best.hz is None


def test_only_allowed_clocks_are_chosen_and_those_between_points_are_fitted():
    curve = nano(1e9, 0, idle=1.55)
    best = curve.optimum(1e12, allowed_hz=[500_000_000, 600_000_000]).best
    assert best.hz in (500_000_000, 600_000_000)
    with pytest.raises(ProfileError, match="no clock may be set"):
        curve.optimum(1e12, allowed_hz=[])


@given(
    cycles=st.floats(1e4, 1e9),
    stall_us=st.floats(0, 1e5),
    idle=st.floats(0, 3),
    deadline_us=st.floats(1, 1e7),
    write_j=st.floats(0, 0.1),
)
def test_the_optimum_is_what_a_plain_search_finds(cycles, stall_us, idle, deadline_us, write_j):
    best = nano(cycles, stall_us, idle).optimum(deadline_us, write_j=write_j).best
    plain = []
    for khz, watts in NANO_4_CORES.items():
        us = 1e3 * cycles / khz + stall_us
        plain.append(((watts - idle) * us / 1e6 + write_j, us))
    in_time = [joules for joules, us in plain if us <= deadline_us]
    if in_time:
        assert best.in_time and best.joules == pytest.approx(min(in_time))
    else:
        assert not best.in_time and best.us == pytest.approx(min(us for _, us in plain))


@given(cycles=st.floats(1e3, 1e9), stall_us=st.floats(0, 1e6))
def test_the_time_law_finds_cycles_and_stall_again(cycles, stall_us):
    law = nano(cycles, stall_us, 1.0).time_law()
    assert law.error < 1e-6
    high = 1e3 * cycles / 1428000 + stall_us
    assert law.coefficients[0] == pytest.approx(cycles, rel=1e-4, abs=1e-5 * high * 1428)
    assert 1e6 * law.coefficients[1] == pytest.approx(stall_us, rel=1e-4, abs=1e-5 * high)


@given(noise=st.lists(st.floats(0.9, 1.1), min_size=14, max_size=14))
def test_noisy_watts_never_make_a_law_that_falls_with_the_clock(noise):
    points = tuple(
        CurvePoint(khz * 1000, 1000.0, watts * n)
        for (khz, watts), n in zip(NANO_4_CORES.items(), noise, strict=True)
    )
    curve = CalibrationCurve("cpu.policy0", 1, points, 1.5, Provenance.MEASURED)
    fitted = [curve.fitted(p.hz).watts for p in points]
    assert fitted == sorted(fitted)
    assert curve.watts_law().error < 0.2


def test_a_curve_comes_back_from_its_text_and_a_garbled_one_says_where():
    curve = nano(1e6, 50, idle=1.0, left_alone=(900.0, 3.0))
    assert CalibrationCurve.decode(curve.encode(), "x") == curve
    for text in ("", "{}", curve.encode().replace("1428000000", "-3"), "[1]"):
        with pytest.raises(ProfileError, match=r"curve\.json"):
            CalibrationCurve.decode(text, "curve.json")
