"""`edged simulate` at the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from edged.cli.simulate import command
from edged.errors import ConfigError
from edged.simulate.engine import FIGURES

JOB = str(Path(__file__).parents[2] / "examples/power_curve.toml")


def run(*arguments: str):
    return CliRunner().invoke(command, [JOB, "--seconds", "20", *arguments])


def test_it_prints_a_table_that_says_simulated():
    done = run("--rate", "2k", "--battery", "50Wh")
    assert done.exit_code == 0, done.output
    assert "simulated" in done.output and "orin-nano" in done.output
    assert "battery" in done.output


def test_json_on_standard_output_is_the_whole_answer():
    done = run("--json", "-", "--policy", "power_cap", "--set", "watts=3.8", "--latency", "200ms")
    answer = json.loads(done.stdout)
    assert answer["provenance"] == "simulated" and answer["policy"] == "power_cap"
    assert answer["latency_us"] == 200_000


def test_without_a_policy_it_is_the_jobs_own_with_its_settings_and_those_that_are_given(tmp_path):
    job = tmp_path / "job.toml"
    text = Path(JOB).read_text()
    job.write_text(text + '\n[governor]\npolicy = "power_cap"\nsettings = { watts = 3.8 }\n')
    for given, policy in (((), "power_cap"), (("--set", "window_s=5"), "power_cap"),
                          (("--policy", "hands_off"), "hands_off")):  # fmt: skip
        words = [str(job), "--seconds", "20", "--json", "-", *given]
        done = CliRunner().invoke(command, words, catch_exceptions=False)
        assert json.loads(done.stdout)["policy"] == policy


def test_a_sweep_is_a_table_a_list_and_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    path, plot = tmp_path / "a.json", tmp_path / "a.png"
    done = run("--sweep", "rate=1k..100k", "--json", str(path), "--plot", str(plot))
    assert done.exit_code == 0, done.output
    rates = [row["rate_per_stream"] for row in json.loads(path.read_text())]
    assert rates == [1e3, 1780, 3160, 5620, 1e4, 17_800, 31_600, 56_200, 1e5]
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_what_a_policy_says_is_counted_without_its_figures():
    answer = json.loads(run("--json", "-", "--policy", "race_to_idle").stdout)
    told = [FIGURES.sub("#", reason["text"]) for reason in answer["reasons"]]
    assert len(set(told)) == len(told) <= 5
    assert answer["reasons"][0]["count"] >= 20, "a beat a second"


def test_where_nothing_was_processed_there_are_no_joules_a_tuple():
    words = ["--policy", "energy_budget", "--set", "until=06:00"]
    assert json.loads(run("--json", "-", *words).stdout)["joules_per_mtuple"] is None
    assert "nothing was processed" in run(*words).output
    assert "–" in run("--sweep", "rate=1k,2k", *words).output


def test_what_memory_and_network_are_taken_to_be_is_said():
    assert "memory is 512MiB, the job's promise" in notes("orin-nano", JOB)
    assert "link is assumed to have 1 Gbit/s" in notes("orin-nano", JOB)


def notes(board, job):
    words = [job, "--seconds", "5", "--json", "-", "--board", board]
    return " ".join(json.loads(CliRunner().invoke(command, words).stdout)["notes"])


def test_a_swept_tolerance_can_be_read_in_eighty_columns():
    assert "…" not in run("--sweep", "latency=50ms..2s").output


def test_a_tolerance_can_be_swept_too(tmp_path):
    path = tmp_path / "a.json"
    done = run("--sweep", "latency=50ms,1s", "--json", str(path))
    assert done.exit_code == 0, done.output
    short, long = json.loads(path.read_text())
    assert short["watts"]["input"] > long["watts"]["input"]


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["--board", "jetson-nan"], "jetson-nano"),
        (["--rate", "fast"], "not a rate"),
        (["--policy", "turbo"], "hands_off"),
        (["--policy", "power_cap"], "watts"),
        (["--set", "watts"], "not a setting"),
        (["--battery", "50"], "not an energy"),
        (["--sweep", "rate=9k..1k"], "does not rise"),
        (["--sweep", "colour=1..2"], "rate="),
        (["--mode", "9000W"], "25W"),
        (["--json", "JOB/a.json"], "--json .*cannot be made: File exists"),
        (["--plot", "JOB/a.png"], "--plot .*cannot be made: File exists"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(arguments, says):
    done = run(*(word.replace("JOB", JOB) for word in arguments))
    assert isinstance(done.exception, ConfigError), done.output
    assert re.search(says, str(done.exception))


@pytest.mark.parametrize(
    "arguments",
    [["--seconds", "0"], ["--seconds", "nan"], ["--sends", "0"], ["--sends", "inf"],
     ["--matches", "-1"], ["--matches", "nan"], ["--seed", "-1"], ["--store", "/not/there"]],
)  # fmt: skip
def test_a_number_or_store_that_is_none_is_wrong_usage(arguments):
    done = run(*arguments)
    assert done.exit_code == 2 and arguments[0] in done.output


def test_warm_air_shows_the_heat_and_what_a_limit_does():
    plain = run("--rate", "2k", "--json", "-")
    assert json.loads(plain.stdout)["heat"] is None
    done = run("--rate", "2k", "--ambient", "50", "--max-celsius", "60", "--json", "-")
    heat = json.loads(done.stdout)["heat"]
    assert heat["ambient_celsius"] == 50 and heat["max_celsius"] == 60
    assert heat["held_share"] > 0.5 and heat["throttled_share"] == 0.0
    shown = run("--rate", "2k", "--ambient", "50")
    assert "in air of 50 °C" in " ".join(shown.output.split())


def test_a_limit_needs_a_temperature_of_the_air():
    assert isinstance(run("--max-celsius", "60").exception, ConfigError)
