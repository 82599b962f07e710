"""`edged validate` and `edged explain` as processes."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from edged.documents.unchecked import UNCHECKED
from edged.job.builder import Job, generator
from edged.job.explain import explain, graph, paths, show

EXAMPLES = Path(__file__).parents[2] / "examples"
COLUMNS = {"k": "int32", "t": "timestamp", "n": "uint64?"}


def job():
    made = Job("small").promise(latency="1500ms")
    a = made.stream("a", generator(5), COLUMNS, time="t", late="dead_letter", lateness="1s")
    b = made.stream("b", generator("full", rows=9), COLUMNS, time="t")
    joined = a.join("joined", b, on=["k"], before="5min")
    joined.pages("pairs", partitions=2, partition_by=["k"])
    a.union("all", b).pages("rows")
    a.late.pages("late")
    return made


def run(*arguments):
    command = [sys.executable, "-m", "edged", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def shown(plan, width=120):
    console = Console(file=io.StringIO(), width=width, highlight=False)
    show(plan, console)
    return console.file.getvalue()


def test_paths_are_shown_as_they_lead_from_the_root():
    made = Job("j")
    source = {"type": "file", "path": "in/*.csv"}
    made.stream("a", source, COLUMNS, time="t").file("out", "results")
    plan = made.plan()
    assert paths(plan, Path("/r")) == {"streams.a": "/r/in/*.csv", "sinks.out": "/r/results"}
    facts = explain(plan, root=Path("/r"))
    assert facts["streams"]["a"]["path"] == "/r/in/*.csv"
    assert facts["sinks"]["out"]["path"] == "/r/results"
    assert "path" not in explain(plan)["sinks"]["out"]


def test_the_graph_names_every_part_once_and_points_back_to_the_others():
    console = Console(file=io.StringIO(), width=100)
    console.print(graph(job().plan()))
    text = "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())
    assert text == (
        "small\n"
        "├── a  generator\n"
        "│   ├── joined  interval_join of a, b\n"
        "│   │   └── ▣ pairs  pages\n"
        "│   ├── all  union of a, b\n"
        "│   │   └── ▣ rows  pages\n"
        "│   └── a.late  late rows\n"
        "│       └── ▣ late  pages\n"
        "└── b  generator\n"
        "    ├── ↑ joined\n"
        "    └── ↑ all"
    )


def test_a_person_sees_promises_every_part_and_what_it_becomes_in_spark():
    plan = job().plan()
    text = shown(plan)
    assert "results within 1s500ms" in text
    assert "durability exactly_once" in text
    for id in plan.order:
        assert f"operators.{id}  {plan.operators[id].kind}" in text
        for line in plan.operators[id].describe():
            assert line in text
    assert "decimal(20,0)" in text
    assert "event time" in text
    assert "lateness 1s, late rows are sent to the late link" in text


def test_nothing_is_cut_off_on_a_narrow_terminal():
    plan = job().plan()
    text = shown(plan, width=40)
    for id in plan.order:
        for line in plan.operators[id].describe():
            assert f"  {line}\n" in text


def test_a_program_gets_the_same_as_json():
    facts = explain(job().plan())
    assert facts == json.loads(json.dumps(facts))
    assert facts["promises"]["latency_us"] == 1_500_000
    assert facts["order"] == ["joined", "all"]
    assert facts["streams"]["a"]["schema"][2] == {
        "name": "n",
        "type": "uint64",
        "nullable": True,
        "arrow": "uint64",
        "spark": "decimal(20,0)",
    }
    assert facts["operators"]["joined"]["inputs"] == ["a", "b"]
    assert facts["sinks"]["late"]["input"] == "a.late"
    assert facts["warnings"] == []


def test_brackets_in_what_a_part_says_are_not_taken_for_markup():
    made = Job("x")
    made.stream("a", {"type": "file", "path": "[red]x[/red].csv"}, COLUMNS, time="t").pages("out")
    assert "[red]x[/red].csv" in shown(made.plan())


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "job.json"
    job().save(path)
    return path


def test_explain_prints_the_plan(saved):
    done = run("explain", saved)
    assert done.returncode == 0, done.stderr
    assert "├── a  generator" in done.stdout
    done = run("explain", "--json", saved)
    assert json.loads(done.stdout)["name"] == "small"


def test_validate_says_that_a_job_is_right(saved):
    done = run("validate", saved)
    assert (done.returncode, done.stdout) == (0, f"{saved} is valid\n")
    assert done.stderr.startswith("edged: not checked: ") and done.stderr.count("\n") == 1
    verdict = json.loads(run("validate", "--json", saved).stdout)
    assert verdict.pop("unchecked") == [*UNCHECKED]
    assert verdict == {"job": str(saved), "valid": True, "faults": [], "warnings": []}


def test_validate_and_explain_print_absolute_paths(tmp_path):
    made = Job("j")
    made.stream("a", generator(5), COLUMNS, time="t").file("out", "results")
    path = tmp_path / "job.json"
    made.save(path)
    leads = str(Path.cwd() / "results")
    assert f"sinks.out: {leads}" in run("validate", path).stdout
    verdict = json.loads(run("validate", "--json", path).stdout)
    assert verdict["paths"] == {"sinks.out": leads}
    assert f"path {leads}" in run("explain", path).stdout


def test_validate_names_every_fault_and_exits_with_65(saved):
    document = json.loads(saved.read_text())
    document["streams"]["a"]["tim"] = document["streams"]["a"].pop("time")
    document["sinks"]["pairs"]["partitons"] = 2
    saved.write_text(json.dumps(document))
    done = run("validate", saved)
    assert done.returncode == 65
    assert done.stdout == ""
    assert "edged: streams.a.tim: unknown key (did you mean time?)" in done.stderr
    assert "edged: sinks.pairs.partitons: unknown key (did you mean partitions?)" in done.stderr
    assert "3 faults" in done.stderr
    done = run("validate", "--json", saved)
    assert done.returncode == 65
    verdict = json.loads(done.stdout)
    assert not verdict["valid"]
    assert [f["path"] for f in verdict["faults"]] == [
        "streams.a.tim",
        "streams.a.time",
        "sinks.pairs.partitons",
    ]


def test_validate_warns_of_what_nobody_reads(saved):
    document = json.loads(saved.read_text())
    del document["sinks"]["late"]
    saved.write_text(json.dumps(document))
    done = run("validate", saved)
    assert done.returncode == 0
    assert "warning: streams.a: no reader of its late rows, a.late" in done.stderr


def test_a_job_that_is_not_there_exits_with_65(tmp_path):
    for command in ("validate", "explain"):
        done = run(command, tmp_path / "none.toml")
        assert done.returncode == 65
        assert "none.toml: cannot be read" in done.stderr
        assert "Traceback" not in done.stderr


def test_the_examples_are_valid():
    for path in (EXAMPLES / "power_curve.toml", EXAMPLES / "quickstart.toml"):
        done = run("validate", path)
        assert done.returncode == 0 and done.stderr.splitlines()[0].startswith("edged: not checked")
