"""The aggregation's document: what is accepted, and refusals with the path to the fault."""

import copy

import pytest

from edged.central.column_pruning import needed_columns
from edged.central.spec import Merge, load_spec, parse_spec
from edged.errors import JobError

GOOD = {
    "streams": {"curve": "curve@1", "daily": "daily"},
    "tables": {
        "power": {
            "from": "curve",
            "sql": "SELECT turbine, count(*) AS n FROM curve GROUP BY turbine",
            "keys": ["turbine"],
            "merge": {
                "n": "sum",
                "lo": "min",
                "p": {"moments": ["p_n", "p_mean", "p_m2"]},
                "time": "max",
                "state": {"last_by": "time"},
            },
            "view": "SELECT * FROM this",
        },
        "raw": {
            "from": "daily",
            "mode": "append",
            "sql": "SELECT * FROM daily",
            "watermark": {"column": "time", "delay": "1h30min"},
            "format": "json",
        },
    },
}


def test_a_spec_becomes_streams_and_tables():
    spec = parse_spec(GOOD)
    assert spec.streams == {"curve": "curve@1", "daily": "daily"}
    power, raw = spec.tables["power"], spec.tables["raw"]
    assert power.mode == "merge" and power.keys == ("turbine",) and power.format == "parquet"
    assert power.merge[2] == Merge("moments", ("p_n", "p_mean", "p_m2"))
    assert power.merge[4] == Merge("last_by", ("state",), "time")
    assert raw.watermark == ("time", 5_400_000_000) and raw.format == "json"


def test_toml_and_json_make_the_same_spec(tmp_path):
    toml = tmp_path / "spec.toml"
    toml.write_text(
        '[streams]\ncurve = "curve@1"\n[tables.t]\nfrom = "curve"\nkeys = ["k"]\n'
        'sql = "SELECT k, count(*) AS n FROM curve GROUP BY k"\nmerge = { n = "count" }\n'
    )
    json = tmp_path / "spec.json"
    json.write_text(
        '{"streams": {"curve": "curve@1"}, "tables": {"t": {"from": "curve", "keys": ["k"], '
        '"sql": "SELECT k, count(*) AS n FROM curve GROUP BY k", "merge": {"n": "sum"}}}}'
    )
    assert load_spec(toml) == load_spec(json)


FAULTS = [
    ("tables.power.form", lambda d: d["tables"]["power"].update(form=1)),
    ("tables.power.from", lambda d: d["tables"]["power"].update({"from": "curv"})),
    ("tables.power.sql", lambda d: d["tables"]["power"].pop("sql")),
    ("tables.power.mode", lambda d: d["tables"]["power"].update(mode="replace")),
    ("tables.power.keys", lambda d: d["tables"]["power"].pop("keys")),
    ("tables.power.merge.n", lambda d: d["tables"]["power"]["merge"].update(n="average")),
    ("tables.power.merge.p.moments", lambda d: d["tables"]["power"]["merge"].update(
        p={"moments": ["n1", "m1"]})),
    ("tables.power.merge.p.comoments", lambda d: d["tables"]["power"]["merge"].update(
        p={"comoments": ["n1", "x", "y"]})),
    ("tables.power.merge.p", lambda d: d["tables"]["power"]["merge"].update(
        p={"moments": ["n", "m1", "m2"]})),
    ("tables.power.merge.state", lambda d: d["tables"]["power"]["merge"].pop("time")),
    ("tables.power.format", lambda d: d["tables"]["power"].update(format="avro")),
    ("tables.raw.keys", lambda d: d["tables"]["raw"].update(keys=["a"])),
    ("tables.raw.watermark.delay", lambda d: d["tables"]["raw"]["watermark"].update(delay="soon")),
    ("tables.Power", lambda d: d["tables"].update(Power=d["tables"]["power"])),
    ("streams.curve", lambda d: d["streams"].update(curve="curve@one")),
    ("tables", lambda d: d.update(tables={})),
    ("sinks", lambda d: d.update(sinks={})),
]  # fmt: skip


@pytest.mark.parametrize(("path", "break_it"), FAULTS, ids=[path for path, _ in FAULTS])
def test_a_fault_is_refused_with_its_path(path, break_it):
    document = copy.deepcopy(GOOD)
    break_it(document)
    with pytest.raises(JobError) as refusal:
        parse_spec(document)
    assert refusal.value.path == path


@pytest.mark.parametrize(
    ("sql", "needed"),
    [
        ("SELECT a, count(*) AS n FROM t GROUP BY a", ["a"]),
        ("SELECT A, sum(`b` * 2) FROM t WHERE c > 1 GROUP BY 1", ["a", "b", "c"]),
        ("SELECT * FROM t", ["a", "b", "c", "d"]),
        ("SELECT t.* FROM t", ["a", "b", "c", "d"]),
        ("SELECT count(*) FROM t", ["a"]),
        ("SELECT x FROM (SELECT max(d) AS x FROM t GROUP BY window(b, '1 day')) q", ["b", "d"]),
        ("SELECT a FROM t WHERE 'open", ["a", "b", "c", "d"]),
        ("TABLE t", ["a", "b", "c", "d"]),
        ("FROM t |> WHERE a > 1", ["a", "b", "c", "d"]),
    ],
)
def test_only_the_columns_that_a_query_names_are_decoded(sql, needed):
    assert needed_columns(sql, ["a", "b", "c", "d"]) == needed
