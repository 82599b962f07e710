"""Jobs over the API of a real daemon: definitions and versions, states, verdicts, operations."""

from __future__ import annotations

import concurrent.futures
import copy
import json
import time

import pytest

from tests.api.support import READINGS, small_toml, until

TOML = small_toml()
HEADERS = {"Content-Type": "application/toml"}


@pytest.fixture
def client(plant):
    with plant[1].client() as client:
        yield client
        if client.get("/v1/jobs/extra").status_code == 200:
            assert client.delete("/v1/jobs/extra", params={"drain": False}).status_code == 200
            until(lambda: client.get("/v1/jobs/extra").status_code == 404)


def put(client, text=TOML, **headers):
    return client.put("/v1/jobs/extra", content=text, headers={**HEADERS, **headers})


def test_a_job_is_created_read_replaced_and_deleted(client):
    created = put(client)
    assert (created.status_code, created.json()["version"]) == (201, 1)
    assert created.headers["location"] == "/v1/jobs/extra"
    read = client.get("/v1/jobs/extra")
    assert read.headers["etag"] == created.headers["etag"] == read.json()["etag"]
    assert read.json()["state"] == "running" and read.json()["origin"] == "api"
    assert read.json()["document"]["streams"]["extra"]["time"] == "time"
    replaced = put(client, TOML + '[promises]\nlatency = "2s"\n')
    assert (replaced.status_code, replaced.json()["version"]) == (200, 2)
    assert replaced.headers["etag"] != created.headers["etag"]
    names = [job["name"] for job in client.get("/v1/jobs").json()["items"]]
    assert names == ["extra", "readings"]
    assert client.delete("/v1/jobs/extra", params={"drain": False}).status_code == 200
    until(lambda: client.get("/v1/jobs/extra").status_code == 404)


def test_a_change_applies_to_the_version_that_it_is_meant_for(client):
    for none in ('"1.1"', "*"):
        assert put(client, **{"If-Match": none}).status_code == 412  # there is none yet
    first = put(client, **{"If-None-Match": "*"})
    assert first.status_code == 201
    again = put(client, **{"If-None-Match": "*"})
    assert (again.status_code, again.json()["type"]) == (
        412,
        "urn:edged:problem:precondition-failed",
    )
    named = put(client, **{"If-None-Match": '"1"'})
    assert (named.status_code, named.json()["errors"][0]["where"]) == (422, "header.if-none-match")
    tag = first.headers["etag"]
    assert put(client, **{"If-None-Match": "*", "If-Match": tag}).status_code == 412
    changed = TOML + '[promises]\nlatency = "2s"\n'
    second = put(client, changed, **{"If-Match": tag})
    assert second.status_code == 200
    stale = put(client, TOML, **{"If-Match": tag})
    assert stale.status_code == 412 and "of version 2, not 1" in stale.json()["detail"]
    weak = f"W/{second.headers['etag']}"  # is never the same (RFC 9110, 8.8.3.2)
    for stale in (tag, '"1"', "nonsense", f'{tag}, "3"', weak):
        headers = {"If-Match": stale}
        assert client.post("/v1/jobs/extra/pause", headers=headers).status_code == 412
        assert client.delete("/v1/jobs/extra", headers=headers).status_code == 412
    for good in (second.headers["etag"], f"{tag}, {second.headers['etag']}", "*"):
        assert client.post("/v1/jobs/extra/pause", headers={"If-Match": good}).status_code == 200


def test_a_tag_of_a_job_that_was_deleted_matches_none_of_its_name(client):
    """Versions restart, a definition's ETag does not: a change meant for the deleted job does not
    apply to its successor."""
    tag = put(client).headers["etag"]
    assert client.delete("/v1/jobs/extra", params={"drain": False}).status_code == 200
    again = put(client)
    assert again.json()["version"] == 1
    stale = put(client, TOML + '[promises]\nlatency = "2s"\n', **{"If-Match": tag})
    assert stale.status_code == 412 and "was deleted" in stale.json()["detail"]
    for how in (("POST", "pause"), ("POST", "drain"), ("DELETE", "")):
        path = f"/v1/jobs/extra/{how[1]}".rstrip("/")
        assert client.request(how[0], path, headers={"If-Match": tag}).status_code == 412
    read = client.get("/v1/jobs/extra")
    assert (read.headers["etag"], read.json()["state"]) == (again.headers["etag"], "running")


def test_of_many_who_change_the_same_version_at_once_one_does(client, plant):
    tag = put(client).headers["etag"]

    def change(latency_ms):
        text = TOML + f'[promises]\nlatency = "{latency_ms}ms"\n'
        with plant[1].client() as one:
            return put(one, text, **{"If-Match": tag}).status_code

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(change, range(100, 108)))
    assert sorted(codes) == [200, *[412] * 7]
    assert client.get("/v1/jobs/extra").json()["version"] == 2


