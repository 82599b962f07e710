"""`edged simulate` at the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from edged.cli.simulate import command
from edged.errors import ConfigError

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
    assert len(rates) == 9 and rates[0] == 1_000 and rates[-1] == pytest.approx(100_000)
    assert plot.read_bytes().startswith(b"\x89PNG")


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
        (["--rate", "fast"], "no rate"),
        (["--policy", "turbo"], "hands_off"),
        (["--policy", "power_cap"], "watts"),
        (["--set", "watts"], "no setting"),
        (["--battery", "50"], "no energy"),
        (["--sweep", "rate=9k..1k"], "does not rise"),
        (["--sweep", "colour=1..2"], "rate="),
        (["--mode", "9000W"], "25W"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(arguments, says):
    done = run(*arguments)
    assert isinstance(done.exception, ConfigError), done.output
    assert says in str(done.exception)
