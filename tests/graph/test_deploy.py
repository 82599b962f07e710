"""Deployments on real daemons, over their REST APIs."""

from __future__ import annotations

import concurrent.futures
import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from edged.cli.graph import command
from edged.graph import rollout
from edged.graph.check import load
from edged.graph.daemons import DaemonView, client, loads, observe, record_of
from edged.graph.rescale import _exported
from edged.graph.status import status
from edged.job import state_transfer
from edged.rest import ApiError
from tests.graph.support import MEAN, READINGS, at, farm, fleet, lonely, written

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


def test_a_state_that_does_not_fit_is_refused_and_the_daemon_goes_on(graph):
    """The put may be repeated with another state."""
    placed, _ = seen(graph)
    stream = {key: value for key, value in READINGS.items() if key != "place"}
    window = {key: value for key, value in MEAN.items() if key != "place"}
    job = {
        "name": "alone",
        "streams": {"readings": stream},
        "operators": {"mean": {**window, "input": "readings"}},
        "sinks": {"means": {"type": "pages", "input": "mean"}},
    }
    with client(placed.plan.daemons["gate"]) as api:

        def put(state):
            rollout.send_state(api, "alone", state_transfer.pack(state))
            body = json.dumps(job).encode()
            return api.put_job("alone", body, "application/json", state=True)

        with pytest.raises(ApiError, match="does not fit the operators of alone"):
            put({"operators/mean/groups": np.arange(3)})
        with pytest.raises(ApiError, match="is not of an operator"):
            put({"streams/readings/counts/rows": np.arange(3)})
        assert put({})["state"] == "running"
        api.drain_job("alone")
        assert put(state_transfer.unpack(_exported(api, "alone")))["name"] == "alone"
        api.delete_job("alone")


def test_a_graph_that_is_removed_leaves_no_state_beside_its_document(graph, tmp_path):
    """Its versions begin again at 1, as which the state would be taken for that of another one."""
    deployed(graph)
    file = written(tmp_path, graph)
    (tmp_path / f"{file.name}.rescale").write_bytes(b"state")
    answer = CliRunner().invoke(command, ["remove", "--now", str(file)])
    assert answer.exit_code == 0, answer.output
    assert [each.name for each in tmp_path.iterdir()] == [file.name]


def test_a_version_of_ten_digits_can_be_claimed_on(graph):
    placed, _ = seen(graph)
    with client(placed.plan.daemons["gate"]) as api:
        last = api.claim_graph("lonely", ["gate"], 1, "deploying", 2**31 - 2, if_none_match="*")
        api.claim_graph("lonely", ["gate"], 1, "deployed", 2**31 - 2, if_match=last["etag"])
        api.forget_graph("lonely")


def test_two_deployments_that_blocked_each_other_leave_the_next_version():
    records = [{"version": 4, "digest": 7}, {"version": 4, "digest": 8}]
    views = {str(i): DaemonView(str(i), record=record) for i, record in enumerate(records)}
    assert [rollout.next_version(views, made) for made in (7, 8, 9, None)] == [5, 5, 5, 5]
    assert rollout.next_version({"0": views["0"]}, 7) == 4


def test_a_job_of_another_graph_is_not_replaced():
    placed = load(lonely())
    views = {name: DaemonView(name) for name in NAMES}
    other = {"name": "lonely-readings-1", "document": {}}
    views["site-a"] = replace(views["site-a"], others={"lonely-readings-1": other})
    with pytest.raises(rollout.RolloutError, match="that is not of lonely is called"):
        rollout.deploy(placed, views)


def test_left_over_jobs_end_upstream_first():
    placed = load(farm())
    views = {name: DaemonView(name) for name in ("site-a", "site-b", "gate")}
    for job in placed.jobs:
        views[job.daemon].jobs[job.name] = {"document": job.document}
    jobs = [(view, name) for view in views.values() for name in view.jobs]
    assert [(name, feeds) for _, name, feeds in rollout._upstream_first(jobs)] == [
        ("farm-readings-0", True), ("farm-mean-0", False), ("farm-mean-1", False),
    ]  # fmt: skip


def test_nothing_ends_while_a_rescaling_holds_its_state():
    views = {name: DaemonView(name, record={"state": "rescaling"}) for name in NAMES}
    for end in (rollout.deploy, rollout.stop, rollout.remove):
        with pytest.raises(rollout.RolloutError, match="interrupted"):
            end(load(lonely()), views)
