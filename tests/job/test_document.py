"""Job documents: valid ones become plans, faults are reported with their path."""

from __future__ import annotations

import copy
import json
import textwrap
from functools import reduce
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.data.schema import TYPES, type_named
from edged.documents import reader as doc
from edged.errors import JobError
from edged.job.plan import faults, load_job, parse_job
from edged.job.plan_warnings import warnings
from edged.job.state_carryover import compare
from tests.whole import examples

TOML = textwrap.dedent(
    """
    name = "farm"
    [promises]
    latency = "2s"
    ack_within = "500ms"
    memory = "64MiB"
    durability = "results"
    [streams.power]
    source = { type = "generator", rate = 10 }
    columns = { turbine = "string", time = "timestamp", kw = "float64?" }
    time = "time"
    lateness = "3s"
    late = "dead_letter"
    [streams.wind]
    source = { type = "generator", rate = 10 }
    columns = { turbine = "string", time = "timestamp", speed = "float64?" }
    time = "time"
    [streams.spare]
    source = { type = "generator", rate = 10 }
    columns = { turbine = "string", time = "timestamp", kw = "float64?" }
    time = "time"
    lateness = 7
    [operators.joined]
    type = "interval_join"
    left = "all"
    right = "wind"
    on = ["turbine"]
    before = "1min"
    [operators.all]
    type = "union"
    inputs = ["power", "spare"]
    [sinks.out]
    type = "pages"
    input = "joined"
    stream = "joined"
    [sinks.lost]
    type = "pages"
    input = "power.late"
    """
)
GOOD = doc.loads(TOML)


def changed(path, value):
    """GOOD with the value at a dotted path replaced, or removed where value is ..."""
    document = copy.deepcopy(GOOD)
    *parents, last = path.split(".")
    table = reduce(lambda t, k: t[k], parents, document)
    if value is ...:
        del table[last]
    else:
        table[last] = value
    return document


def test_a_document_becomes_a_plan():
    plan = parse_job(GOOD)
    assert plan.name == "farm"
    assert plan.document == GOOD
    p = plan.promises
    assert (p.latency_us, p.ack_within_us, p.memory_bytes) == (2_000_000, 500_000, 64 << 20)
    assert p.durability == "results"
    power = plan.streams["power"]
    assert [(f.name, f.dtype.name, f.nullable) for f in power.schema] == [
        ("turbine", "string", False),
        ("time", "timestamp", False),
        ("kw", "float64", True),
    ]
    assert (power.lateness_us, power.late) == (3_000_000, "dead_letter")
    assert (power.idle_after_us, power.max_ahead_us) == (10_000_000, 3_600_000_000)
    assert power.max_behind_us == 3_600_000_000
    assert plan.streams["spare"].lateness_us == 7
    assert plan.order == ("all", "joined")
    assert plan.inputs == {
        "all": ("power", "spare"),
        "joined": ("all", "wind"),
        "out": ("joined",),
        "lost": ("power.late",),
    }
    assert plan.links["all"].disorder_us == 3_000_000
    assert plan.links["power.late"].schema == power.schema
    assert plan.readers("power") == ("all",)
    assert warnings(plan) == []


def test_promises_have_defaults_and_acks_wait_no_longer_than_results():
    p = parse_job(changed("promises", ...)).promises
    assert (p.latency_us, p.ack_within_us, p.memory_bytes) == (1_000_000, 1_000_000, 512 << 20)
    assert p.durability == "exactly_once"
    p = parse_job(changed("promises", {"latency": "100ms"})).promises
    assert p.ack_within_us == 100_000


def test_toml_and_json_files_give_the_same_plan(tmp_path):
    (tmp_path / "job.toml").write_text(TOML)
    (tmp_path / "job.json").write_text(json.dumps(GOOD))
    (tmp_path / "job").write_text(json.dumps(GOOD))
    plans = [load_job(tmp_path / name) for name in ("job.toml", "job.json", "job")]
    assert plans[0].document == plans[1].document == plans[2].document
    assert [p.order for p in plans] == [("all", "joined")] * 3


