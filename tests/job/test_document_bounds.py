"""Bounds of a document's text: hostile ones are refused in time proportional to their size."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from edged.documents.bounds import DEPTH_MAX, check_json, check_toml
from edged.documents.reader import loads
from edged.documents.units import duration_us
from edged.errors import JobError

HOSTILE = {
    "key of many parts": (".".join(["a"] * 32_000) + " = 1", "parts"),
    "spaced key": (" . ".join(["a"] * 40) + " = 1", "parts"),
    "table of many parts": ("[" + ".".join(["a"] * 40) + "]", "parts"),
    "quoted key": (".".join(['"a"'] * 40) + " = 1", "parts"),
    "arrays": ("a = " + "[" * 500, "nested"),
    "one long word": ("a = 0x" + "f" * 400_000, "bits"),
    "open text": ('"' + '\\"' * 200_000, "TOML"),
    "open long text": ("'''" + "a''" * 100_000, "TOML"),
    "digits": ("a = " + "9" * 5000, "TOML"),
    "too long": ("a = 1\n" * 100_000, "larger"),
}


@pytest.mark.parametrize("text, problem", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_toml_is_refused_at_once(text, problem):
    began = time.process_time()
    with pytest.raises(JobError, match=problem):
        loads(text)
    assert time.process_time() - began < 5


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 900 + "1" + "}" * 900, '"\\' * 200_000])
def test_hostile_json_is_refused_at_once(text):
    began = time.process_time()
    with pytest.raises(JobError):
        loads(text, json_text=True)
    assert time.process_time() - began < 5


def test_dots_and_brackets_within_texts_and_comments_count_for_nothing():
    deep = "a." * 100 + "[" * 100
    for quoted in (f'"{deep}"', f"'{deep}'", f'"""{deep}"" """', f"'''{deep}'''", f"1 # {deep}"):
        assert loads(f"a = {quoted}\nb = 1")["b"] == 1
    assert loads(json.dumps({"a": deep + '"'}), json_text=True) == {"a": deep + '"'}


def test_the_depth_of_the_bound_itself_is_accepted():
    check_json("x", "[" * DEPTH_MAX + "]" * DEPTH_MAX)
    check_toml("x", ".".join(["a"] * DEPTH_MAX) + " = 1")
    with pytest.raises(JobError):
        check_json("x", "[" * (DEPTH_MAX + 1))


def test_every_example_passes_the_bounds():
    for path in Path("examples").rglob("*.toml"):
        check_toml(str(path), path.read_text())


def test_a_duration_of_many_digits_is_refused():
    with pytest.raises(JobError, match="not a duration"):
        duration_us("x", "1" * 5000 + "s")
