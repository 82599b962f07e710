"""Shelved jobs: a restart that cannot load a job keeps it aside byte for byte, also through kills
and snapshots, and the start that can load it again finds it as if nothing had happened.

A kind that is taken out of its registry stands for a plug-in that does not load.
"""

from __future__ import annotations

import random
import shutil
from contextlib import contextmanager

import pytest

from edged.beat.jobs import describe
from edged.beat.recover import FaultyFile, recover
from edged.data.workers import Workers
from edged.errors import CommandError, JobError
from edged.operators.base import OPERATORS
from edged.platform.processes import free_port
from edged.sinks.base import SINKS, SinkContext
from edged.sources.base import SOURCES
from edged.store import Store
from tests.beat.loop import Loop, batch
from tests.beat.support import HandClock, Live, changed, copy_job, join_job
from tests.beat.test_changes import Twins, at, facts_of, renamed
from tests.beat.test_replay import BEATS, JOB, bytes_of, differing, live_run

REGISTRIES = {"sources": SOURCES, "operators": OPERATORS, "sinks": SINKS}


@contextmanager
def without(section, kind):
    """The kind is not installed."""
    OPERATORS.load(), SINKS.load(), SOURCES.load()
    kinds = REGISTRIES[section]._kinds
    kept = kinds.pop(kind)
    try:
        yield
    finally:
        kinds[kind] = kept


def started(path, look, snapshots=1, files=(), unreadable=(), device="device"):
    """Start on a store as the daemon does, `snapshots` times durable; returns `look(found)`."""
    workers = Workers(1)
    faulty = [FaultyFile(d, JobError("file", "its plug-in is gone")) for d in unreadable]
    with Store.open(path, segment_bytes=1 << 16) as store:
        context = SinkContext(device, store.device_epoch, str(path / "sinks"), workers)
        found = recover(store, files, context, HandClock(), faulty=faulty)
        for name, draft in found.drafts.items():
            key = (name, found.registry.shelved[name].beat)
            store.shelve(key, *draft.contents())
        for _ in range(snapshots):
            save(store, found)
        seen = look(found)
    workers.close()
    return seen


def save(store, found):
    import json

    arrays = {f"{j.plan.name}/{k}": v for j in found.jobs for k, v in j.save().items()}
    store.snapshot(found.beat, json.dumps(found.registry.facts()).encode(), arrays, barrier=True)
    store.keep_shelved({(j.name, j.beat) for j in found.registry.shelved.values()})


def shelves(path):
    return sorted(p.name for p in (path / "shelf").iterdir())


@pytest.mark.parametrize(
    "section, kind",
    [("operators", "window"), ("operators", "interval_join"), ("sinks", "pages"),
     ("sources", "tcp")],
)  # fmt: skip
def test_a_job_is_kept_aside_and_comes_back_as_it_was_after_every_beat(tmp_path, section, kind):
    plan, states, _, _ = live_run(tmp_path, random.Random(kind), snapshots=(5, 17))
    for n in (3, 11, BEATS):
        path = tmp_path / f"after-{n}"
        with Store.open(path, segment_bytes=1 << 16) as store:
            pending = store.pending()
        with without(section, kind):
            for again in (0, 1, 2):  # a kill before any snapshot, then starts from the shelf
                reason = started(
                    path, lambda found: found.registry.shelved["replayed"].problem,
                    snapshots=again, unreadable=[plan.document],
                )  # fmt: skip
                assert kind in reason and "restart" in reason
        assert len(shelves(path)) == 1
        found = started(path, lambda found: found, files=[plan])
        assert found.fresh and found.registry.shelved == {}
        assert differing(states[n], bytes_of(found.jobs[0].save())) == []
        assert shelves(path) == []
        with Store.open(path, segment_bytes=1 << 16) as store:
            assert {r.key for r in store.pending()} == {r.key for r in pending}


def without_zeros(value):
    """The value without zeros at the end of its lists: partitions without a page."""
    if isinstance(value, dict):
        return {key: without_zeros(part) for key, part in value.items()}
    if isinstance(value, list) and value and value[-1] == 0:
        return without_zeros(value[:-1])
    return value


