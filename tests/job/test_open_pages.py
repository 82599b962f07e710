"""Open pages are part of a job's memory: their shares, and what cannot fit."""

from __future__ import annotations

import pytest

from edged.errors import JobError
from edged.job.explain import explain
from edged.job.open_pages import OPEN_PAGES_SHARE, open_page_shares
from edged.job.plan import parse_job
from edged.pages.room import ROOM_BYTES_MIN
from tests.beat.support import changed, copy_job


def job(memory, **sinks):
    tables = {
        name: {
            "type": "pages", "input": "r", "stream": name, "page": page,
            "partitions": partitions, "partition_by": ["key"],
        }
        for name, (partitions, page) in sinks.items()
    }  # fmt: skip
    return {**changed(copy_job(), promises={"memory": memory}), "sinks": tables}


def shares(document):
    plan = parse_job(document)
    return open_page_shares(plan.promises.memory_bytes, plan.sinks)


def test_a_sink_takes_no_more_than_whole_pages_in_all_partitions():
    assert shares(job("512MiB", a=(4, "1MiB"), b=(1, "64KiB"))) == {"a": 4 << 20, "b": 64 << 10}


def test_what_is_there_is_shared_in_proportion():
    found = shares(job("64MiB", a=(64, "1MiB"), b=(64, "512KiB"), c=(1, "4KiB")))
    assert found["c"] == 4 << 10
    assert sum(found.values()) <= (64 << 20) // OPEN_PAGES_SHARE
    assert found["a"] == pytest.approx(2 * found["b"], rel=0.05)
    assert found["b"] >= 64 * ROOM_BYTES_MIN


def test_a_sink_may_always_fill_one_page():
    assert shares(job("1MiB", a=(2, "16MiB"))) == {"a": 16 << 20}


def test_a_sink_without_pages_has_no_share():
    document = job("1MiB")
    document["sinks"]["f"] = {"type": "file", "input": "r", "path": "/tmp/out"}
    assert shares(document) == {}


def test_more_partitions_than_the_memory_holds_are_refused():
    assert shares(job("64MiB", a=(4096, "1MiB"))) == {"a": 16 << 20}
    with pytest.raises(JobError) as caught:
        parse_job(job("63MiB", a=(4096, "1MiB")))
    assert caught.value.path == "promises.memory"
    assert "at least 16MiB" in caught.value.problem and "64MiB" in caught.value.advice


def test_explain_says_what_open_pages_may_take():
    sinks = explain(parse_job(job("64MiB", a=(256, "1MiB"))))["sinks"]
    assert sinks["a"]["open_bytes_max"] == 16 << 20
    text = "open pages take up to 16MiB of the job's memory, then the largest are sealed early"
    assert text in sinks["a"]["does"]
    sinks = explain(parse_job(job("64MiB", a=(2, "1MiB"))))["sinks"]
    assert "open pages take up to 2MiB of the job's memory" in sinks["a"]["does"]