def test_toml_dates_are_the_text_that_json_would_hold():
    document = doc.loads("a = 2024-01-01T00:00:00Z\nb = 2024-01-01")
    assert document == {"a": "2024-01-01T00:00:00+00:00", "b": "2024-01-01"}


WRONG = [
    ("name", ..., r"name: is missing"),
    ("name", "Farm", r"name: 'Farm' is not a name"),
    ("name", 3, r"name: 3 is not text"),
    ("name", "a" * 64, r"name: .* is not a name"),
    ("extra", 1, r"extra: unknown key"),
    ("operaters", {}, r"operaters: unknown key \(did you mean operators\?\)"),
    ("streams", ..., r"streams: is missing"),
    ("streams", {}, r"streams: is empty"),
    ("streams", [], r"streams: \[\] is not a table"),
    ("sinks", {}, r"sinks: is empty"),
    ("promises", 1, r"promises: 1 is not a table"),
    ("promises.latensy", "1s", r"promises.latensy: unknown key \(did you mean latency\?\)"),
    ("promises.latency", "soon", r"promises.latency: 'soon' is not a duration"),
    ("promises.latency", "0s", r"promises.latency: .*too short"),
    ("promises.ack_within", "3s", r"promises.ack_within: is longer than latency"),
    ("promises.memory", "1B", r"promises.memory: .*out of range"),
    ("promises.durability", "exactly-once", r"promises.durability: .*did you mean exactly_once"),
    ("streams.Bad", {}, r"streams.Bad: 'Bad' is not a name"),
    ("streams.power", 3, r"streams.power: 3 is not a table"),
    ("streams.power.source", ..., r"streams.power.source: is missing"),
    ("streams.power.source", "tcp", r"streams.power.source: 'tcp' is not a table"),
    ("streams.power.source.type", ..., r"streams.power.source.type: is missing"),
    ("streams.power.source.type", "generater", r"source.type: .*did you mean generator"),
    ("streams.power.source.rat", 1, r"streams.power.source.rat: unknown key .*rate"),
    ("streams.power.columns", ..., r"streams.power.columns: is missing"),
    ("streams.power.columns", {}, r"streams.power.columns: is empty"),
    ("streams.power.columns", ["a"], r"streams.power.columns: .* is not a table"),
    ("streams.power.columns.kw", "float", r"columns.kw: 'float' is not a type .*float"),
    ("streams.power.columns.kw", "float64??", r"columns.kw: 'float64\?\?' is not a type"),
    ("streams.power.columns.kw", 64, r"columns.kw: 64 is not text"),
    ("streams.power.columns.k w", "int8", r"columns.k w: 'k w' is not a column's name"),
    ("streams.power.columns.KW", "int8", r"columns.KW: differs from kw only in case"),
    ("streams.power.time", ..., r"streams.power.time: is missing"),
    ("streams.power.time", "tim", r"streams.power.time: .*did you mean time\?"),
    ("streams.power.time", "kw", r"streams.power.time: kw is float64\?"),
    ("streams.power.columns.time", "timestamp?", r"streams.power.time: time is timestamp\?"),
    ("streams.power.weight", "kv", r"streams.power.weight: no column is called kv"),
    ("streams.power.weight", "kw", r"streams.power.weight: kw is float64\? .*int32, not null"),
    ("streams.power.weight", 1, r"streams.power.weight: 1 is not text"),
    ("streams.power.lateness", "-1s", r"streams.power.lateness: .*too short"),
    ("streams.power.idle_after", 0, r"streams.power.idle_after: .*too short"),
    ("streams.power.max_ahead", 1.5, r"streams.power.max_ahead: 1.5 is not a duration"),
    ("streams.power.late", "dropp", r"streams.power.late: .*did you mean drop\?"),
    ("streams.power.late", "drop", r"sinks.lost.input: power.late does not exist .*dead_letter"),
    ("operators.joined.type", ..., r"operators.joined.type: is missing"),
    ("operators.joined.type", "join", r"operators.joined.type: 'join' is not a type"),
    ("operators.joined.left", ..., r"operators.joined.left: is missing"),
    ("operators.joined.left", "al", r"operators.joined.left: .*called al \(did you mean all\?\)"),
    ("operators.joined.left", ["all"], r"operators.joined.left: \['all'\] is not text"),
    ("operators.joined.left", "out", r"operators.joined.left: no stream or operator"),
    ("operators.joined.beforr", "1s", r"operators.joined.beforr: unknown key .*before"),
    ("operators.joined.on", ["turbin"], r"operators.joined.on"),
    ("operators.all.inputs", "power", r"operators.all.inputs: 'power' is not a list"),
    ("operators.all.inputs", [], r"operators.all.inputs: is empty"),
    (
        "operators.all.inputs",
        ["power", "power"],
        r"operators.all.inputs\[1\]: power is named twice",
    ),
    ("operators.all.inputs", ["power", "spar"], r"operators.all.inputs\[1\]: .*mean spare"),
    ("operators.all.inputs", ["power", "wind"], r"operators.all.inputs\[1\]: lacks the column kw"),
    ("operators.power", {"type": "union", "inputs": ["wind"]}, r"operators.power: streams.power"),
    ("sinks.joined", {"type": "pages", "input": "all"}, r"sinks.joined: operators.joined has the"),
    ("sinks.out.input", ..., r"sinks.out.input: is missing"),
    ("sinks.out.type", "page", r"sinks.out.type: .*did you mean pages\?"),
    ("sinks.out.pag", "1MiB", r"sinks.out.pag: unknown key .*page"),
    ("sinks.lost.stream", "joined", r"sinks.lost: sinks.out ships pages of joined already"),
]