class ShelvingTwins(Twins):
    """Twins of which a restart without a filter, too, finds the jobs as they are."""

    shelved = 0

    def compare(self):
        super().compare()
        live, copy = {}, self.path.parent / f"s{self.copies}"

        def look():
            self.loop.heart.await_commit()
            live["facts"] = facts_of(self.loop.heart.changes.registry)
            live["states"] = {j.plan.name: bytes_of(j.save()) for j in self.loop.heart.jobs}
            shutil.copytree(self.path, copy)

        self.loop.call(look)
        files = [self.loop.plan]
        with without("operators", "filter"):
            for _ in range(2):
                found = started(copy, lambda found: found, files=files, device="dev")
                names = {j.plan.name for j in found.jobs} | found.registry.shelved.keys()
                assert names == live["states"].keys()
                numbers = found.registry.facts()["last"]
                numbers |= {n: j.last for n, j in found.registry.shelved.items()}
                assert without_zeros(numbers) == without_zeros(live["facts"]["last"])
                self.shelved += len(found.registry.shelved)
        facts, states = started(
            copy,
            lambda f: (facts_of(f.registry), {j.plan.name: bytes_of(j.save()) for j in f.jobs}),
            files=files,
            device="dev",
        )
        assert without_zeros(facts) == without_zeros(live["facts"])
        for name, state in live["states"].items():
            assert differing(state, states[name]) == []


def test_a_job_is_kept_aside_with_its_changes(tmp_path):
    """A job that is put, replaced, paused and deleted while its kinds come and go."""
    port = free_port()
    base = at(port, {**join_job(before=10**9, after=10**9), "name": "base"})
    plain = at(port, renamed("second", "q", "others"))
    filtered = changed(plain, operators={
        "chosen": {"type": "filter", "input": "q", "where": "value > 3"}}, sinks={
        "others": {"type": "pages", "input": "chosen", "page": "4KiB"}})  # fmt: skip
    other = changed(filtered, sinks={"more": {"type": "pages", "input": "q", "page": "4KiB"}})
    with Loop(base, tmp_path / "store") as loop:
        twins = ShelvingTwins(loop, tmp_path / "store")
        steps = [
            filtered, "send", plain, "paused", "running", "snapshot", "send", other, "send",
            "delete", filtered, "send",
        ]  # fmt: skip
        for step in steps:
            if isinstance(step, dict):
                loop.change("put", "second", step)
            elif step == "delete":
                loop.change("delete", "second")
            elif step == "snapshot":
                loop.call(lambda: (loop.heart.await_commit(), loop.heart.snapshot()))
            elif step == "send":
                for stream in "rq":
                    with loop.producer(stream, f"p-{stream}") as producer:
                        producer.send(batch([4, 5, 6]))
                        producer.flush()
            else:
                loop.change("state", "second", state=step)
            twins.compare()
        assert twins.shelved > 4


def test_salvage_of_a_shelf_that_is_missing_or_damaged_leaves_its_job_empty(tmp_path):
    plan, _, _, _ = live_run(tmp_path, random.Random(1), beats=6)
    path = tmp_path / "after-6"
    with without("operators", "window"):
        started(path, lambda found: None, unreadable=[plan.document])
    (file,) = (path / "shelf").iterdir()
    whole = file.read_bytes()
    file_bytes = whole[:200] + bytes([whole[200] ^ 1]) + whole[201:]
    file.write_bytes(file_bytes)
    twin = tmp_path / "twin"
    shutil.copytree(path, twin)
    (twin / "shelf" / file.name).unlink()
    for store, problem in ((path, "damaged"), (twin, "missing")):
        seen = started(store, lambda found: (found.notes, found.jobs[0].last_pages()), files=[plan])
        (note,) = [note for note in seen[0] if "begins with an empty state" in note]
        assert problem in note and file.name in note
        assert any(any(last) for last in seen[1].values()), "page numbers go on"
    (kept,) = (path / "quarantine").iterdir()
    assert kept.read_bytes() == file_bytes


