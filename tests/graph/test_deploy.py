"""Deployments on real daemons, over their REST APIs."""

from __future__ import annotations

import concurrent.futures
import json

import pytest

from edged.graph import rollout
from edged.graph.check import load
from edged.graph.daemons import client, loads, observe, record_of
from edged.graph.status import status
from edged.rest import ApiError
from tests.graph.support import at, fleet, lonely

NAMES = ("gate", "site-a")


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with fleet(tmp_path_factory.mktemp("fleet"), NAMES) as started:
        yield started


def seen(document):
    """The placed graph and what its daemons run."""
    placed = load(document)
    views = observe(placed.plan)
    return load(document, loads(placed.plan, views)), views


def deployed(document):
    return rollout.deploy(*seen(document))


@pytest.fixture
def graph(running):
    document = at(lonely(), running)
    yield document
    placed, views = seen(document)
    if any(view.record for view in views.values()):
        rollout.remove(placed, views, now=True)


def did(outcome):
    return [(step["job"], step["did"]) for step in outcome.steps]


def test_a_second_deployment_changes_nothing(graph):
    first = deployed(graph)
    assert did(first) == [("lonely-readings-0", "created"), ("lonely-readings-1", "created")]
    second = deployed(graph)
    assert (second.version, {what for _, what in did(second)}) == (1, {"unchanged"})
    found = status(*seen(graph))
    assert found["healthy"] and found["as_written"] and found["version"] == 1, found
    assert all(job["version"] == 1 for job in found["jobs"])


def test_a_changed_graph_is_the_next_version_and_drops_what_it_lacks(graph):
    deployed(graph)
    stream = {**graph["streams"]["readings"], "place": ["gate"]}
    smaller = {**graph, "streams": {"readings": stream}}
    outcome = deployed(smaller)
    assert (outcome.version, did(outcome)) == (
        2, [("lonely-readings-0", "unchanged"), ("lonely-readings-1", "removed")],
    )  # fmt: skip


def test_a_deployment_that_was_killed_half_way_goes_on(graph):
    placed, views = seen(graph)

    class Killed(BaseException):
        pass

    def kill(text):
        if "created" in text:
            raise Killed

    with pytest.raises(Killed):
        rollout.deploy(placed, views, kill)
    placed, views = seen(graph)
    assert sum(len(view.jobs) for view in views.values()) == 1
    assert status(placed, views)["state"] == "deploying"
    assert sorted(did(rollout.deploy(placed, views))) == [
        ("lonely-readings-0", "unchanged"), ("lonely-readings-1", "created"),
    ]  # fmt: skip
    found = status(*seen(graph))
    assert found["healthy"] and found["version"] == 1


def test_an_earlier_deployment_cannot_go_on_after_a_later_one(graph):
    """The first has claimed its version and is overtaken before its last job."""
    later = {**graph, "promises": {**graph["promises"], "latency": "70ms"}}
    placed, views = seen(graph)
    done = []

    def overtake(text):
        if "created" in text and not done:
            done.append(deployed(later))

    with pytest.raises(rollout.RolloutError, match="version 2 here"):
        rollout.deploy(placed, views, overtake)
    found = status(*seen(later))
    assert found["healthy"] and found["version"] == 2 and found["as_written"], found


def test_two_deployments_at_once_do_not_mix(graph):
    variants = [
        {**graph, "promises": {**graph["promises"], "latency": f"{60 + i}ms"}} for i in range(4)
    ]
    ready = [seen(variant) for variant in variants]

    def attempt(pair):
        try:
            return rollout.deploy(*pair)
        except rollout.RolloutError:
            return None

    with concurrent.futures.ThreadPoolExecutor(len(ready)) as pool:
        outcomes = list(pool.map(attempt, ready))
    winners = [v for v, outcome in zip(variants, outcomes, strict=True) if outcome is not None]
    assert len(winners) == 1
    assert status(*seen(winners[0]))["healthy"]


def test_a_daemon_takes_no_job_of_a_version_that_is_not_claimed(graph):
    placed, _ = seen(graph)
    with client(placed.plan.daemons["gate"]) as api:
        job = {**placed.jobs[0].document, "graph": {"name": "lonely", "version": 5}}
        with pytest.raises(ApiError, match="is not known here") as refused:
            api.put_job(job["name"], json.dumps(job).encode(), "application/json")
        assert refused.value.status == 409
        assert record_of(api, "lonely") is None
        with pytest.raises(ApiError) as unmatched:
            api.claim_graph("lonely", ["gate"], 1, "deploying", 1, if_match='"3.7"')
        assert unmatched.value.status == 412


def test_the_claim_outlives_the_daemon(graph, running):
    deployed(graph)
    daemon, _ = running["gate"]
    daemon.kill()
    daemon.restart()
    daemon.ready()
    found = status(*seen(graph))
    assert found["healthy"] and found["version"] == 1, found


def test_stop_drains_and_a_deployment_resumes(graph):
    deployed(graph)
    outcome = rollout.stop(*seen(graph))
    assert {what for _, what in did(outcome)} == {"drained"}
    assert status(*seen(graph))["state"] == "stopped"
    assert {what for _, what in did(deployed(graph))} == {"resumed"}
    assert status(*seen(graph))["healthy"]


def test_a_daemon_with_jobs_may_not_leave_the_document(graph):
    deployed(graph)
    stream = {**graph["streams"]["readings"], "place": ["gate"]}
    lone = {**graph, "streams": {"readings": stream}}
    lone["daemons"] = {"gate": graph["daemons"]["gate"]}
    with pytest.raises(rollout.RolloutError, match="site-a may run jobs"):
        deployed(lone)