@pytest.mark.parametrize(("path", "value", "message"), WRONG)
def test_what_is_wrong_is_refused_with_the_path_to_it(path, value, message):
    with pytest.raises(JobError, match=message) as fault:
        parse_job(changed(path, value))
    assert fault.value.exit_code == 65


def test_a_cycle_is_named():
    document = changed("operators.all.inputs", ["power", "back"])
    document["operators"]["back"] = {"type": "union", "inputs": ["joined"]}
    with pytest.raises(JobError, match=r"is in a cycle: joined ← all ← back ← joined"):
        parse_job(document)
    assert len(faults(document)) == 1


def test_an_operator_that_reads_itself_is_a_cycle():
    document = changed("operators.all.inputs", ["all"])
    with pytest.raises(JobError, match=r"operators.all: is in a cycle: all ← all"):
        parse_job(document)


def test_every_independent_fault_is_reported_and_what_follows_from_one_is_not():
    document = copy.deepcopy(GOOD)
    document["name"] = "?"
    document["promises"]["latency"] = "never"
    document["streams"]["power"]["columns"]["kw"] = "float"
    document["streams"]["wind"]["time"] = "when"
    document["operators"]["joined"]["typo"] = 1
    document["sinks"]["out"]["typo"] = 1
    document["sinks"]["lost"]["input"] = "nobody"
    paths = [fault.path for fault in faults(document)]
    assert paths == [
        "name", "promises.latency", "streams.power.columns.kw", "streams.wind.time",
        "operators.joined.typo", "sinks.out.typo", "sinks.lost.input",
    ]  # fmt: skip


