"""A graph as the desired state of its devices."""

from __future__ import annotations

import json

import pytest

from edged.central import landing_format
from edged.central.cli_desired import change_documents
from edged.documents import checked_json
from edged.graph import desired
from edged.graph.check import load
from edged.graph.rollout import RolloutError
from tests.graph.support import READINGS, farm, lonely

OTHER = {"name": "other"}


@pytest.fixture
def landing(tmp_path):
    landing_format.create(tmp_path, True)
    return tmp_path


def states(landing):
    return {
        file.stem: checked_json.unpack(file.read_bytes())
        for file in (landing / "desired").glob("*.json")
    }


def test_a_graph_becomes_the_desired_state_of_its_devices_beside_other_jobs(landing):
    change_documents(landing, ["gate"], lambda _: {"gate": {"jobs": [OTHER], "policy": "x"}})
    outcome = desired.deploy(load(lonely()), landing)
    found = states(landing)
    assert [job["name"] for job in found["gate"]["document"]["jobs"]] == [
        "other", "lonely-readings-0",
    ]  # fmt: skip
    assert found["gate"]["document"]["policy"] == "x" and outcome.version == 1
    assert found["site-a"]["document"]["jobs"][0]["graph"] == {"name": "lonely", "version": 1}
    before = json.dumps(found)
    assert desired.deploy(load(lonely()), landing).steps == []
    assert json.dumps(states(landing)) == before, "a second deployment changes nothing"


def test_a_later_version_takes_away_what_it_lacks(landing):
    desired.deploy(load(lonely()), landing)
    smaller = lonely(streams={"readings": {**READINGS, "place": ["gate"]}})
    desired.deploy(load(smaller), landing)
    assert states(landing)["site-a"]["document"]["jobs"] == []
    changed = lonely(promises={"latency": "90ms", "memory": "8MiB"})
    assert desired.deploy(load(changed), landing).version == 2


def test_state_is_not_left_behind(landing):
    desired.deploy(load(farm()), landing)
    fewer = farm()
    fewer["operators"]["mean"] = {**fewer["operators"]["mean"], "place": ["site-a"]}
    before = states(landing)
    with pytest.raises(RolloutError, match="mean would leave state behind"):
        desired.deploy(load(fewer), landing)
    assert states(landing) == before


def test_a_job_of_another_owner_is_not_doubled(landing):
    named = {"jobs": [{"name": "lonely-readings-0"}]}
    change_documents(landing, ["gate"], lambda _: {"gate": named})
    with pytest.raises(RolloutError, match="another job is called lonely-readings-0"):
        desired.deploy(load(lonely()), landing)
