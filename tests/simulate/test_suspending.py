"""Suspends between beats, simulated, and the promise from which on they pay."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from edged.cli.explain import command
from edged.job.plan import parse_job
from edged.simulate.report import Question, answer
from edged.simulate.work import ArrivalLoad
from tests.simulate.common import ORIN, join_plan

WATTS = 0.15


def meter(latency="60s", kind="generator"):
    """Two rows a second, from a source that polls."""
    source = {"generator": {"type": kind, "rate": 2.0},
              "tcp": {"type": kind, "listen": "127.0.0.1:7400"}}[kind]  # fmt: skip
    return {
        "name": "meter", "promises": {"latency": latency},
        "streams": {"r": {"source": source, "time": "t",
                          "columns": {"t": "timestamp", "v": "float64"}}},
        "sinks": {"p": {"type": "pages", "input": "r", "stream": "p"}},
    }  # fmt: skip


def asked(latency="60s", **more):
    return Question(
        parse_job(meter(latency)), ORIN, ArrivalLoad(2.0, 2.0), seconds=300.0, **more
    )  # fmt: skip


def explained(tmp_path, document, *more):
    path = tmp_path / "job.json"
    path.write_text(json.dumps(document))
    words = [str(path), "--board", "orin-nano", "--rate", "2", "--json", *more]
    done = CliRunner().invoke(command, words, catch_exceptions=False)
    return json.loads(done.output)["energy"]["predicted"]["suspend"]


def test_a_long_promise_is_slept_through_and_no_row_is_late():
    awake, asleep = answer(asked()), answer(asked(suspend_watts=WATTS))
    assert asleep["watts"]["input"] < 0.35 * awake["watts"]["input"]
    assert asleep["state_shares"]["suspended"] > 0.8
    assert asleep["late_share"] == 0 and awake["late_share"] == 0
    assert asleep["tuples"] == awake["tuples"]


def test_below_the_promise_that_explain_names_nothing_is_suspended(tmp_path):
    least_s = explained(tmp_path, meter(), "--suspend-watts", "150mW")["promise_s_min"]
    below, above = (
        answer(asked(f"{round(1000 * (least_s + more))}ms", suspend_watts=WATTS))
        for more in (-0.5, 0.5)
    )
    assert "suspended" not in below["state_shares"] and "suspended" in above["state_shares"]
    plain = answer(asked(f"{round(1000 * (least_s + 0.5))}ms"))
    assert above["watts"]["input"] < plain["watts"]["input"]


def test_at_the_break_even_both_cost_the_same(tmp_path):
    found = explained(tmp_path, meter(), "--suspend-watts", "150mW")
    seconds, entering_s = found["break_even_s"], found["transition_s"]
    asleep_j = found["transition_watts"] * entering_s + WATTS * (seconds - entering_s)
    assert asleep_j == pytest.approx(found["idle_watts"] * seconds)
    assert found["pays"]


def test_without_watts_explain_asks_for_them(tmp_path):
    found = explained(tmp_path, meter())
    assert found["watts"] is None and "--suspend-watts" in found["text"][0]


def test_a_source_with_peers_is_named(tmp_path):
    found = explained(tmp_path, meter(kind="tcp"), "--suspend-watts", "150mW")
    assert found["deaf"] == ["streams.r (tcp)"] and not found["pays"]
    notes = answer(
        replace(Question(join_plan(), ORIN, ArrivalLoad(100.0)), seconds=1.0, suspend_watts=WATTS)
    )["notes"]
    assert any("suspend: not with streams.r (tcp)" in note for note in notes)
