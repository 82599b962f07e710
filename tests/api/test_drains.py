"""Waiting for a drain over the API, while the centre is away, the daemon dies, and all is back."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from edged.platform.processes import ChildProcess, free_port
from tests.api.support import Api, Daemon, small, until

ROWS = "".join(f'{{"id": {i}, "time": "2026-11-21T09:00:00Z"}}\n' for i in range(100)).encode()
LATER = {"Prefer": "respond-async"}
DRAIN, DELETE = ("POST", "/v1/jobs/extra/drain"), ("DELETE", "/v1/jobs/extra")


@pytest.fixture
def plant(tmp_path):
    """(daemon, client, collect): `collect()` starts the collector that the uplink looks for."""
    address = f"127.0.0.1:{free_port()}"
    parts = []

    def collect():
        words = ["edged", "central", "collect", "--landing", str(tmp_path / "landing")]
        parts.append(ChildProcess("collector", [*words, "--listen", address, "--json"], tmp_path))
        parts[0].ready()

    with (
        Daemon(tmp_path, small("first"), "--uplink", f"http://{address}") as daemon,
        Api(tmp_path) as api,
        api.client() as client,
    ):
        yield daemon, client, collect
        for part in parts:
            part.stop()


def edged(daemon, *words):
    """What a command says."""
    command = [sys.executable, "-m", "edged", *words, "--api", str(daemon.path / "api.sock")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


def begin(client, how):
    """Put the job, send it rows, have it drain; where the operation is."""
    assert client.put("/v1/jobs/extra", json=small()).status_code in (200, 201)
    sent = client.post(
        "/v1/streams/extra/tuples", content=ROWS, headers={"Content-Type": "application/x-ndjson"}
    )
    assert sent.status_code == 202, sent.text
    begun = client.request(*how, headers=LATER)
    assert begun.status_code == 202, begun.text
    return begun.headers["location"]


def test_a_drain_tells_how_far_it_is_over_deaths_until_the_centre_has_all(plant):
    daemon, client, collect = plant
    where = begin(client, DRAIN)

    def ships():
        told = client.get(where).json()
        return told["progress"] if told["progress"]["step"] == "ship" else None

    waiting = until(ships)
    told = json.loads(edged(daemon, "uplink", "--json"))
    assert told["configured"] and told["pages_acked"] == 0 and told["oldest_page_us"]
    store = client.get("/v1/store").json()
    assert store["oldest_page_us"] == told["oldest_page_us"] and store["backlog_age_s"] >= 0
    assert "pages (" in edged(daemon, "uplink", "retry")
    assert waiting["done"] == 0 and waiting["of"] >= 1
    assert client.get("/v1/jobs/extra").json()["state"] == "draining"
    daemon.kill()
    assert client.get(where).json()["state"] == "running"
    daemon.restart()
    daemon.ready(300)
    collect()
    done = until(lambda: told if (told := client.get(where).json())["state"] != "running" else None)
    assert done["state"] == "done" and done["result"]["state"] == "drained", done
    assert done["progress"]["step"] == "ship"
    # waiting for a state that is reached already returns at once, with the ETag
    again = client.request(*DRAIN, headers={"Prefer": "wait=9"})
    assert (again.status_code, again.json()["state"]) == (200, "drained")
    assert again.headers["etag"] == again.json()["etag"]


def test_a_job_that_is_told_otherwise_ends_the_wait_and_one_that_goes_is_waited_for(plant):
    _, client, collect = plant
    where = begin(client, DRAIN)
    until(lambda: client.get(where).json()["progress"]["step"] == "ship")
    assert client.post("/v1/jobs/extra/resume").json()["state"] == "running"
    failed = until(lambda: client.get(where).json()["problem"])
    assert failed["status"] == 409 and "it is running" in failed["detail"]
    collect()
    where = begin(client, DELETE)
    until(lambda: client.get(where).json()["state"] == "done")
    assert client.get("/v1/jobs/extra").status_code == 404
    refused = client.request(*DELETE, headers={"Prefer": "wait=9"})
    assert refused.status_code == 404
