"""A seeded slice of `make fuzz`: no find, at every door."""

from __future__ import annotations

import pytest

from tests.fuzz import sockets
from tests.fuzz.campaign import run
from tests.fuzz.doors import DOORS, CollectorRequest


@pytest.mark.parametrize("door", DOORS)
def test_mutated_inputs_find_nothing_at(door):
    assert run(door, 500).finds == []


SOCKETS = [
    pytest.param(door, marks=[pytest.mark.whole] * (door == "ingest.socket"))
    for door in sockets.DOORS
]
"""Daemon and API cost seconds of CPU time."""


@pytest.mark.parametrize("door", SOCKETS)
def test_mutated_inputs_over_a_socket_find_nothing_at(door):
    assert sockets.run(door, 40).finds == []


def test_a_find_is_reported_once_with_its_seed(monkeypatch):
    def fragile(self, tag, data):
        if data not in self.corpora[tag]:
            raise KeyError(tag)

    monkeypatch.setitem(DOORS, "collector", type("Fragile", (CollectorRequest,), {"feed": fragile}))
    outcome = run("collector", 2000, seed=7)
    assert outcome.inputs == 2000 and outcome.seed == 8
    assert sorted(find["tag"] for find in outcome.finds) == ["pages", "resealed", "schema"]
    assert {find["seed"] for find in outcome.finds} == {"7"}
