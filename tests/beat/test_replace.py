"""A changed document: what is unchanged keeps its state, what cannot be carried over is refused."""

from __future__ import annotations

import shutil

import pytest

from edged.beat.recover import recover
from edged.control.door import ask
from edged.data.workers import Workers
from edged.errors import ConfigError, JobError
from edged.sinks.base import SinkContext
from edged.store import Store
from tests.beat.loop import Loop, batch, now_us
from tests.beat.support import T0, Daemon, HandClock, Live, changed, join_job, rows_of


def filtered(where="value >= 0", **parts):
    """The join with a filter behind it and a window beside it."""
    document = changed(
        join_job(before=1000, after=1000),
        operators={
            "chosen": {"type": "filter", "input": "joined", "where": where},
            "sums": {
                "type": "window", "input": "r", "keys": ["key"], "size": 10_000,
                "aggregates": {"n": "count(*)"},
            },
        },
        sinks={
            "pairs": {"type": "pages", "input": "chosen", "page": "4KiB"},
            "windows": {"type": "pages", "input": "sums", "page": "4KiB"},
        },
    )  # fmt: skip
    return changed(document, **parts)


def first_half(path):
    """A run that holds partners in its window, counts in a window, and rows in an open page."""
    with Live(filtered(), path) as live:
        live.send("r", [(1, T0, 1)])
        live.send("s", [(1, T0, 10)])
        live.beat(flush=True)
        live.send("r", [(1, T0 + 100, 2)])
        live.send("s", [(1, T0 + 50, 20)])
        live.beat()
        assert live.job.open_rows() == 3
        return live.all_pages()


class Restarted:
    """What a restart with another document finds in a copy of the store."""

    def __init__(self, path, document):
        copy = path.with_name(f"copy-{len(list(path.parent.iterdir()))}")
        shutil.copytree(path, copy)
        self.live = Live(document)
        self.store = Store.open(copy)
        context = SinkContext("device", self.store.device_epoch, "/nonexistent", Workers(1))
        try:
            found = recover(self.store, [self.live.plan], context, HandClock())
        except BaseException:
            self.store.close()
            raise
        self.notes, self.fresh = found.notes, found.fresh
        self.live.job, self.live.beats = found.jobs[0], found.beat

    def finish(self):
        """Rows that meet what is held; returns the pages that come out."""
        live = self.live
        live.send("r", [(1, T0 + 200, 3)])
        live.send("s", [(1, T0 + 200, 30)])
        live.drain()
        self.store.close()
        return live.all_pages()


def values(plan, pages):
    return sorted((pair[2], pair[4]) for pair in rows_of(plan, pages, "pairs"))


def test_unchanged_operators_keep_their_windows_when_a_filter_beside_them_changes(tmp_path):
    before = first_half(tmp_path / "store")
    new = Restarted(tmp_path / "store", filtered("value >= 2"))
    assert new.fresh
    assert any("keeps" in note and "operators.joined" in note for note in new.notes)
    pages = before + new.finish()
    assert values(new.live.plan, pages) == [
        (1, 10), (1, 20), (2, 10), (2, 20), (2, 30), (3, 10), (3, 20), (3, 30),
    ]  # fmt: skip
    seqs = [p.key.seq for p in pages if p.key.stream == "pairs"]
    assert seqs == list(range(1, len(seqs) + 1))
    windows = rows_of(new.live.plan, pages, "windows")
    assert sum(row[-1] for row in windows) == 3


def test_the_same_document_is_no_replacement(tmp_path):
    first_half(tmp_path / "store")
    same = Restarted(tmp_path / "store", filtered())
    assert not same.fresh
    assert same.notes == []
    same.finish()


def test_promises_lateness_and_sources_may_change_with_all_state_kept(tmp_path):
    before = first_half(tmp_path / "store")
    document = filtered(promises={"latency": "5s", "durability": "results"})
    document["streams"]["r"]["lateness"] = "1s"
    document["streams"]["r"]["source"]["connections_max"] = 9
    new = Restarted(tmp_path / "store", document)
    assert len(values(new.live.plan, before + new.finish())) == 9


