"""`--board` has one grammar in every command; `edged board --list` has the names."""

from __future__ import annotations

import json

import click
import pytest
from click.testing import CliRunner

from edged.cli import cli
from edged.console.options import Board
from edged.errors import ConfigError
from governors.board_names import BoardNameError, parse_board, parse_profile
from governors.profile_reader import names

SIMULATED_ONLY = {"simulate", "explain", "bench heat"}


def commands(group, path=()):
    for name in group.list_commands(click.Context(group)):
        one = group.get_command(click.Context(group), name)
        if isinstance(one, click.Group):
            yield from commands(one, (*path, name))
        else:
            yield " ".join((*path, name)), one


def test_every_command_reads_it_alike_and_explains_it():
    found = {}
    for path, command in commands(cli):
        for option in command.params:
            if {"--board", "--root"} & set(option.opts):
                assert isinstance(option.type, Board), path
                assert option.type.simulated == (path in SIMULATED_ONLY)
                assert option.hidden or "`edged board --list`" in option.help, path
                found[path] = option
    assert found.keys() >= {
        "board", "calibrate", "demo", "doctor", "explain", "governor restore", "governor show",
        "measure", "run", "simulate", "up",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("orin-nano", "orin-nano is a profile, no directory; did you mean simulated:orin-nano?"),
        ("orin-nan", "did you mean simulated:orin-nano?"),
        ("simulatd:orin-nano", "did you mean simulated:orin-nano?"),
        ("simulated:orin-nan", "did you mean simulated:orin-nano?"),
        ("simulated:xyzzy", "there are agx-orin, "),
        ("non", "did you mean none?"),
        ("/nowhere", "/nowhere is no directory; name a board's tree, simulated:NAME, or none"),
    ],
)
def test_what_is_no_board_gets_what_to_write(text, says):
    with pytest.raises(BoardNameError) as problem:
        parse_board(text)
    assert says in str(problem.value)


def test_a_directory_is_a_board_only_with_a_boards_tree_in_it(tmp_path):
    with pytest.raises(BoardNameError, match="is no board's tree: it has neither sys nor proc"):
        parse_board(str(tmp_path))
    (tmp_path / "sys").mkdir()
    assert [parse_board(name) for name in (str(tmp_path), "/", "none", "simulated:orin-nx")]


def test_where_only_simulated_boards_are_possible_the_prefix_may_be_left_out(tmp_path):
    assert parse_profile("orin-nano") == parse_profile("simulated:orin-nano") == "orin-nano"
    for text in ("none", "/", str(tmp_path)):
        with pytest.raises(BoardNameError, match="is no simulated board; there are agx-orin"):
            parse_profile(text)


@pytest.mark.parametrize(
    "words",
    [["measure", "--board", "orin-nano", "--", "true"], ["governor", "show", "--board", "orin-nan"],
     ["calibrate", "--store", "s", "--board", "orin-nan"]],
)  # fmt: skip
def test_commands_refuse_it_as_a_wrong_setting(words):
    problem = CliRunner().invoke(cli, words).exception
    assert isinstance(problem, ConfigError)
    assert str(problem).startswith("--board: ")
    assert "did you mean simulated:orin-nano?" in str(problem)


def test_the_list_has_every_profile_and_what_it_knows():
    found = json.loads(CliRunner().invoke(cli, ["board", "--list", "--json"]).output)
    by_name = {p["name"]: p for p in found}
    assert list(by_name) == names()
    assert by_name["orin-nano"]["meter"] == "ina3221" and by_name["orin-nano"]["gpu_watts"]
    assert not by_name["jetson-nano"]["gpu_watts"] and by_name["generic-x86"]["gpu"] is None
    assert by_name["raspberry-pi-5"]["idle_watts"] > 0
    text = CliRunner().invoke(cli, ["board", "--list"]).output
    assert all(name in text for name in names())


def test_the_limits_of_any_board_are_shown():
    words = ["governor", "show", "--board", "simulated:orin-nano", "--json"]
    shown = json.loads(CliRunner().invoke(cli, words).output)
    assert shown["board"]["name"] == "orin-nano" and shown["knobs"]
    assert CliRunner().invoke(cli, ["governor", "show", "--board"]).exit_code == 0
