"""Several jobs' policies on one board: the strictest cap, clocks only where all agree."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from governors.cost import CostModel
from governors.policies.base import Act, ClockSetting, Decision, PolicyError
from governors.policies.combined import Combined
from governors.policies.running import Running
from tests.governors.plant import TARIFFS, Plant
from tests.whole import examples

IDLE = TARIFFS["orin-nano"].idle_watts
FIXED_MHZ = (960.0, 1344.0)
acts = st.builds(
    ClockSetting, st.sampled_from(list(Act)), st.sampled_from([729_600_000, 1_344_000_000])
)
answers = st.builds(
    Decision,
    st.just("why"),
    st.fixed_dictionaries({}, optional={f"cpu.policy{i}": acts for i in (0, 4)}),
    wait_share=st.floats(0, 1),
    race_us=st.floats(0, 1e6),
    admit_share=st.floats(0, 1),
    not_before_us=st.integers(0, 10**9),
    sleep=st.sampled_from([(), ("a",), ("a", "b")]),
    upload=st.booleans(),
)


def plant(own: str = "", given: Mapping[str, object] | None = None) -> Plant:
    """An Orin Nano with the daemon's own policy; by default one that was not chosen."""
    found = Plant("orin-nano", own or "hands_off", given or {})
    if not own:
        found.running = Running("hands_off", {}, CostModel(found.tariff), chosen=False)
    return found


def driven(found: Plant, beats: int = 40) -> Plant:
    """Overload it a little."""
    for _ in range(beats):
        found.beat(60_000, 250_000)
    return found


@settings(max_examples=examples(80), deadline=None)
@given(given_answers=st.lists(answers, min_size=1, max_size=4))
def test_one_answer_is_never_less_strict_than_any_of_those_it_is_made_of(given_answers):
    board = plant()
    voices = {}
    for i, answer in enumerate(given_answers):
        board.running.choose(f"job{i}", "fixed", {"cpu_mhz": 1344.0})
        voices[f"job{i}"] = board.running.jobs[f"job{i}"]
        voices[f"job{i}"].race = lambda seen, answer=answer: answer
    one = Combined(voices).race(board.seen(1000.0))
    for answer in given_answers:
        assert one.admit_share <= answer.admit_share
        assert one.not_before_us >= answer.not_before_us
        assert one.race_us >= answer.race_us
        assert set(one.sleep) <= set(answer.sleep)
        assert one.upload or not answer.upload
        for dial, setting in one.clocks.items():
            asked = answer.clocks.get(dial, ClockSetting(Act.RELEASE))
            if setting.act is Act.RELEASE:
                continue
            assert asked.act is not Act.RELEASE, "one of them would leave it alone"
            if asked.act is setting.act:
                assert setting.hz >= asked.hz
            else:
                assert (setting.act, asked.act) == (Act.PIN, Act.CAP)


def test_clocks_that_all_set_are_set_to_the_highest():
    board = plant()
    for job, mhz in zip("ab", FIXED_MHZ, strict=True):
        board.running.choose(job, "fixed", {"cpu_mhz": mhz})
    decision = board.beat(1000, 100_000)
    assert {s.hz for s in decision.clocks.values()} == {1_344_000_000}


def test_a_job_that_keeps_its_hands_off_keeps_the_clocks_of_all_where_they_were():
    board = plant()
    board.running.choose("a", "fixed", {"cpu_mhz": 1344.0})
    assert board.beat(1000, 100_000).clocks
    board.running.choose("b", "hands_off", {})
    assert {s.act for s in board.beat(1000, 100_000).clocks.values()} == {Act.RELEASE}
    assert not board.running.standing
    board.running.drop("b")
    assert {s.act for s in board.beat(1000, 100_000).clocks.values()} == {Act.PIN}


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_of_two_caps_the_strictest_holds_as_if_it_were_alone(order):
    caps = {"a": IDLE + 0.12, "b": IDLE + 0.4}
    alone = driven(plant("power_cap", {"watts": caps["a"], "window_s": 5.0}))
    both = plant()
    for job in order:
        both.running.choose(job, "power_cap", {"watts": caps[job], "window_s": 5.0})
    driven(both)
    assert both.worst_mean(5_000_000, caps["a"]) <= caps["a"] + 1e-5
    assert both.done == pytest.approx(alone.done, rel=0.02) and both.waiting > 0


def test_a_default_of_the_daemon_has_no_say_and_a_choice_has():
    board = plant()
    assert not board.beat(1000, 100_000).clocks
    board.running.choose("a", "fixed", {"cpu_mhz": 1344.0})
    assert board.beat(1000, 100_000).clocks
    board.running.switch("hands_off", {})
    board.beat(1000, 100_000)
    assert not board.running.standing


def test_a_cap_of_one_job_takes_longer_waits_than_the_comfort_of_another():
    board = plant()
    board.running.choose("a", "power_cap", {"watts": 1000.0, "comfort": 0.5})
    board.beat(1000, 100_000)
    assert board.decisions[-1].wait_share <= 0.5
    board.running.choose("b", "power_cap", {"watts": IDLE + 0.02})
    board.beat(1000, 100_000)
    assert board.decisions[-1].wait_share == 1.0


def test_a_wrong_choice_changes_nothing_and_who_said_what_is_told():
    board = plant("power_cap", {"watts": 5.0})
    with pytest.raises(PolicyError, match="unknown setting"):
        board.running.choose("a", "hands_off", {"watts": 3})
    assert board.running.policy.name == "power_cap"
    board.running.choose("a", "fixed", {"cpu_mhz": 1344.0})
    reason = board.beat(1000, 100_000).reason
    assert "power_cap (daemon): " in reason and "fixed (job a): pinned: cpu 1344 MHz" in reason