def test_a_plug_in_that_gives_other_pages_leaves_its_job_on_the_shelf(tmp_path, monkeypatch):
    """Two versions of one page must never be made."""
    with Live(JOB, tmp_path / "store", segment_bytes=1 << 16) as live:
        live.send("r", [("n", live.clock.wall, 1.0, None), ("m", live.clock.wall, 0.1, "x")])
        live.send("s", [("n", live.clock.wall, 1.0, None), ("m", live.clock.wall, 0.1, "x")])
        live.drain()
        plan = live.plan
        assert live.all_pages()
    with without("operators", "window"):
        started(tmp_path / "store", lambda found: None, unreadable=[plan.document])
    kind = OPERATORS["filter"]
    build = kind.build

    def other(plan, workers):
        made = build(plan, workers)
        made.run = lambda beat, inputs: inputs[0]
        return made

    monkeypatch.setattr(kind, "build", other)
    reason = started(
        tmp_path / "store", lambda f: f.registry.shelved["replayed"].reason, files=[plan]
    )
    assert "other pages than were logged" in reason
    monkeypatch.undo()
    assert started(tmp_path / "store", lambda found: len(found.jobs), files=[plan]) == 1


def test_files_decide_over_a_shelved_job_as_over_any_other(tmp_path):
    plan, states, _, _ = live_run(tmp_path, random.Random(2), beats=6)
    path, other = tmp_path / "after-6", changed(plan.document, promises={"latency": "2s"})
    with without("operators", "window"):
        with pytest.raises(JobError, match="its plug-in is gone"):
            started(path, lambda found: None, unreadable=[other])
        started(path, lambda found: None, unreadable=[plan.document])
        with pytest.raises(JobError, match="job replayed, which is shelved, makes pages of pairs"):
            rival = copy_job()
            rival["sinks"] = {"pairs": rival["sinks"]["rows"]}
            from edged.job.plan import parse_job

            started(path, lambda f: None, files=[parse_job(rival)], unreadable=[plan.document])
        with pytest.raises(JobError, match="cannot be replaced"):
            fewer = {k: v for k, v in other.items() if k != "operators"}
            fewer["sinks"] = {"dead": JOB["sinks"]["dead"]}
            started(path, lambda found: None, files=[parse_job(fewer)])
        shutil.copytree(path, tmp_path / "kept")
        retired = started(path, lambda found: found.registry.facts()["retired"])
    assert shelves(path) == [] and "pairs" in retired, "its page numbers go on"
    found = started(tmp_path / "kept", lambda found: found, files=[plan])
    assert differing(states[6], bytes_of(found.jobs[0].save())) == []


def test_a_shelved_job_can_be_deleted_and_nothing_else(tmp_path):
    port = free_port()
    base, second = at(port, copy_job()), at(port, renamed("second", "q", "others"))
    second["operators"] = {"chosen": {"type": "filter", "input": "q", "where": "value >= 0"}}
    second["sinks"]["others"]["input"] = "chosen"
    with Loop(base, tmp_path / "store") as loop:
        loop.change("put", "second", second)
        with loop.producer("q", "p") as producer:
            producer.send(batch([1, 2, 3]))
            producer.flush()
        loop.until(lambda: loop.heart.jobs[1].streams["q"].rows == 3)
        last = loop.heart.jobs[1].last_pages()
    with without("operators", "filter"):
        started(tmp_path / "store", lambda found: None, files=[loop.plan], device="dev")
        with Loop(base, tmp_path / "store") as loop:
            registry = loop.heart.changes.registry
            assert describe(registry.find("second"))["state"] == "shelved"
            for op in ("state", "policy"):
                with pytest.raises(CommandError, match="second is shelved: operators"):
                    loop.change(op, "second", state="paused")
            with pytest.raises(CommandError, match="shelved"):
                loop.change("put", "second", at(port, renamed("second", "q", "others")))
            with pytest.raises(JobError, match="which is shelved, has a stream q"):
                loop.change("put", "third", at(port, renamed("third", "q", "more")))
            assert shelves(tmp_path / "store")
            with pytest.raises(CommandError, match="version"):
                loop.change("delete", "second", if_version=7)
            loop.change("delete", "second", if_version=1)
            loop.until(lambda: not shelves(tmp_path / "store"))
            loop.change("put", "second", at(port, renamed("second", "q", "others")))
            assert loop.heart.jobs[1].last_pages() == last, "page numbers go on"
