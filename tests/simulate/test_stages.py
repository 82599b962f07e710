"""The prices of a beat's stages, beside the prices of the whole beat."""

import json

import pytest
from click.testing import CliRunner

import governors.profile_reader
from edged.cli.explain import command
from edged.operators.interval_join import IntervalJoinPlan
from edged.simulate.stages import PRICES, stage_prices
from edged.simulate.work import HOST_HZ, RACE_CYCLES
from tests.simulate.common import join_plan


def test_the_stages_on_the_beats_thread_add_up_to_its_price_of_a_beat():
    staged_us = sum(p.us_per_beat for p in PRICES if p.thread == "beats")
    whole_us = 1e6 * (RACE_CYCLES + IntervalJoinPlan.cycles[0]) / HOST_HZ
    assert staged_us == pytest.approx(whole_us, rel=0.2)


def test_a_wake_has_the_board_s_joules_and_none_where_there_is_no_figure():
    for name in ("jetson-nano", "orin-nano"):
        board = governors.profile_reader.load(name)
        wake = stage_prices(board)["wake"]
        assert wake["provenance"] == "modelled"
        assert wake["joules"] is None or 0 < wake["joules"] < 0.01


def test_explain_shows_the_prices_as_text_and_the_same_as_json(tmp_path):
    job = tmp_path / "job.json"
    job.write_text(json.dumps(join_plan().document))
    asked = [str(job), "--board", "jetson-nano"]
    text = CliRunner().invoke(command, asked).output
    told = json.loads(CliRunner().invoke(command, [*asked, "--json"]).output)
    prices = told["energy"]["predicted"]["stages"]
    assert {p["stage"] for p in prices["stages"]} >= {
        "receive and decode",
        "log and fsync",
        "pages",
    }
    for p in prices["stages"]:
        assert f"{p['stage']:<20} {p['us_per_beat']:>5.0f} µs a beat" in text
    assert "(modelled)" in text
