"""A stage gets more and fewer instances across daemons while rows come: exactly once."""

from __future__ import annotations

import json
import threading
from collections import Counter

import pyarrow.parquet as pq
import pytest

from edged.graph import rescale, rollout
from edged.graph.check import load
from edged.graph.daemons import DaemonView, observe
from edged.graph.status import status
from edged.platform.processes import free_port
from edged.rest import Client
from tests.api.support import until
from tests.graph.support import SPAN, at, farm, fleet

SITES = ("site-a", "site-b", "site-c")
BASE_US = 1_700_000_000_000_000 // 3_600_000_000 * 3_600_000_000
HOUR_US = 3_600_000_000
KEYS = 40


def graph_of(running):
    first = free_port()
    daemons = {
        name: {"api": "", "ports": f"{first + i * SPAN}-{first + i * SPAN + SPAN - 1}"}
        for i, name in enumerate(("gate", *SITES))
    }
    document = farm(daemons=daemons)
    document["operators"]["mean"] |= {"size": "1h", "place": list(SITES), "instances": 3}
    document["sinks"] = {
        "means": {"type": "file", "input": "mean", "path": "means", "every": "10ms"}
    }
    return at(document, running)


class Sender(threading.Thread):
    """Sends rows of all keys to the gate until it is stopped; `sent` is what was accepted."""

    def __init__(self, api, stream="readings"):
        super().__init__(daemon=True)
        self.stream = stream
        self.api, self.over, self.sent, self.batches = api, threading.Event(), Counter(), 0

    def run(self):
        with Client(str(self.api.socket), patience_s=120) as client:
            while not self.over.is_set():
                self.send(client, BASE_US + self.batches)

    def send(self, client, time_us):
        rows = [
            {"turbine": f"t{k}", "time": time_us, "kw": float(1 + (self.batches + k) % 5)}
            for k in range(KEYS)
        ]
        body = "\n".join(json.dumps({**r, "time": stamp(r["time"])}) for r in rows)
        client.send_tuples(
            self.stream, body.encode(), "application/x-ndjson",
            idempotency_key=f"batch-{self.batches}",
        )  # fmt: skip
        self.sent.update({r["turbine"]: int(r["kw"]) for r in rows})
        self.batches += 1


def stamp(time_us):
    import datetime

    moment = datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=time_us)
    return moment.isoformat() + "Z"


def written(running, folder):
    """The windows that all sites have written: (turbine, kw, n)."""
    rows = []
    for name in SITES:
        for file in (running[name][0].path / folder).glob("*.parquet"):
            rows += pq.read_table(file).to_pylist()
    return rows


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with fleet(tmp_path_factory.mktemp("fleet"), ("gate", *SITES)) as started:
        yield started


def to(document, count):
    placed = load(rescale.scaled(document, {"mean": count}))
    return placed, observe(placed.plan)


def test_rescale_from_2_to_3_to_2_under_load_is_exact(running, tmp_path):
    """Each of them is killed once: with the journal written, and before."""
    document = graph_of(running)
    rollout.deploy(*to(document, 2))
    sender, journal = Sender(running["gate"][1]), tmp_path / "journal"
    sender.start()
    pauses = []
    for count, moment in ((3, "farm-mean-0 replaced"), (2, "farm-mean-1 exported")):
        until(lambda seen=sender.batches: sender.batches > seen + 5)
        with pytest.raises(Killed):
            rescale.rescale(*to(document, count), journal, killer(moment))
        with pytest.raises(rollout.RolloutError, match="interrupted"):
            rollout.deploy(*to(document, count))
        outcome = rescale.rescale(*to(document, count), journal)
        assert outcome.stages == ["mean"] and outcome.state_bytes > 0
        assert not journal.exists()
        pauses.append(outcome.pause_s)
        placed, views = to(document, count)
        found = status(placed, views)
        until(lambda p=placed: status(p, observe(p.plan))["healthy"])
        assert len([j for j in found["jobs"] if j["name"].startswith("farm-mean")]) == count
    until(lambda seen=sender.batches: sender.batches > seen + 5)
    sender.over.set()
    sender.join()
    sent, batches = Counter(sender.sent), sender.batches
    with Client(str(running["gate"][1].socket), patience_s=120) as client:
        for hours in (2, 4):
            sender.send(client, BASE_US + hours * HOUR_US)
    first = until(lambda: len(rows := hour(running)) >= KEYS and rows)
    assert sorted(r["turbine"] for r in first) == sorted(sent), "a window is there once"
    assert {r["turbine"]: int(r["kw"]) for r in first} == sent
    assert {r["n"] for r in first} == {batches}
    assert max(pauses) < rescale.DRAIN_S, pauses


