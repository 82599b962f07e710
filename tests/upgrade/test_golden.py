"""Stores and landings of every released format, opened by this version: they go on where they were,
and the results are exact.
"""

import base64
import io
import json
import lzma
import os
import tarfile
from collections import Counter
from pathlib import Path

import httpx
import pytest

from edged.central import landing_format, rot
from edged.control.door import ask
from tests.central.support import collecting, read_landing
from tests.upgrade.fleet import PAUSED, Fleet

DATA = Path(__file__).parents[1] / "data"
GOLDEN = sorted(DATA.glob("golden-*.tar.xz"))


def unpack(golden, place):
    """A copy of the golden directory, its listener on a free port."""
    with tarfile.open(fileobj=io.BytesIO(lzma.decompress(golden.read_bytes()))) as tar:
        tar.extractall(place, filter="data")
    return int((place / "committed").read_text())


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda p: p.name)
def test_a_released_store_and_landing_go_on_where_they_were(golden, tmp_path, monkeypatch):
    committed = unpack(golden, tmp_path)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(tmp_path / "plugin"), os.environ.get("PYTHONPATH", "")])
    )
    before = [page for _, page in read_landing(tmp_path / "landing")]
    assert landing_format.require(tmp_path / "landing") == 1
    assert rot.check(tmp_path / "landing").findings == []
    with Fleet(tmp_path) as fleet:
        fleet.collect()
        fleet.run()
        jobs = {job["name"]: job for job in ask(fleet.door, "jobs")["jobs"]}
        assert {name: job["state"] for name, job in jobs.items()} == {
            "upgraded": "running", "paused": "paused", "plugged": "running"
        }  # fmt: skip
        assert jobs["paused"]["document"]["streams"] == PAUSED["streams"]
        found = fleet.send(committed)
        assert set(found.values()) == {committed}, "every producer is known with its last batch"
        rows = fleet.finish(committed + 6)
        fleet.until(lambda s: s["jobs"]["plugged"]["ended"] and s["store"]["backlog_pages"] == 0)
        assert fleet.device.stop() == 0 and fleet.collector.stop() == 0
    assert rows["pairs"] > 500 and rows["counts"] > 200
    pages = Counter(page for _, page in read_landing(tmp_path / "landing"))
    assert all(pages[page] == 1 for page in before), "what had landed is as it was"
    tuples = sum(
        row[3]
        for row, page in read_landing(tmp_path / "landing")
        if page[160:224].rstrip(b"\0") == b"plugged"
    )
    assert tuples == 1000, "the shelved job came back and ended"


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda p: p.name)
def test_the_collector_answers_a_released_device_as_its_own_collector_did(golden, tmp_path):
    unpack(golden, tmp_path)
    requests = json.loads((tmp_path / "requests.json").read_text())
    assert {r["method"] for r in requests} == {"PUT", "POST"}
    with collecting(tmp_path / "fresh") as collector, httpx.Client(timeout=120) as client:
        for r in requests:
            body = base64.b64decode(r["body"])
            found = client.request(
                r["method"], collector.url + r["path"], headers=r["headers"], content=body
            )
            assert found.status_code == r["status"], (r, found.text)
            answer = found.json() if found.content else None
            wanted = r["answer"]
            assert wanted is None or wanted.items() <= answer.items()