def test_an_operator_that_goes_is_forgotten_and_a_new_one_starts_empty(tmp_path):
    first_half(tmp_path / "store")
    document = filtered()
    document["operators"]["counts"] = document["operators"].pop("sums")
    document["sinks"]["windows"]["input"] = "counts"
    new = Restarted(tmp_path / "store", document)
    assert any("forgets" in note and "operators.sums" in note for note in new.notes)
    pages = new.finish()
    assert sum(row[-1] for row in rows_of(new.live.plan, pages, "windows")) == 1


REFUSED = [
    (
        "operators.joined",
        {"operators": {"joined": {**filtered()["operators"]["joined"], "after": 5}}},
    ),
    ("operators.sums", {"operators": {"sums": {**filtered()["operators"]["sums"], "size": 500}}}),
    ("sinks.pairs", {"sinks": {"pairs": {"type": "pages", "input": "chosen", "page": "8KiB"}}}),
    ("sinks.moved", {"sinks": {"moved": {"type": "pages", "input": "r", "stream": "windows"}}}),
]


@pytest.mark.parametrize(("path", "parts"), REFUSED)
def test_state_that_cannot_be_carried_over_is_refused_with_its_path_and_nothing_changes(
    tmp_path, path, parts
):
    first_half(tmp_path / "store")
    document = filtered(**parts)
    if path == "sinks.moved":
        del document["sinks"]["windows"]
    with pytest.raises(JobError, match=f"^{path}"):
        Restarted(tmp_path / "store", document)
    again = Restarted(tmp_path / "store", filtered())
    assert again.live.job.open_rows() == 3
    again.finish()


def test_a_streams_changed_columns_are_refused_with_their_path(tmp_path):
    first_half(tmp_path / "store")
    document = filtered()
    document["streams"]["r"]["columns"]["extra"] = "int64?"
    with pytest.raises(JobError, match=r"^streams\.r\.columns"):
        Restarted(tmp_path / "store", document)


def test_a_running_job_is_replaced_through_the_door_and_survives_a_kill(tmp_path):
    document = filtered("value < 0", promises={"latency": "50ms"})
    now = now_us()
    with Daemon(tmp_path, document) as daemon:
        with daemon.producer("r") as r, daemon.producer("s") as s:
            r.send(batch([1], [now])), s.send(batch([10], [now]))
            r.flush(), s.flush()
            daemon.until(lambda st: pairs(st)["left_live"] == 1 and pairs(st)["matches"] == 1)
            wanted = filtered("value > 0", promises={"latency": "60ms"})
            answer = ask(daemon.door, "replace", job=daemon.here(wanted))
            assert answer["replaced"] == "joining"
            assert any("operators.joined" in note for note in answer["notes"])
            refused = filtered(**REFUSED[0][1])
            with pytest.raises(ConfigError, match=r"operators\.joined"):
                ask(daemon.door, "replace", job=daemon.here(refused))
            with pytest.raises(ConfigError, match="no job other is running"):
                ask(daemon.door, "replace", job={**daemon.here(wanted), "name": "other"})
            s.send(batch([20], [now]))
            s.flush()
            status = daemon.until(lambda st: pairs(st)["matches"] == 2)
            assert status["jobs"]["joining"]["sinks"]["pairs"]["rows"] == 1, "the new filter"
        daemon.kill()
        daemon.write(wanted)
        daemon.restart()
        ready = daemon.ready(300)
        assert ready["notes"] == [], "the store holds the new document"
        assert ready["replayed_beats"] > 0
        with daemon.producer("s") as s:
            s.send(batch([30], [now]))
            s.flush()
            daemon.until(lambda st: pairs(st)["matches"] == 3)


def pairs(status):
    return status["jobs"]["joining"]["operators"]["joined"]


def test_new_promises_hold_from_the_replacement_on(tmp_path):
    slow = filtered(promises={"latency": "20s"})
    with Loop(slow, tmp_path / "store") as loop:
        assert loop.heart.batcher.latency_us == 20_000_000
        quick = filtered(promises={"latency": "50ms", "durability": "results"})
        loop.change("put", "joining", quick)
        assert loop.heart.batcher.latency_us == 50_000
        with loop.producer() as p:
            p.send(batch([1]))
            p.flush(2.0)
        assert loop.store.log_bytes_since_snapshot < 1 << 20
