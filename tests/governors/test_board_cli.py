"""`edged board`: the influence first, then what may be set and read, on every kind of board."""

import json

import pytest
from click.testing import CliRunner

from edged.cli import cli
from edged.errors import ConfigError
from governors.power import PowerModel
from governors.profile_reader import load, names
from governors.simulated.board import SimulatedBoard
from governors.sysfs import Sysfs
from tests.governors import trees


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """Runs the command; no helper is there."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments):
        helper = str(tmp_path / "no-helper")
        result = CliRunner().invoke(cli, ["board", "--helper", helper, *arguments])
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.output

    return run


def content(root):
    return {p: p.read_bytes() for p in root.rglob("*") if p.is_file() and p.name != "lock"}


# --- the first line


def test_the_first_line_tells_how_many_watts_edged_can_influence(ask):
    first = ask("--board", "simulated:orin-nano").splitlines()[0]
    assert first.startswith("edged can influence at most 0.6 of 3.4 W when idle, ")
    assert "modelled" in first and "±" in first


def test_the_influence_is_that_of_the_limits_as_they_stand(ask, tmp_path):
    board = SimulatedBoard(load("orin-nano"), tmp_path / "board")
    model = PowerModel(load("orin-nano"))
    seen = []
    for mode in ("7W", "15W", "MAXN_SUPER"):
        board.nvpmodel(mode)
        found = json.loads(ask("--root", str(tmp_path / "board"), "--json"))["influence"]
        seen.append(found["full_max_watts"])
        assert found["idle_watts"] == pytest.approx(model.idle_watts())
        assert found["full_min_watts"] < found["full_max_watts"]
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(model.influence().full_max)


def test_a_board_without_control_says_so_first(ask, tmp_path):
    trees.plant(tmp_path / "vm", "no-control")
    text = ask("--root", str(tmp_path / "vm"))
    assert text.splitlines()[0].startswith("no control: edged can set no clock here")
    assert "no power can be read here" in text
    assert "whole input: not known" in text
    assert " W when idle" not in text


def test_a_machine_without_a_profile_shows_its_own_cores_and_clocks(ask, tmp_path):
    trees.plant(tmp_path / "laptop", "x86-intel-pstate")
    root = ("--root", str(tmp_path / "laptop"))
    document, text = json.loads(ask(*root, "--json")), ask(*root)
    knobs = {s["name"]: s for s in document["settings"] if s["kind"] == "cpu"}
    own = {d["name"]: d for d in document["cores"]["domains"]}
    assert own.keys() == knobs.keys()
    for name, domain in own.items():
        assert domain["floor_hz"] == knobs[name]["floor_hz"]
        assert domain["table_hz"] == [] and f"to {domain['ceiling_hz'] / 1e6:g} MHz" in text
    assert document["profile"] is None and document["input"]["provenance"] == "measured"


def test_another_machines_figures_stand_in_only_where_they_are_asked_for(ask, tmp_path):
    trees.plant(tmp_path / "vm", "no-control")
    root = ("--root", str(tmp_path / "vm"))
    asked = json.loads(ask(*root, "--power-model", "generic-x86", "--json"))
    assert json.loads(ask(*root, "--json"))["input"]["from"] is None
    assert asked["board"]["profile"] is None
    assert asked["input"]["provenance"] == "modelled"
    assert asked["input"]["covers"].startswith("stand-in generic-x86, another machine's figures")
    assert "figures of the stand-in generic-x86" in ask(*root, "--power-model", "generic-x86")


def test_a_board_that_is_known_but_has_no_profile_gets_no_watts(ask, tmp_path):
    trees.plant(tmp_path / "xavier", "xavier-nx-r35")
    document = json.loads(ask("--root", str(tmp_path / "xavier"), "--json"))
    assert json.loads(ask("--board", str(tmp_path / "xavier"), "--json")) == document, "as `run`"
    assert document["profile"] is None
    assert document["influence"]["text"].startswith(
        "edged can influence clocks here; no power model"
    )
    assert {m["name"] for m in document["meters"]} == {"ina3221"}


# --- everything that there is


@pytest.mark.parametrize("name", names())
def test_every_simulated_board_shows_its_clusters_rails_and_sources(ask, name):
    document = json.loads(ask("--board", f"simulated:{name}", "--json"))
    profile = load(name)
    assert document["board"]["profile"] == name
    assert document["board"]["simulated"]
    assert [c["name"] for c in document["profile"]["clusters"]] == [
        c.name for c in profile.clusters
    ]
    assert [r["name"] for r in document["profile"]["rails"]] == [r.name for r in profile.rails]
    assert all(term["source"] for term in document["profile"]["terms"])
    assert {m["provenance"] for m in document["meters"]} <= {"simulated"}
    settings = {s["name"]: s for s in document["settings"]}
    assert all(settings[c.name]["may_be_set"] for c in profile.clusters)


@pytest.mark.parametrize("name", sorted(trees.BOARDS))
def test_every_fixture_board_is_shown_and_not_touched(ask, tmp_path, name):
    root = tmp_path / "board"
    trees.plant(root, name)
    before = content(root)
    text = ask("--root", str(root))
    document = json.loads(ask("--root", str(root), "--json"))
    assert content(root) == before
    assert text.splitlines()[0] == document["influence"]["text"]
    assert document["influence"]["clocks"] == (name in trees.CONTROLLED)
    for setting in document["settings"]:
        assert setting["name"] in text


def test_this_machine_is_shown_whatever_it_is(ask):
    assert ask().splitlines()[0].startswith(("edged can influence", "no control"))


def test_what_is_in_brackets_is_shown_as_it_is(ask):
    assert "[meters.radio]" in ask("--board", "simulated:orin-nano")


# --- why not, and what would allow it


def test_what_may_not_be_set_says_why_and_the_command_that_allows_it(ask, tmp_path):
    board = SimulatedBoard(load("jetson-nano"), tmp_path / "board")
    board.fault("*/scaling_m??_freq", "EACCES", "w")
    document = json.loads(ask("--root", str(tmp_path / "board"), "--json"))
    settings = {s["name"]: s for s in document["settings"]}
    refused, free = settings["cpu.policy0"], settings["gpu"]
    at = "/sys/devices/system/cpu/cpufreq/policy0"
    assert not refused["may_be_set"]
    assert at in refused["why_not"]
    files = f"{at}/scaling_min_freq {at}/scaling_max_freq"
    assert refused["remedy"].startswith(f"sudo sh -c 'chgrp edged {files} && chmod g+w {files}'")
    assert free["may_be_set"] and free["remedy"] == ""
    assert refused["remedy"] in ask("--root", str(tmp_path / "board"))


def test_below_a_sys_that_is_read_only_nothing_may_be_set_and_no_mode_would_help(
    ask, tmp_path, monkeypatch
):
    """Not even what root may set elsewhere; and no helper in the same container."""
    trees.plant(tmp_path / "board", "orin-nano-r36")
    monkeypatch.setattr(Sysfs, "writable", lambda *_: False)
    monkeypatch.setattr(Sysfs, "read_only", lambda *_: True)
    document = json.loads(ask("--root", str(tmp_path / "board"), "--json"))
    for setting in document["settings"]:
        assert not setting["may_be_set"] and "mounted read-only" in setting["why_not"]
        assert "outside of the container" in setting["remedy"]
    assert document["influence"]["text"].startswith("no control")


def test_a_meter_that_may_not_be_read_says_what_would_allow_it(ask, tmp_path):
    board = SimulatedBoard(load("generic-x86"), tmp_path / "board")
    board.fault("*/energy_uj", "EACCES", "r")
    document = json.loads(ask("--root", str(tmp_path / "board"), "--json"))
    (one, other) = [m for m in document["missing"] if m["meter"] == "rapl"]
    assert "readable by root only" in one["what"] and "udev" in other["remedy"]
    assert document["input"]["provenance"] == "modelled"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("simulated:orin", "did you mean"),
        ("orin-nano", "--board: orin-nano is a profile, .* did you mean simulated:orin-nano?"),
        ("none", "nothing to show"),
    ],
)
def test_a_board_that_there_is_not_is_a_wrong_setting(ask, name, says):
    with pytest.raises(ConfigError, match=says):
        ask("--board", name)
