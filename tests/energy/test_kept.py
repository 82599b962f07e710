"""The daemon's own policy as a command chose it: kept over restarts, until a later word."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.control.door import ask
from edged.energy.policies import COMMAND, CONFIGURATION, DEFAULT, PolicyChoice
from edged.energy.policy_store import NAME, PolicyStore
from edged.errors import CommandError
from tests.energy.common import energy, feed, limits, running, switch

DEFAULTS = PolicyChoice("hands_off", {}, DEFAULT)
CHOSEN = PolicyChoice("fixed", {"cpu_mhz": 960.0}, COMMAND)
FREE, SLOW = (729_600, 1_344_000), (960_000, 960_000)


def own(daemon):
    told = energy(daemon)["policy"]["own"]
    return told["policy"], told["origin"]


def again(daemon, *more):
    """`kill -9`, and a start with other arguments; the notes of that."""
    daemon.kill()
    daemon.arguments += more
    daemon.restart()
    return daemon.ready()["notes"]


def test_a_commands_choice_outlives_kill_9_until_it_is_given_up(tmp_path):
    with running(tmp_path) as daemon:
        switch(daemon, "race_to_idle")
        assert switch(daemon, "fixed", cpu_mhz=960)["policy"] == "fixed"
        again(daemon)
        assert own(daemon) == ("fixed", "command")
        feed(daemon, lambda: limits(daemon.store) == SLOW)
        # the choice of a comparison is not stored, and the stored one stays
        assert ask(daemon.door, "governor", policy="hands_off", keep=False)["policy"] == "hands_off"
        again(daemon)
        assert own(daemon) == ("fixed", "command")
        assert switch(daemon, "none")["own"] == {
            "policy": "hands_off", "settings": {}, "origin": "default"
        }  # fmt: skip
        feed(daemon, lambda: limits(daemon.store) == FREE)
        again(daemon)
        assert own(daemon) == ("hands_off", "default")


def test_no_flipped_bit_of_a_stored_choice_makes_another_choice(tmp_path):
    kept = PolicyStore(tmp_path)
    kept.save(CHOSEN, DEFAULTS)
    whole = (tmp_path / NAME).read_bytes()
    for bit in range(8 * len(whole)):
        data = bytearray(whole)
        data[bit >> 3] ^= 1 << (bit & 7)
        (tmp_path / NAME).write_bytes(data)
        assert kept.load(DEFAULTS)[0] in (None, CHOSEN), bit
    (tmp_path / NAME).write_bytes(
        b'{"policy": "fixed", "settings": {"cpu_mhz": 960.0}, '
        b'"over": {"policy": "hands_off", "settings": {}}}\n'
    )
    assert kept.load(DEFAULTS)[0] == CHOSEN, "the version before wrote no checksum"


def test_a_configuration_that_says_something_new_is_the_last_word_for_good(tmp_path):
    with running(tmp_path) as daemon:
        switch(daemon, "fixed", cpu_mhz=960)
        notes = again(daemon, "--policy", "race_to_idle")
        assert any("fixed, chosen by a command, no longer applies" in note for note in notes)
        assert own(daemon) == ("race_to_idle", "configuration")
        daemon.arguments[-1] = "hands_off"
        again(daemon)
        assert own(daemon) == ("hands_off", "default"), "as it said when the command chose"
        (daemon.store / f"{NAME}.tmp").mkdir()
        with pytest.raises(CommandError, match="cannot be kept for the next start"):
            switch(daemon, "fixed", cpu_mhz=960)
        assert own(daemon) == ("fixed", "command"), "it runs all the same"
        for wrong in ({"keep": 1}, {"origin": "file"}):
            with pytest.raises(CommandError):
                ask(daemon.door, "governor", policy="hands_off", **wrong)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=4,
)
KEYS = st.sampled_from(["policy", "settings", "over"])
FILES = st.binary(max_size=40) | st.dictionaries(KEYS, JSON).map(lambda d: json.dumps(d).encode())


@given(FILES)
def test_whatever_the_file_holds_the_daemon_starts(tmp_path_factory, content):
    kept = PolicyStore(tmp_path_factory.getbasetemp())
    kept.path.write_bytes(content)
    choice, line = kept.load(DEFAULTS)
    assert choice is None and line and not kept.path.exists()
    assert kept.load(DEFAULTS) == (None, "")


SETTINGS = st.dictionaries(st.text(max_size=6), st.floats(allow_nan=False) | st.text(max_size=6))
CHOICES = st.builds(PolicyChoice, st.text(max_size=9), SETTINGS, st.just(COMMAND))
CONFIGURED = st.builds(PolicyChoice, st.text(max_size=9), SETTINGS, st.just(CONFIGURATION))


@given(CHOICES, CONFIGURED, CONFIGURED)
def test_what_was_kept_is_told_back_as_long_as_the_configuration_is_the_same(
    tmp_path_factory, choice, first, second
):
    kept = PolicyStore(tmp_path_factory.getbasetemp())
    kept.save(choice, first)
    assert kept.load(first) == (choice, "")
    same = (first.policy, first.settings) == (second.policy, second.settings)
    assert (kept.load(second)[0] == choice) == same
    kept.save(CHOSEN, first)
    kept.save(None, first)
    assert kept.load(first) == (None, "")
