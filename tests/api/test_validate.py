"""A verdict on a job document is that of a put: the daemon decides both."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import os
import socket
import subprocess
import sys

import pytest

from edged.beat.changes import CheckRequest, JobCandidate
from edged.documents.unchecked import UNCHECKED
from edged.errors import CommandError
from edged.job.changes import Change
from edged.job.plan import parse_job
from edged.platform.processes import free_port
from tests.api.support import READINGS, both, small
from tests.beat.loop import Loop, now_us
from tests.beat.support import copy_job

STORE_BYTES = 2 << 30
NAME = "checked"
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def bounded(tmp_path_factory):
    """A client of a daemon whose store and ports are bounded, and its directory."""
    path = tmp_path_factory.mktemp("bounded")
    words = ["--store-max", str(STORE_BYTES)]
    with both(path, modest(READINGS), words=words) as (_, api), api.client() as client:
        yield client, path


def modest(document):
    """The document with little memory."""
    return changed(document, **{"promises/memory": "16MiB"})


def job(**changes):
    """A job with a stream, a window and two sinks, changed by dotted paths."""
    document = modest(small(NAME))
    document["operators"] = {
        "counted": {"type": "window", "input": NAME, "keys": ["id"], "size": "10s",
                    "aggregates": {"n": "count(*)"}},
        "some": {"type": "filter", "input": NAME, "where": "id > 100"},
    }  # fmt: skip
    document["sinks"]["counts"] = {"type": "pages", "input": "counted"}
    return changed(document, **changes)


def changed(document, **changes):
    """A copy with the values at these paths; `/` between keys, None removes a key."""
    document = copy.deepcopy(document)
    for path, value in changes.items():
        *parents, key = path.split("/")
        table = document
        for parent in parents:
            table = table.setdefault(parent, {})
        table.pop(key, None)
        if value is not None:
            table[key] = value
    return document


def tcp(port, host="127.0.0.1", **more):
    return {"type": "tcp", "listen": f"{host}:{port}", **more}


def verdict(client, document):
    answer = client.post("/v1/jobs:validate", json=document)
    assert answer.status_code == 200, answer.text
    return answer.json()


def put(client, document, name=NAME):
    return client.put(f"/v1/jobs/{name}", content=json.dumps(document), headers=JSON)


def agree(client, document):
    """The verdict, which changes nothing and is that of a put right after it."""
    name = document.get("name") if isinstance(document.get("name"), str) else NAME
    before = client.get("/v1/jobs").json()
    told = verdict(client, document)
    assert client.get("/v1/jobs").json() == before
    done = put(client, document, name)
    assert told["unchecked"] == []
    assert told["valid"] == (done.status_code in (200, 201)), (told, done.text)
    if told["valid"]:
        assert told["notes"] == done.json()["notes"]
        return told
    problem = done.json()
    found = [(f["where"], f["what"], f["do"]) for f in told["faults"]]
    listed = [(f["where"], f["what"], f["do"]) for f in problem["errors"]]
    assert found == (listed or [("document", problem["detail"], found[0][2])])
    assert found[0][2] in (problem["do"], *(listed and listed[0]), "")
    return told


REFUSED = {
    "unknown key": ({"streams/checked/tyme": 1}, "tyme"),
    "unknown source": ({"streams/checked/source": {"type": "opc_ua"}}, "opc_ua"),
    "unknown operator": ({"operators/some/type": "opc_ua"}, "opc_ua"),
    "plug-in missing": ({"sinks/out": {"type": "statsd", "input": NAME}}, "statsd"),
    "wrong expression": ({"operators/some/where": "id > nothing"}, "nothing"),
    "pages of another job": ({"sinks/mine": {"type": "pages", "input": NAME, "stream": "all"}},
                             "job readings already makes"),
    "stream of another job": (
        {"streams/power": {"source": {"type": "http"}, "time": "time",
                           "columns": {"id": "int64", "time": "timestamp"}},
         "sinks/more": {"type": "pages", "input": "power"}},
        "both have a stream power"),
    "listeners disagree": (
        {"streams/checked/source": {"type": "http", "message_bytes_max": "1MiB"}},
        "shares the socket"),
    "memory over the store": ({"promises/memory": "1GiB"}, "too small for the jobs' memory"),
    "path outside": ({"sinks/out": {"type": "file", "input": NAME, "path": "/etc/edged-out"}},
                     "run.remote_files"),
    "port outside": ({"streams/checked/source": tcp(80)}, "run.remote_listen"),
    "file of a secret": ({"streams/checked/source": tcp(0, token_file="/etc/shadow")},
                         "token_file"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_what_a_put_refuses_validate_refuses_with_the_same_words(bounded, kind):
    client, _ = bounded
    changes, text = REFUSED[kind]
    told = agree(client, job(**changes))
    assert not told["valid"] and text in json.dumps(told["faults"])


def test_a_port_that_is_taken_is_refused_unless_the_job_itself_has_it(bounded):
    client, _ = bounded
    port, other = free_port(), free_port()
    with contextlib.closing(socket.create_server(("127.0.0.1", port))):
        told = agree(client, job(**{"streams/checked/source": tcp(port)}))
        assert not told["valid"] and "cannot listen" in told["faults"][0]["what"]
    try:
        assert agree(client, job(**{"streams/checked/source": tcp(other)}))["valid"]
        mine = {"streams/checked/source": tcp(other), "streams/checked/lateness": "1s"}
        assert agree(client, job(**mine))["valid"]
        assert verdict(client, modest(small("next")))["notes"] == ["job next is new"]
        with contextlib.closing(socket.create_connection(("127.0.0.1", other))) as producer:
            producer.setblocking(False)
            assert verdict(client, job(**mine, **{"streams/checked/max_ahead": "1h"}))["valid"]
            with pytest.raises(BlockingIOError):  # the check has closed nothing
                producer.recv(1)
    finally:
        client.delete(f"/v1/jobs/{NAME}", params={"drain": False})


CHANGES = {
    "operators/counted/keys": [["id"], ["id", "time"]],
    "operators/counted/size": ["10s", "20s"],
    "operators/counted/aggregates": [{"n": "count(*)"}, {"m": "max(id)"}],
    "operators/some/where": ["id > 100", "id < 7"],
    "streams/checked/columns": [{"id": "int64", "time": "timestamp"},
                                {"id": "int32", "time": "timestamp"},
                                {"id": "int64", "time": "timestamp", "kw": "float64?"}],
    "sinks/checkeds/stream": [NAME, "moved"],
    "sinks/counts/type": ["pages", "file"],
    "promises/memory": ["16MiB", "600MiB", "700MiB"],
}  # fmt: skip


def test_replacements_are_accepted_and_refused_alike(bounded):
    client, _ = bounded
    verdicts = []
    try:
        base = job(**{"sinks/counts/stream": "replaced"})
        assert agree(client, base)["valid"]
        singles = [{path: value} for path, values in CHANGES.items() for value in values]
        pairs = [{**a, **b} for a, b in itertools.combinations(singles, 2) if a.keys() != b.keys()]
        for changes in [*singles, *pairs[::9]]:
            verdicts.append(agree(client, changed(base, **changes)))
        refused = json.dumps([told["faults"] for told in verdicts])
        for text in ("keys was", "size was", "columns", "too small for the jobs' memory"):
            assert text in refused
        assert 5 < sum(told["valid"] for told in verdicts) < len(verdicts) - 5
    finally:
        client.delete(f"/v1/jobs/{NAME}", params={"drain": False})


def test_pages_of_an_earlier_job_and_a_job_of_a_file_are_told(bounded):
    client, _ = bounded
    assert put(client, modest(small("gone")), "gone").status_code == 201
    assert client.delete("/v1/jobs/gone", params={"drain": False}).status_code == 200
    other = changed(modest(small("gone")), **{"streams/gone/columns/id": "int32"})
    told = agree(client, other)
    assert "had other columns in an earlier job" in told["faults"][0]["what"]
    told = agree(client, changed(READINGS, **{"promises/latency": "1s"}))
    assert not told["valid"] and "comes from" in told["faults"][0]["what"]


def test_without_a_daemon_the_document_is_checked_and_the_rest_is_named(lonely, tmp_path):
    with lonely.client() as client:
        told = verdict(client, job())
        assert told["valid"] and told["unchecked"] == [*UNCHECKED]
        wrong = verdict(client, job(**{"streams/checked/tyme": 1}))
        assert not wrong["valid"] and wrong["unchecked"] == []
    file = tmp_path / "job.json"
    for document, code in ((job(), 69), (job(**{"streams/checked/tyme": 1}), 65)):
        file.write_text(json.dumps(document))
        for api in (lonely.socket, tmp_path / "nothing.sock"):
            done = subprocess.run(
                [sys.executable, "-m", "edged", "jobs", "validate", str(file)],
                capture_output=True, text=True, env={**os.environ, "EDGED_API": str(api)},
            )  # fmt: skip
            assert done.returncode == code, done
            assert ("not checked: " in done.stderr) == (code == 69)
            assert ("tyme" in done.stderr) == (code == 65)


def test_a_check_leaves_the_jobs_the_sources_and_the_log_as_they_are(tmp_path):
    port, taken = free_port(), free_port()
    document = copy_job()
    document["streams"]["r"]["source"] = {"type": "tcp", "listen": f"127.0.0.1:{port}"}
    with Loop(document, tmp_path / "store") as loop:

        def check(given, version=None):
            plan = parse_job(given)
            change = Change("put", plan.name, now_us(), plan.document)
            request = CheckRequest(change, JobCandidate.of(plan))
            loop.heart.post(request)
            return request.answer.result(timeout=120)

        before = loop.heart.beat, loop.heart.jobs[0], list(loop.inputs.sources)
        assert check(document)["created"] is False
        moved = copy.deepcopy(document)
        moved["streams"]["r"]["source"] = {"type": "tcp", "listen": f"0.0.0.0:{port}"}
        assert check(moved)["notes"], "its own listener is closed before"
        with contextlib.closing(socket.create_server(("127.0.0.1", taken))):
            moved["streams"]["r"]["source"]["listen"] = f"127.0.0.1:{taken}"
            with pytest.raises(CommandError, match="cannot listen"):
                check(moved)
            with pytest.raises(CommandError, match="cannot listen"):
                loop.change("put", moved["name"], moved)
        assert (loop.heart.beat, loop.heart.jobs[0], list(loop.inputs.sources)) == before
