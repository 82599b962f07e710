"""Graph documents: what they are cut into, and what is refused with which path."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from edged.cli.graph import command
from edged.documents.reader import loads
from edged.graph.builder import Graph
from edged.graph.check import check
from edged.graph.document import read
from edged.graph.jobs import jobs
from edged.graph.placement import DaemonLoad, place
from edged.graph.stages import cut
from tests.graph.support import READINGS, daemons, farm, lonely, written


def cut_of(document):
    plan, wrong = read(document)
    assert not wrong, wrong
    return cut(plan)


def paths_of(document):
    return [fault.path for fault in check(document)[1]]


def changed(document, path, value):
    """The document with another value at a dotted path; None removes it."""
    document = copy.deepcopy(document)
    *above, key = path.split(".")
    table = document
    for name in above:
        table = table.setdefault(name, {})
    if value is None:
        del table[key]
    else:
        table[key] = value
    return document


def test_streams_and_links_of_the_document_that_lead_in_a_circle_are_refused_with_the_path():
    document = farm()
    document["streams"]["old"] = {
        "source": {"type": "tcp", "listen": "0.0.0.0:7400"}, "time": "time", "place": "gate",
        "columns": {"turbine": "string", "time": "timestamp", "kw": "float64", "n": "int64"},
    }  # fmt: skip
    document["operators"]["aged"] = {
        "type": "filter", "input": "old", "where": "kw > 0", "place": "site-a",
    }  # fmt: skip
    back = {"type": "edge", "input": "mean", "stream": "old", "to": ["127.0.0.1:7400"]}
    document["sinks"] |= {"back": back, "rows": {"type": "pages", "input": "aged"}}
    assert paths_of(document) == []
    [fault] = check(changed(document, "sinks.back.input", "aged"))[1]
    assert fault.path == "sinks.back.to[0]"
    assert fault.problem == "is in a circle: farm-old-0 → farm-aged-0 → farm-old-0"
    [fault] = check(changed(document, "sinks.back", {**back, "input": "old", "place": "gate"}))[1]
    assert fault.path == "sinks.back.to[0]"


def test_neighbours_on_one_daemon_share_a_job_and_links_cut():
    made = cut_of(farm())
    assert {s.name: (s.parts, s.on) for s in made.stages.values()} == {
        "readings": (("readings", "producing"), ("gate",)),
        "mean": (("mean", "means"), ("site-a", "site-b")),
    }
    assert [(e.id, e.rows, e.source, e.target) for e in made.exchanges] == [
        ("by-turbine", "producing", "readings", "mean")
    ]


def test_a_job_names_the_addresses_of_the_jobs_that_listen():
    made = cut_of(farm())
    found, wrong = jobs(made, place(made, 1 << 20, {})[0])
    assert not wrong
    by_name = {job.name: job for job in found}
    assert [(j.name, j.daemon) for j in found] == [
        ("farm-readings-0", "gate"), ("farm-mean-0", "site-a"), ("farm-mean-1", "site-b"),
    ]  # fmt: skip
    sink = by_name["farm-readings-0"].document["sinks"]["by-turbine"]
    listening = [
        by_name[f"farm-mean-{i}"].document["streams"]["producing"]["source"]["listen"]
        for i in (0, 1)
    ]
    assert sink["to"] == listening and sink["by"] == ["turbine"] and sink["type"] == "edge"
    stream = by_name["farm-mean-0"].document["streams"]["producing"]
    assert stream["columns"] == {"turbine": "string", "time": "timestamp", "kw": "float64"}
    assert by_name["farm-mean-1"].document["operators"]["mean"]["input"] == "producing"


def test_parts_that_would_wait_for_themselves_get_two_stages():
    """readings and joined are on one daemon, and between them a window on another."""
    document = farm(
        operators={
            "mean": {**farm()["operators"]["mean"], "input": "readings", "place": "site-a"},
            "named": {
                "type": "map", "input": "mean", "place": "site-a",
                "columns": {"turbine": "turbine", "time": "window_start", "kw": "kw"},
            },
            "joined": {
                "type": "interval_join", "left": "readings", "right": "named",
                "on": ["turbine"], "before": "1min", "after": "1min",
                "columns": {"turbine": "left.turbine", "time": "left.time", "kw": "right.kw"},
            },
        },
        links={}, sinks={"all": {"type": "pages", "input": "joined"}},
    )  # fmt: skip
    document["operators"]["joined"]["place"] = "gate"
    made = cut_of(document)
    assert [(s.name, s.level) for s in made.stages.values()] == [
        ("readings", 0), ("mean", 1), ("joined", 2),
    ]  # fmt: skip
    assert all(made.stages[e.source].level < made.stages[e.target].level for e in made.exchanges)


FAULTS = [
    ("operators.mean.place", ["site-a", "site-c"], "operators.mean.place[1]"),
    ("operators.mean.input", "producin", "operators.mean.input"),
    ("operators.producing.input", "mean", "operators.producing"),
    ("operators.mean.size", "soon", "operators.mean.size"),
    ("streams.readings.place", None, "streams.readings.place"),
    ("links.by-turbine.to", "means", "links.by-turbine.to"),
    ("links.by-turbine.from", "nothing", "links.by-turbine.from"),
    ("links.by-turbine.by", ["turbin"], "links.by-turbine.by[0]"),
    ("links.by-turbine.by", ["kw"], "links.by-turbine.by"),
    ("links.by-turbine", {"from": "producing", "to": "mean", "partition": "hash"},
     "links.by-turbine.by"),
    ("links.by-turbine", {"from": "producing", "to": "mean", "partition": "random"},
     "links.by-turbine.partition"),
    ("links.by-turbine", {"from": "producing", "to": "mean", "partition": "hasch"},
     "links.by-turbine.partition"),
    ("links.by-turbine", None, "operators.mean.input"),
    ("daemons.site-b.api", "/nowhere/site-a.sock", "daemons.site-b.api"),
    ("daemons.site-b.ports", "9110-9150", "daemons.site-b.ports"),
    ("daemons.site-b.ports", "many", "daemons.site-b.ports"),
    ("daemons.gate.memory", "1MiB", "daemons.gate.memory"),
    ("streams.readings.source", {"type": "tcp", "listen": "127.0.0.1:9105"},
     "streams.readings.source.listen"),
    ("promises.end_to_end", "90ms", "promises.end_to_end"),
    ("sinks.means.instances", 0, "sinks.means.instances"),
    ("surprise", 1, "surprise"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value", "fault"), FAULTS)
def test_a_bad_graph_is_refused_with_the_path_to_the_fault(path, value, fault):
    assert fault in paths_of(changed(farm(), path, value))


def test_all_faults_are_named_at_once():
    document = changed(farm(), "operators.mean.place", "nowhere")
    document = changed(document, "daemons.gate.ports", "x")
    document = changed(document, "operators.producing.where", "kw >")
    assert {"operators.mean.place", "daemons.gate.ports", "operators.producing.where"} <= {
        *paths_of(document)
    }


def test_an_address_that_two_instances_have_is_refused():
    source = {"type": "tcp", "listen": "127.0.0.1:7400"}
    stream = {**READINGS, "source": source, "place": "gate", "instances": 2}
    assert paths_of(lonely(streams={"readings": stream})) == ["streams.readings.source.listen"]
    apart = {**stream, "source": {**source, "listen": "127.0.0.1:740{instance}"}}
    sinks = {"all": {"type": "pages", "input": "readings", "stream": "all-{instance}"}}
    assert paths_of(lonely(streams={"readings": apart}, sinks=sinks)) == []


def test_state_of_its_own_rows_needs_no_key():
    document = lonely(
        operators={"mean": {**farm()["operators"]["mean"], "input": "readings"}},
        sinks={"all": {"type": "pages", "input": "mean"}},
    )
    del document["operators"]["mean"]["place"]
    assert paths_of(document) == ["operators.mean.input"]
    document["operators"]["mean"]["per_instance"] = True
    assert paths_of(document) == []


def test_auto_takes_the_least_loaded_daemon_that_fits():
    document = farm(daemons=daemons(("gate", "a", "b", "c", "d")))
    document["operators"]["mean"] |= {"place": "auto", "instances": 2}
    document["daemons"]["a"]["memory"] = "10MiB"
    made = cut_of(document)
    loads = {
        "gate": DaemonLoad(busy=0.9),
        "a": DaemonLoad(busy=0.0, promised_bytes=5 << 20),
        "b": DaemonLoad(busy=0.5),
        "c": DaemonLoad(busy=0.2),
        "d": DaemonLoad(reachable=False),
    }
    assert place(made, 8 << 20, loads)[0]["mean"] == ("c", "b")
    loads["b"] = DaemonLoad(busy=0.5, instances=frozenset({("mean", 0)}))
    assert place(made, 8 << 20, loads)[0]["mean"] == ("b", "c"), "an instance stays where it is"
    loads = {name: DaemonLoad(reachable=False) for name in document["daemons"]}
    assert [f.path for f in place(made, 8 << 20, loads)[1]] == ["operators.mean.place"]


def test_latencies_add_up_over_hops(tmp_path):
    document = lonely()
    answer = CliRunner().invoke(command, ["plan", "--offline", str(written(tmp_path, document))])
    assert answer.exit_code == 0, answer.output
    assert "within 50ms: readings" in answer.output


def test_the_commands_say_what_is_wrong(tmp_path):
    file = written(tmp_path, changed(lonely(), "streams.readings.place", "gatte"))
    answer = CliRunner().invoke(command, ["validate", "--json", str(file)])
    assert answer.exit_code == 65
    faults = json.loads(answer.output)["faults"]
    assert [f["path"] for f in faults] == ["streams.readings.place"]
    assert "gate" in faults[0]["advice"]


def test_the_builder_makes_the_document():
    graph = Graph("farm", latency="50ms", memory="8MiB")
    for name, table in daemons().items():
        graph.daemon(name, **table)
    stream = {k: v for k, v in READINGS.items() if k not in ("source", "columns", "place")}
    readings = graph.job.stream("readings", READINGS["source"], READINGS["columns"], **stream)
    producing = readings.filter("producing", "kw > 0")
    mean = producing.window(
        "mean", {"kw": "sum(kw)", "n": "count(*)"}, size="1min", keys=["turbine"]
    )
    mean.pages("means", page="4KiB")
    graph.place(readings, "gate").place(mean, "site-a", "site-b")
    graph.link("by-turbine", producing, mean, by=["turbine"])
    wanted = farm()
    wanted["streams"]["readings"]["place"] = ["gate"]
    assert graph.document() == wanted


def test_the_example_of_the_docs_is_a_graph():
    text = (Path(__file__).parents[2] / "docs/graph.md").read_text()
    document = loads(text.partition("```toml\n")[2].partition("```")[0])
    placed, wrong = check(document)
    assert not wrong, wrong
    assert [stage.name for stage in placed.cut.stages.values()] == ["readings", "mean"]
    assert [path.latency_us for path in placed.paths()] == [510_000]


def test_faults_of_the_sink_are_shown_at_the_link():
    assert paths_of(farm()) == []
    assert paths_of(changed(farm(), "links.by-turbine.buffer", "1GiB")) == [
        "links.by-turbine.buffer"
    ]
    assert paths_of(changed(farm(), "links.by-turbine.surprise", 1)) == [
        "links.by-turbine.surprise"
    ]
    assert paths_of(changed(farm(), "daemons.gate.promises", {"durability": "never"})) == [
        "daemons.gate.promises.durability"
    ]


def test_the_printed_plan_of_the_docs_is_that_of_its_example(tmp_path):
    text = (Path(__file__).parents[2] / "docs/graph.md").read_text()
    file = tmp_path / "farm.toml"
    file.write_text(text.partition("```toml\n")[2].partition("```")[0])
    printed = text.partition("$ edged graph plan --offline farm.toml\n")[2].partition("```")[0]
    answer = CliRunner().invoke(command, ["plan", "--offline", str(file)])
    assert answer.exit_code == 0, answer.output
    assert answer.output == printed