def test_all_faults_of_one_part_are_reported():
    document = copy.deepcopy(GOOD)
    document["promises"] |= {"latency": "never", "memory": "much", "durability": "maybe"}
    document["streams"]["wind"] |= {"lateness": "?", "late": "eat", "source": {"type": "no"}}
    document["streams"]["spare"]["columns"] |= {"kw": "float", "other": "text"}
    document["operators"] |= {
        "m": {
            "type": "map", "input": "power",
            "columns": {"time": "time", "a": "nope + 1", "b": "sum(kw)", "c": "kw +"},
        },
        "w": {
            "type": "window", "input": "power", "keys": ["x"], "size": "1s", "every": "2s",
            "aggregates": {"n": "count(*)", "s": "sum(z)", "t": "med(kw)"},
        },
        "j": {
            "type": "interval_join", "left": "power", "right": "power", "on": ["a", "b"],
            "before": "?", "columns": {"time": "left.time", "q": "right.q"}, "kernel": "fast",
        },
    }  # fmt: skip
    document["sinks"]["lost"] |= {"partitions": 2, "capacity": "1TiB", "version": 0}
    paths = {fault.path for fault in faults(document)}
    assert paths >= {
        "promises.latency", "promises.memory", "promises.durability", "streams.wind.lateness",
        "streams.wind.late", "streams.wind.source.type", "streams.spare.columns.kw",
        "streams.spare.columns.other", "operators.m.columns.a", "operators.m.columns.b",
        "operators.m.columns.c", "operators.w.keys[0]", "operators.w.every",
        "operators.w.aggregates.s", "operators.w.aggregates.t", "operators.j.on[0]",
        "operators.j.on[1]", "operators.j.before", "operators.j.columns.q", "operators.j.kernel",
        "sinks.lost.partitions", "sinks.lost.capacity", "sinks.lost.version",
    }  # fmt: skip


def test_a_part_that_nobody_reads_is_a_warning():
    document = changed("sinks.out.input", "power")
    document["streams"]["spare"]["late"] = "dead_letter"
    assert warnings(parse_job(document)) == [
        "streams.spare: no reader of its late rows, spare.late",
        "operators.joined: no reader",
    ]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "name = \nx = 1", "is not TOML.*line 1"),
        ("a.toml", "a = 1\na = 2", "is not TOML"),
        ("a.json", '{"a": 1, "a": 2}', "'a' stands twice"),
        ("a.json", '{"a": NaN}', "NaN is not a JSON number"),
        ("a.json", "[1]", "is not a table"),
        ("a.json", "{", "is not JSON"),
        ("a.json", '{"a": ' + "[" * 200_000, "nested deeper than 32 levels"),
        ("a.toml", "a = " + "[" * 200_000, "nested deeper than 32 levels"),
        ("a.toml", b"\xff", "is not UTF-8"),
    ],
)
def test_files_that_do_not_parse_are_refused_by_their_name(tmp_path, name, text, message):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(JobError, match=message) as fault:
        load_job(path)
    assert str(path) in str(fault.value)


def test_a_file_that_is_not_there_is_refused_by_its_name(tmp_path):
    with pytest.raises(JobError, match=r"none.toml: cannot be read: No such file"):
        load_job(tmp_path / "none.toml")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
leaves = st.sampled_from(
    [path for path, _, _ in WRONG if path.split(".")[-1] in str(GOOD) and path != "streams.Bad"]
)


@settings(max_examples=examples(200), deadline=None)
@given(leaves, json_values)
def test_no_value_anywhere_is_answered_with_anything_but_a_job_error(path, value):
    for fault in faults(changed(path, value)):
        assert isinstance(fault, JobError)
        assert fault.path


@settings(max_examples=examples(50), deadline=None)
@given(
    st.dictionaries(
        st.from_regex(r"[a-z_][a-z0-9_]{0,9}", fullmatch=True),
        st.tuples(st.sampled_from(sorted(TYPES)), st.booleans()),
        max_size=8,
    )
)
def test_columns_keep_their_order_types_and_nullability(columns):
    columns.pop("t", None)
    written = {name: kind + "?" * nullable for name, (kind, nullable) in columns.items()}
    document = changed("streams.spare.columns", {**written, "t": "timestamp"})
    document["streams"]["spare"]["time"] = "t"
    document["operators"]["all"]["inputs"] = ["power"]
    schema = parse_job(document).streams["spare"].schema
    got = [(f.name, (f.dtype.name, f.nullable)) for f in schema]
    assert got == [*columns.items(), ("t", ("timestamp", False))]


