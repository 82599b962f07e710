"""Jobs written in Python: the same documents as the TOML examples."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from edged.documents.reader import load_document
from edged.errors import JobError
from edged.job.builder import Job, file, generator, tcp
from edged.job.plan import load_job

EXAMPLES = Path(__file__).parents[2] / "examples"


def power_curve():
    job = Job("power_curve").promise(
        latency="1s", ack_within="500ms", memory="512MiB", durability="exactly_once"
    )
    listen = tcp("127.0.0.1:7400")
    power = job.stream(
        "power",
        listen,
        {
            "turbine": "string",
            "time": "timestamp",
            "power_kw": "float64?",
            "pitch_deg": "float64?",
        },
        time="time",
        idle_after="30min",
    )
    wind = job.stream(
        "wind",
        listen,
        {
            "turbine": "string",
            "time": "timestamp",
            "wind_m_s": "float64?",
            "direction_deg": "float64?",
            "outdoor_c": "float64?",
        },
        time="time",
        idle_after="30min",
    )
    joined = power.join("joined", wind, on=["turbine"], before="5min", after="5min")
    joined.filter("producing", "power_kw > 0").pages(
        "curve", stream="curve", version=1, partitions=4, partition_by=["turbine"], page="1MiB"
    )
    power.window(
        "daily",
        {"readings": "count(power_kw)", "power_sum": "sum(power_kw)"},
        keys=["turbine"],
        size="1d",
    ).pages("energy", stream="energy", version=1)
    return job


def quickstart():
    job = Job("quickstart")
    readings = job.stream(
        "readings",
        generator(1000, key="sensor", keys="zipf", key_max=20),
        {"sensor": "int32", "time": "timestamp", "celsius": "float64"},
        time="time",
    )
    readings.window(
        "minutes",
        {"n": "count(*)", "celsius": "mean(celsius)"},
        keys=["sensor"],
        size="1min",
    ).file("out", "out/minutes", format="ndjson")
    return job


@pytest.mark.parametrize("make", [power_curve, quickstart])
def test_the_builder_makes_the_document_of_the_example(make):
    assert make().document() == load_document(EXAMPLES / f"{make.__name__}.toml")


@pytest.mark.parametrize("make", [power_curve, quickstart])
def test_the_builder_and_the_example_give_the_same_plan(make):
    built, read = make().plan(), load_job(EXAMPLES / f"{make.__name__}.toml")
    assert built.order == read.order
    assert built.links == read.links
    assert built.inputs == read.inputs
    assert [built.operators[i].signature() for i in built.order] == [
        read.operators[i].signature() for i in read.order
    ]
    assert [s.signature() for s in built.sinks.values()] == [
        s.signature() for s in read.sinks.values()
    ]


def small():
    job = Job("small")
    columns = {"k": "int32", "t": "timestamp"}
    a = job.stream("a", generator("full"), columns, time="t", late="dead_letter")
    b = job.stream("b", file("b.csv", pace="60x"), columns, time="t", lateness="1s")
    return job, a, b


def test_a_saved_job_is_read_back_the_same(tmp_path):
    job, a, b = small()
    a.union("all", b, a.late).pages("out")
    job.save(tmp_path / "job.json")
    plan = load_job(tmp_path / "job.json")
    assert plan.document == job.document()
    assert plan.inputs["all"] == ("a", "b", "a.late")


def test_durations_may_be_timedeltas():
    job, a, b = small()
    minute = datetime.timedelta(minutes=1)
    a.join("j", b, on=["k"], before=minute, after=datetime.timedelta(microseconds=1)).pages("out")
    job.promise(latency=minute)
    document = job.document()
    assert document["operators"]["j"]["before"] == 60_000_000
    assert document["operators"]["j"]["after"] == 1
    assert job.plan().promises.latency_us == 60_000_000


def test_any_registered_type_can_be_named():
    job, a, _ = small()
    job.operator("all", "union", inputs=[a, "b"]).to("out", "pages", page=65536)
    job.sink("late", "pages", a.late)
    assert job.plan().order == ("all",)


def test_an_id_that_stands_already_is_refused():
    _, a, b = small()
    a.union("all", b)
    with pytest.raises(JobError, match=r"operators\.all: is there already"):
        b.union("all", a)


def test_what_is_wrong_is_refused_when_the_plan_is_made():
    job, a, b = small()
    a.union("all", b, "c").pages("out")
    with pytest.raises(JobError, match=r"operators\.all\.inputs\[2\]: no stream or operator"):
        job.plan()


def test_a_document_is_a_copy():
    job, a, _ = small()
    a.pages("out")
    job.document()["streams"].clear()
    assert set(job.document()["streams"]) == {"a", "b"}