def test_a_job_pauses_resumes_and_drains(client):
    put(client)
    assert client.post("/v1/jobs/extra/pause").json()["state"] == "paused"
    row = {"Content-Type": "application/x-ndjson"}
    refused = client.post("/v1/streams/extra/tuples", content=b"{}", headers=row)
    assert refused.status_code == 429 and refused.headers["retry-after"] == "30"
    assert client.post("/v1/jobs/extra/resume").json()["state"] == "running"
    assert client.post("/v1/jobs/extra/drain").json()["state"] in ("draining", "drained")
    until(lambda: client.get("/v1/jobs/extra").json()["state"] == "drained")


@pytest.mark.parametrize("path", ["/v1/jobs/nobody", "/v1/jobs/nobody/operators/x"])
def test_what_is_not_there_is_404(client, path):
    assert client.get(path).status_code == 404


def test_a_wrong_document_is_refused_with_every_fault(client):
    wrong = TOML.replace('time = "time"', 'time = "tim"').replace("pages", "page")
    answer = put(client, wrong)
    problem = answer.json()
    assert (
        answer.status_code == 422 and answer.headers["content-type"] == "application/problem+json"
    )
    assert [fault["where"] for fault in problem["errors"]] == [
        "streams.extra.time",
        "sinks.extras.type",
    ]
    assert "did you mean time?" in problem["errors"][0]["do"]
    other = put(client, TOML.replace('name = "extra"', 'name = "other"'))
    assert other.json()["errors"] == [
        {"where": "name", "what": "is 'other'", "do": "call it 'extra'"}
    ]
    assert client.get("/v1/jobs/extra").status_code == 404


def test_validate_answers_what_is_wrong_and_changes_nothing(client):
    good = client.post("/v1/jobs:validate", content=TOML, headers=HEADERS)
    assert good.json() == {
        "valid": True, "name": "extra", "faults": [], "warnings": [],
        "notes": ["job extra is new"], "unchecked": [],
    }  # fmt: skip
    bad = client.post("/v1/jobs:validate", json={"name": "X", "sinks": {}})
    assert bad.status_code == 200 and not bad.json()["valid"]
    assert [fault["where"] for fault in bad.json()["faults"]] == ["name", "streams"]
    text = client.post("/v1/jobs:validate", content="= nonsense", headers=HEADERS)
    assert "is not TOML" in text.json()["faults"][0]["what"]
    assert client.get("/v1/jobs/extra").status_code == 404


def test_explain_says_what_a_job_would_do(client):
    plan = client.post("/v1/jobs:explain", json=READINGS).json()["plan"]
    assert plan["order"] == ["big"] and plan["operators"]["big"]["type"] == "filter"
    wrong = client.post("/v1/jobs:explain", json={"name": "x"})
    assert wrong.status_code == 422 and wrong.json()["errors"]


def test_a_document_that_kills_its_checker_is_refused_and_the_next_one_is_not(client):
    deep = "x = " + "(" * 20_000
    wrong = copy.deepcopy(READINGS)
    wrong["operators"]["big"]["where"] = deep
    answer = client.post("/v1/jobs:validate", json=wrong)
    assert answer.status_code == 200 and not answer.json()["valid"]
    assert client.post("/v1/jobs:validate", content=TOML, headers=HEADERS).json()["valid"]


def test_a_long_request_becomes_an_operation(client):
    asked = {**HEADERS, "Prefer": "respond-async"}
    text = TOML + '[operators.f]\ntype = "filter"\ninput = "extra"\nwhere = "id % 7 = 3"\n'
    text += '[sinks.fs]\ntype = "pages"\ninput = "f"\n'
    begun = client.put("/v1/jobs/extra", content=text, headers=asked)
    assert begun.status_code == 202
    where = begun.headers["location"]
    assert begun.json()["state"] == "running" and where.endswith(begun.json()["id"])

    def ended():
        found = client.get(where).json()
        return found if found["state"] != "running" else None

    operation = until(ended)
    assert operation["state"] == "done" and operation["result"]["version"] == 1
    assert operation["progress"] == {"step": "apply", "done": 1, "of": 1}
    failed = client.post("/v1/jobs:explain", content="x=1", headers=asked).headers["location"]
    problem = until(lambda: client.get(failed).json()["problem"])
    assert problem["status"] == 422 and problem["errors"]
    listed = client.get("/v1/operations").json()["items"]
    assert operation["id"] in [one["id"] for one in listed]


def test_lists_are_paged(client):
    put(client)
    for path, key in (("jobs", "name"), ("streams", "name"), ("operators", "id")):
        whole = client.get(f"/v1/{path}").json()
        assert whole["next"] is None
        seen, cursor = [], None
        while True:
            params = {"limit": 1} | ({"cursor": cursor} if cursor else {})
            page = client.get(f"/v1/{path}", params=params).json()
            seen += [item[key] for item in page["items"]]
            cursor = page["next"]
            if cursor is None:
                break
        assert seen == [item[key] for item in whole["items"]]
    assert client.get("/v1/jobs", params={"cursor": "_"}).status_code == 422
    assert client.get("/v1/jobs", params={"limit": 0}).status_code == 422


