"""`[tables.x]` in job documents: terms, faults with their path, and what a replacement keeps."""

import copy

import pytest

from edged.data.table_terms import TableTerms
from edged.documents import reader as doc
from edged.errors import JobError
from edged.job.builder import Job, file, tcp
from edged.job.explain import explain, paths
from edged.job.footprint import footprint_of
from edged.job.plan import faults, parse_job
from edged.job.plan_warnings import warnings
from edged.job.state_carryover import compare

TOML = """
name = "plant"
[streams.readings]
source = { type = "tcp", listen = "127.0.0.1:7400" }
columns = { device = "string", time = "timestamp", raw = "float64" }
time = "time"
[tables.devices]
source = { type = "file", path = "devices.csv" }
columns = { device = "string", site = "string", change = "int32" }
key = ["device"]
changes = "weight:change"
role = "static"
compact = "never"
missing = "owe"
[sinks.out]
type = "pages"
input = "readings"
"""
GOOD = doc.loads(TOML)


def changed(**terms):
    """GOOD with other terms of the table; None removes one."""
    document = copy.deepcopy(GOOD)
    for name, value in terms.items():
        if value is None:
            del document["tables"]["devices"][name]
        else:
            document["tables"]["devices"][name] = value
    return document


def fault(document):
    (found,) = faults(document)
    return found


def test_a_table_is_read_like_a_stream_and_has_no_time():
    plan = parse_job(GOOD)
    table = plan.streams["devices"]
    assert table.table == TableTerms(("device",), "weight:change", "static", "never", "owe")
    assert table.time == "" and table.section == "tables"
    link = plan.links["devices"]
    assert (link.weight, link.time, link.table) == ("change", "", table.table)
    assert plan.streams["readings"].section == "streams"


def test_terms_have_defaults():
    document = changed(key=None, changes=None, role=None, compact=None, missing=None)
    assert parse_job(document).streams["devices"].table == TableTerms()


@pytest.mark.parametrize(
    ("terms", "path"),
    [
        ({"changes": "sometimes"}, "tables.devices.changes"),
        ({"changes": "weight:chnge"}, "tables.devices.changes"),
        ({"changes": "weight:site"}, "tables.devices.changes"),
        ({"changes": "upsert", "key": None}, "tables.devices.key"),
        ({"key": ["devise"]}, "tables.devices.key[0]"),
        ({"key": ["change"]}, "tables.devices.key[0]"),
        ({"key": []}, "tables.devices.key"),
        ({"role": "quick"}, "tables.devices.role"),
        ({"compact": "often"}, "tables.devices.compact"),
        ({"missing": "ignore"}, "tables.devices.missing"),
        ({"time": "time"}, "tables.devices.time"),
        ({"source": {"type": "file", "path": "d.csv", "pace": 2}}, "tables.devices.source.pace"),
    ],
)
def test_a_faulty_table_is_refused_with_its_path(terms, path):
    assert fault(changed(**terms)).path == path


def test_a_key_is_not_null():
    document = changed(columns={"device": "string?", "change": "int32"})
    assert fault(document).path == "tables.devices.key[0]"


def test_a_table_feeds_no_sink_and_no_stream_operator():
    document = changed()
    document["sinks"]["out"]["input"] = "devices"
    assert "is a table" in str(fault(document))
    document = changed()
    document["operators"] = {"some": {"type": "filter", "input": "devices", "where": "true"}}
    assert "is a table" in str(fault(document))


def test_names_are_unique_over_tables_too():
    document = changed()
    document["tables"]["readings"] = document["tables"].pop("devices")
    assert "same name" in str(faults(document)[0])


def test_tables_need_their_inputs_in_the_log():
    document = changed()
    document["promises"] = {"durability": "results"}
    assert fault(document).path == "promises.durability"


def test_a_table_without_a_reader_is_a_warning_of_its_section():
    assert "tables.devices: no reader" in warnings(parse_job(GOOD))


def test_a_replacement_keeps_a_table_and_refuses_other_columns():
    old = parse_job(GOOD)
    assert "tables.devices" in compare(old, parse_job(changed(compact="auto"))).kept
    new = parse_job(changed(columns={"device": "string", "change": "int32"}))
    with pytest.raises(JobError, match=r"tables\.devices\.columns"):
        compare(old, new).check()


def test_explain_and_footprint_have_the_table(tmp_path):
    plan = parse_job(GOOD)
    facts = explain(plan)
    assert set(facts["streams"]) == {"readings"}
    assert facts["tables"]["devices"]["changes"] == "weight:change"
    assert "tables" not in explain(parse_job({k: v for k, v in GOOD.items() if k != "tables"}))
    assert paths(plan, tmp_path)["tables.devices"].endswith("devices.csv")
    assert footprint_of(plan).listeners == [["tcp:127.0.0.1:7400", "readings"]]


def test_the_builder_makes_the_same_document():
    job = Job("plant")
    columns = {"device": "string", "time": "timestamp", "raw": "float64"}
    readings = job.stream("readings", tcp("127.0.0.1:7400"), columns, time="time")
    job.table(
        "devices",
        file("devices.csv"),
        {"device": "string", "site": "string", "change": "int32"},
        key=["device"],
        changes="weight:change",
        role="static",
        compact="never",
        missing="owe",
    )
    readings.pages("out")
    assert job.document() == GOOD