# --- what a replaced job keeps -------------------------------------------------------------------


def test_an_equal_job_keeps_everything_that_has_state():
    carry = compare(parse_job(GOOD), parse_job(GOOD))
    assert carry.kept == (
        "streams.power", "streams.wind", "streams.spare", "operators.joined", "sinks.out",
        "sinks.lost",
    )  # fmt: skip
    assert carry.dropped == ()
    carry.check()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            "operators.joined.before",
            "2min",
            r'operators.joined: its state does not fit: before was "1min", is "2min"',
        ),
        (
            "sinks.lost.partitions",
            2,
            r"sinks.lost: its state does not fit: partitions was not there, is 2",
        ),
        ("streams.wind.columns.speed", "float32", r"streams.wind.columns: .*speed was float64\?"),
        ("streams.wind.columns.gust", "float32", r"streams.wind.columns: .*gust was not there"),
    ],
)
def test_a_changed_part_is_refused_under_its_old_id(path, value, message):
    document = changed(path, value)
    if path == "sinks.lost.partitions":
        document["sinks"]["lost"]["partition_by"] = ["turbine"]
    carry = compare(parse_job(GOOD), parse_job(document))
    with pytest.raises(JobError, match=message):
        carry.check()


def test_a_refusal_names_the_changed_column_of_an_input_and_no_key_that_may_change():
    document = copy.deepcopy(GOOD)
    document["operators"]["joined"] |= {"kernel": "bucket", "after": "0s", "on": ["turbine"]}
    compare(parse_job(GOOD), parse_job(document)).check()
    mapped = {"type": "map", "input": "wind", "columns": {"turbine": "turbine", "time": "time"}}
    document["operators"]["slow"] = mapped
    document["operators"]["joined"]["right"] = "slow"
    (refusal, _) = compare(parse_job(GOOD), parse_job(document)).refused
    assert refusal.problem == ("its state does not fit: in its input slow, speed is gone")


def test_promises_sources_and_limits_may_change_at_any_time():
    document = changed("promises.latency", "9s")
    document["streams"]["wind"]["source"]["rate"] = 99
    document["streams"]["wind"]["idle_after"] = "1min"
    document["streams"]["wind"]["late"] = "process"
    carry = compare(parse_job(GOOD), parse_job(document))
    carry.check()
    assert "streams.wind" in carry.kept


def test_new_parts_start_and_old_ones_are_forgotten():
    document = changed("sinks.lost", ...)
    document["sinks"]["winds"] = {"type": "pages", "input": "wind"}
    carry = compare(parse_job(GOOD), parse_job(document))
    carry.check()
    assert "sinks.winds" in carry.new
    assert carry.dropped == ("sinks.lost",)
    assert "forgets sinks.lost" in carry.lines()


def test_pages_of_a_stream_may_not_move_to_another_sink():
    document = changed("sinks.lost", ...)
    document["sinks"]["found"] = {"type": "pages", "input": "power.late", "stream": "lost"}
    carry = compare(parse_job(GOOD), parse_job(document))
    with pytest.raises(JobError, match=r"sinks.found: lost is shipped by sinks.lost"):
        carry.check()


# --- the documentation ---------------------------------------------------------------------------


def test_the_documented_types_are_the_types():
    text = (Path(__file__).parents[2] / "docs" / "jobs.md").read_text()
    section = text.split("## Types")[1].split("##")[0]
    rows = [line.replace("`", "").split("|")[1:-1] for line in section.splitlines() if "|" in line]
    told = {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows[2:]}
    listed = type_named("float32[64]")
    assert told.pop("float32[64]: a [list](#lists)") == [
        "length × item", f"{listed.numpy.name} and offsets", str(listed.arrow), listed.spark
    ]  # fmt: skip
    assert told == {
        name: [
            str(t.width) if t.width else "any",
            t.numpy.name + (" and offsets" if t.variable else ""),
            str(t.arrow),
            t.spark,
        ]
        for name, t in TYPES.items()
    }
