"""What a race costs, learnt from races."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.energy.cost_fit import RaceLaw, row_bytes, width_scale
from edged.energy.settings import from_flags, setting
from edged.errors import ConfigError
from edged.job.plan import parse_job
from edged.simulate.work import MOVES, RACE_CYCLES, ROW_CYCLES
from governors.profile_reader import load
from tests.beat.support import copy_job


@given(
    fixed=st.floats(1e6, 1e8),
    each=st.floats(50.0, 5e3),
    sizes=st.lists(st.integers(1_000, 1_000_000), min_size=200, max_size=300),
)
def test_a_law_behind_the_races_is_found(fixed, each, sizes):
    law = RaceLaw(1.0, 0.0, 0.0)
    for rows in sizes:
        law.note(rows, fixed + each * rows, 2.0)
    found = law.cost()
    for rows in (min(sizes), max(sizes)):
        assert found.us(rows, 10**9) == pytest.approx((fixed + each * rows) / 1e3, rel=0.35)


@given(st.lists(st.tuples(st.integers(0, 10**7), st.floats(0, 1e11)), max_size=100))
def test_whatever_races_took_costs_stay_finite_and_at_or_above_zero(races):
    law = RaceLaw(1.0, 0.0, 0.0)
    for rows, cycles in races:
        law.note(rows, cycles, 1.0)
        cost = law.cost()
        assert 0.0 <= cost.cycles < 1e13 and 0.0 <= cost.cycles_per_unit < 1e13


def test_beats_that_are_all_alike_keep_the_shape_that_was_measured_once():
    law = RaceLaw(2.0, 0.0, 0.0)
    for _ in range(5):
        law.note(10_000, 2 * (RACE_CYCLES + ROW_CYCLES * 10_000), 1.0)
    assert law.cost().cycles == pytest.approx(2 * RACE_CYCLES, rel=0.01)
    assert law.cost().cycles_per_unit == pytest.approx(2 * ROW_CYCLES, rel=0.01)


def test_the_cost_is_the_same_object_until_races_change_by_more_than_a_tenth():
    law = RaceLaw(1.0, 0.0, 0.0)
    for _ in range(300):
        law.note(5_000, 5e6, 1.0)
    before = law.cost()
    for i in range(50):
        law.note(5_000, 5e6 * (1 + 0.02 * (-1) ** i), 1.0)
        assert law.cost() is before
    for _ in range(50):
        law.note(5_000, 8e6, 1.0)
    assert law.cost() is not before
    assert law.cost().us(5_000, 10**9) == pytest.approx(8e3, rel=0.15)


def test_a_row_moves_its_bytes_as_often_as_the_simulator_says():
    assert row_bytes([parse_job(copy_job())]) == MOVES * (8 + 8 + 8)


def test_cycles_are_scaled_by_the_width_of_the_cores_and_left_alone_where_that_is_unknown():
    assert width_scale(load("orin-nano")) == 2.0
    assert width_scale(None) == 1.0


def test_settings_are_read_as_what_they_look_like():
    assert [setting(p, "--set")[1] for p in ("a=5", "a=true", "a=06:00")] == [5.0, True, "06:00"]
    with pytest.raises(ConfigError, match="not a setting"):
        setting("watts", "--governor")


def test_meters_are_read_from_a_file_that_says_what_is_wrong_in_it(tmp_path):
    path = tmp_path / "meters.toml"
    path.write_text('[[meters.external]]\nname = "shunt"\nfile = "/run/shunt"\n')
    told = from_flags(None, "hands_off", (), path, tmp_path)
    assert told.meters.externals[0].name == "shunt" and told.board == "/"
    for text, fault in (
        ("[meters]\nlabel = 1\n", "meters.label"),
        ("[mters]\n", "mters"),
        ("=", ""),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=f"--meters.*{fault}"):
            from_flags(None, "hands_off", (), path, tmp_path)


def test_beats_that_only_commit_take_their_part_of_what_is_done_beside_races():
    law, plain = RaceLaw(1.0, 0.0, 0.0), RaceLaw(1.0, 0.0, 0.0)
    commit, beside = law.cost().commit_cycles, 5e6
    for _ in range(100):
        law.note_beside(beside + 3 * (commit + beside), commits=3)
        plain.note_beside(beside)
    assert law.cost().beside_cycles == pytest.approx(beside, rel=0.11)
    assert plain.cost().beside_cycles == pytest.approx(beside, rel=0.11)
