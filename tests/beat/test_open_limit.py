"""The open pages of a job take at most their part of its memory, and a replay repeats it."""

from __future__ import annotations

import random

import pytest

from edged.beat.record import BeatFacts
from edged.beat.recover import recover
from edged.data.workers import Workers
from edged.job.plan import parse_job
from edged.sinks.base import SinkContext
from edged.store import Store
from tests.beat.support import T0, HandClock, Live, changed, copy_job

SINK = {
    "type": "pages", "input": "r", "stream": "rows", "page": "64KiB", "partitions": 32,
    "partition_by": ["key"],
}  # fmt: skip
JOB = changed(copy_job(), promises={"memory": "1MiB"}, sinks={"rows": SINK})


def run(live, beats, seed):
    rng = random.Random(seed)
    for n in range(beats):
        rows = [(int(rng.paretovariate(0.8)) % 500, T0 + n, i) for i in range(2000)]
        live.send("r", rows)
        live.beat(flush=rng.random() < 0.1)


@pytest.mark.parametrize("seed", range(2))
def test_open_pages_stay_within_their_share_and_a_replay_gives_the_same_pages(tmp_path, seed):
    with Live(JOB, tmp_path / "store") as live:
        run(live, 30, seed)
        sink = live.job.sinks["rows"]
        assert live.job.open_page_shares == {"rows": 256 << 10}
        early = [facts.sealed_early for facts in live.facts]
        assert {} in early and {"rows": 256 << 10} in early
        assert sink.counters()["pages_early"] > 0
        assert sink.counters()["open_bytes"] <= 256 << 10
        state = {name: array.tobytes() for name, array in live.job.save().items()}
    pool = Workers(2)
    for memory in ("1MiB", "512MiB", "1MiB"):  # the record decides, not the job's memory of now
        plan = parse_job(changed(JOB, promises={"memory": memory}))
        with Store.open(tmp_path / "store") as store:
            context = SinkContext("device", store.device_epoch, "/nonexistent", pool)
            found = recover(store, [plan], context, HandClock())
        assert {n: a.tobytes() for n, a in found.jobs[0].save().items()} == state
    pool.close()


def test_a_record_has_the_limit_only_where_pages_were_sealed_early():
    with Live(JOB) as live:
        live.send("r", [(1, T0, 1)])
        facts = BeatFacts(0, {"copying": live.beat()})
        assert b"sealed_early" not in facts.encode()
        assert BeatFacts.decode(facts.encode()).jobs["copying"].sealed_early == {}
        facts.jobs["copying"].sealed_early = {"rows": 5}
        assert BeatFacts.decode(facts.encode()).jobs["copying"].sealed_early == {"rows": 5}