def test_pages_of_a_list_that_changes_meanwhile_skip_and_repeat_nothing(client):
    """What is there all the time comes once; what comes and goes may or may not."""
    put(client)  # extra, before readings
    first = client.get("/v1/jobs", params={"limit": 1}).json()
    assert [job["name"] for job in first["items"]] == ["extra"]
    client.delete("/v1/jobs/extra", params={"drain": False})
    text = small_toml("another")
    assert client.put("/v1/jobs/another", content=text, headers=HEADERS).status_code == 201
    try:
        rest = client.get("/v1/jobs", params={"limit": 1, "cursor": first["next"]}).json()
        assert [job["name"] for job in rest["items"]] == ["readings"] and rest["next"] is None
    finally:
        client.delete("/v1/jobs/another", params={"drain": False})


def test_a_kernel_and_a_policy_are_chosen(client):
    refused = client.put("/v1/jobs/readings/operators/big/kernel", json={"kernel": "chain"})
    assert refused.status_code in (409, 422)  # a filter has no choice
    assert client.get("/v1/governor").json()["policy"] == "hands_off"
    chosen = client.put("/v1/governor", json={"policy": "race_to_idle"})
    assert chosen.json()["policy"] == "race_to_idle"
    assert client.put("/v1/governor", json={"policy": "no_such"}).status_code == 422
    own = {"policy": "race_to_idle", "settings": {}, "origin": "command"}
    assert (chosen.json()["own"], chosen.json()["awaited"]) == (own, None)
    given_up = client.put("/v1/governor", json={"policy": "none"}).json()
    assert (given_up["policy"], given_up["own"]["origin"]) == ("hands_off", "default")


def test_streams_and_sources_tell_what_comes_a_second(client):
    """The first request has rates too: without rows they are 0, not unknown."""
    for path, keys in (("streams", ["rows_per_s"]), ("sources", ["rows_per_s", "bytes_per_s"])):
        (one,) = client.get(f"/v1/{path}").json()["items"]
        assert [one[key] for key in keys] == [0.0] * len(keys)
    began_s = time.monotonic()
    for first in range(0, 50, 10):
        rows = [{"id": i, "time": "2026-11-21T09:00:00Z"} for i in range(first, first + 10)]
        body = "".join(json.dumps(row) + "\n" for row in rows)
        sent = client.post("/v1/streams/power/tuples", content=body,
                           headers={"Content-Type": "application/x-ndjson"})  # fmt: skip
        assert sent.status_code == 202

    def told():
        return client.get("/v1/streams/power").json()["rows_per_s"]

    assert until(told) >= 1 / (time.monotonic() - began_s + 60)
    assert client.get("/v1/sources").json()["items"][0]["bytes_per_s"] > 0


def test_everything_that_is_shown_can_be_read(client, plant):
    """Each resource of a running daemon, and that figures of energy say where they come from."""
    for path in ("device", "board", "streams", "sources", "operators", "governor", "store",
                 "uplink", "events", "log", "operations", "graphs", "openapi.json"):  # fmt: skip
        assert client.get(f"/v1/{path}").status_code == 200, path
    (operator,) = client.get("/v1/operators").json()["items"]
    assert (operator["id"], operator["type"]) == ("big", "filter")
    energy = client.get("/v1/energy").json()
    assert energy["present"] and energy["input"]["provenance"] == "simulated"
    assert {rail["provenance"] for rail in energy["rails"]} == {"simulated"}
    board = client.get("/v1/board").json()
    assert board["clocks"]
    (cpu, *_) = (knob for knob in board["knobs"] if knob["kind"] == "cpu")
    tree = plant[0].store / "board/sys/devices/system/cpu/cpufreq/policy0"
    table = (tree / "scaling_available_frequencies").read_text().split()
    assert cpu["steps_hz"] == sorted(1000 * int(khz) for khz in table)
    assert (cpu["floor_hz"], cpu["ceiling_hz"]) == (cpu["steps_hz"][0], cpu["steps_hz"][-1])
    assert board["cores"] == 6 and board["profile"] == board["power_model"] == "orin-nano"
    assert {zone["zone"] for zone in board["temperatures"]} >= {"cpu-thermal", "tj-thermal"}
    assert {"over_current_peak", "clock_below_limit"} <= {t["cause"] for t in board["throttling"]}
    assert [gpu["gpu"] for gpu in board["gpu_load"]] == ["17000000.gpu"]
    governor = client.get("/v1/governor").json()
    assert governor["simulated"] is True
    spent = {one["name"]: one for one in governor["residency"]}
    assert spent.keys() >= {"cpu.policy0"} and sum(o["seconds"] for o in spent["cpu.policy0"]["at"])
    kinds = [event["kind"] for event in client.get("/v1/events").json()["items"]]
    assert "daemon.started" in kinds