def test_two_stages_move_at_once(running, tmp_path, monkeypatch):
    """The one that receives comes first by name; both get a third instance.  A rescaling that fails
    before it has changed a job lets all go on."""
    document = graph_of(running)
    document["name"] = "chain"
    document["streams"] = {"chained": document["streams"]["readings"]}
    document["operators"]["producing"]["input"] = "chained"
    document["operators"]["daily"] = {
        **document["operators"]["mean"], "input": "mean", "size": "2h",
        "aggregates": {"kw": "sum(kw)", "n": "sum(n)"},
    }  # fmt: skip
    document["links"]["daily-by-turbine"] = {"from": "mean", "to": "daily", "by": ["turbine"]}
    document["sinks"]["means"] |= {"input": "daily", "path": "days"}

    def both(count):
        placed = load(rescale.scaled(document, {"mean": count, "daily": count}))
        return placed, observe(placed.plan)

    rollout.deploy(*both(2))
    sender = Sender(running["gate"][1], "chained")
    with Client(str(running["gate"][1].socket), patience_s=120) as client:
        for hours in (0, 1):
            sender.send(client, BASE_US + hours * HOUR_US)
        with (
            monkeypatch.context() as patched,
            pytest.raises(rollout.RolloutError, match="more"),
        ):
            patched.setattr(rescale, "STATE_BYTES_MAX", 1)
            rescale.rescale(*both(3), tmp_path / "journal")
        jobs = [job for view in both(3)[1].values() for job in view.jobs.values()]
        assert [job["state"] for job in jobs] == ["running"] * 5
        outcome = rescale.rescale(*both(3), tmp_path / "journal")
        assert outcome.stages == ["daily", "mean"]
        sent = Counter(sender.sent)
        for hours in (3, 6, 9):
            sender.send(client, BASE_US + hours * HOUR_US)
    first = until(lambda: len(rows := hour(running, "days")) >= KEYS and rows)
    assert {r["turbine"]: (int(r["kw"]), r["n"]) for r in first} == {
        turbine: (kw, 2) for turbine, kw in sent.items()
    }
    assert len(first) == KEYS
    rollout.remove(*both(3), now=True)


def test_one_rescaling_at_a_time_in_a_folder(tmp_path):
    with (
        rescale._alone(tmp_path / "journal"),
        pytest.raises(rollout.RolloutError, match="another rescaling goes on"),
    ):
        rescale.rescale(load(farm()), {}, tmp_path / "journal")
    with rescale._alone(tmp_path / "journal"):
        pass


def test_a_rescaling_goes_on_only_where_its_journal_is(tmp_path):
    placed = load(farm())
    views = {name: DaemonView(name, record={"state": "rescaling", "version": 2})
             for name in ("gate", "site-a", "site-b")}  # fmt: skip
    for index, (daemon, version) in enumerate((("site-a", 2), ("site-b", 1), ("site-b", 1))):
        document = {"graph": {"name": "farm", "version": version}}
        views[daemon].jobs[f"farm-mean-{index}"] = {"document": document}
    with pytest.raises(rollout.RolloutError, match="journal is not here"):
        rescale.rescale(placed, views, tmp_path / "journal")


class Killed(BaseException):
    """In place of a kill."""


def killer(moment):
    """A progress that ends the rescaling once it has come to this step."""

    def progress(text):
        if moment in text:
            raise Killed

    return progress


def hour(running, folder="means"):
    """The windows from the first hour on."""
    return [r for r in written(running, folder) if r["window_start"].timestamp() * 1e6 == BASE_US]
