"""Operators with several outputs: links by name, checks, plans, drawings, graphs, beats."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
import pytest
from rich.console import Console

from edged.data.flow import Flow, Link
from edged.data.gather import take
from edged.data.schema import INT64, Field, Schema
from edged.data.scratch import Scratch
from edged.errors import JobError
from edged.graph.document import read
from edged.graph.jobs import jobs
from edged.graph.placement import place
from edged.graph.stages import cut
from edged.job.builder import Job, generator
from edged.job.explain import explain, graph, show
from edged.job.plan import faults, parse_job
from edged.job.plan_warnings import warnings
from edged.operators.base import Operator, OperatorPlan, operator
from tests.beat.support import Live
from tests.graph.support import daemons

COLUMNS = {"k": "int64", "t": "timestamp"}


@operator("test_halves")
@dataclass(frozen=True)
class HalvesPlan(OperatorPlan):
    """Even `k` go to `even`, odd ones to `odd`, the count of both to `sizes`."""

    id: str
    input: Link
    output: Link

    links = ("input",)
    keys = frozenset({"bad"})

    @classmethod
    def parse(cls, path, id, document, inputs):
        if document.get("bad"):
            raise JobError(f"{path}.bad", "is bad")
        return cls(id, inputs[0], inputs[0])

    def outputs(self):
        sizes = Schema.of([self.input.schema.field("t"), Field("n", INT64)])
        return {"even": self.output, "odd": self.output, "sizes": Link(sizes, "t")}

    def build(self, workers):
        return Halves(self)

    def describe(self):
        return ["halves"]

    def signature_facts(self):
        return []


class Halves(Operator):
    def __init__(self, plan):
        self._sizes, self._scratch = plan.outputs()["sizes"].schema, Scratch()

    def run(self, beat, inputs):
        (flow,) = inputs
        odd = flow.batch["k"].values % 2
        parts = [
            take(flow.batch, np.flatnonzero(odd == half), self._scratch, str(half), beat.workers)
            for half in (0, 1)
        ]
        one = flow.batch.slice(0, min(1, flow.batch.rows))
        counted = np.full(one.rows, flow.batch.rows, np.int64)
        sizes = type(one)(self._sizes, one.rows, (one["t"], type(one["t"])(counted)))
        even, odd_rows, sizes_flow = (Flow(batch, flow.watermark_us) for batch in (*parts, sizes))
        self.outputs = {"even": even, "odd": odd_rows, "sizes": sizes_flow}
        return even


def job(**changes):
    made = Job("split")
    a = made.stream("a", generator("full", rows=9), COLUMNS, time="t")
    halves = a.test_halves("halves")
    halves.output("odd").map("shown", {"t": "t", "odd": "k"}).pages("odds")
    halves.output("sizes").pages("counts")
    halves.pages("evens")
    document = made.document()
    document["operators"]["halves"] |= changes
    return document


def test_each_reader_gets_the_output_that_it_names():
    with Live(job()) as live:
        live.send("a", [(i, i) for i in range(7)])
        live.drain()
        assert live.rows("evens") == [(i, i) for i in (0, 2, 4, 6)]
        assert live.rows("odds") == [(i, i) for i in (1, 3, 5)]
        assert live.rows("counts") == [(0, 7)]


def test_the_plain_name_is_the_first_output():
    document = job()
    document["sinks"]["again"] = {"type": "pages", "input": "halves.even"}
    with Live(document) as live:
        live.send("a", [(i, i) for i in range(7)])
        live.drain()
        assert live.rows("again") == live.rows("evens") != []


@pytest.mark.parametrize(
    ("input", "problem"),
    [
        ("halves.od", r"halves has no output od .*did you mean halves.odd"),
        ("halves.", "halves has no output"),
        ("shown.odd", r"shown has no output odd .*name shown alone"),
        ("a.odd", "no stream or operator is called a.odd"),
    ],
)
def test_an_output_that_is_not_there_is_refused_at_its_path(input, problem):
    document = job()
    document["sinks"]["lost"] = {"type": "pages", "input": input}
    with pytest.raises(JobError, match=f"sinks.lost.input: {problem}"):
        parse_job(document)


def test_readers_of_a_faulty_operator_have_no_fault_of_their_own():
    assert [fault.path for fault in faults(job(bad=True))] == ["operators.halves.bad"]


def test_columns_are_those_of_the_output():
    document = job()
    document["operators"]["shown"]["input"] = "halves.sizes"
    assert [fault.path for fault in faults(document)] == ["operators.shown.columns.odd"]


def test_a_cycle_through_an_output_is_refused():
    document = job()
    document["operators"]["halves"]["input"] = "shown"
    assert any("is in a cycle" in fault.problem for fault in faults(document))


def test_an_output_without_a_reader_is_a_warning():
    document = job()
    assert warnings(parse_job(document)) == []
    del document["sinks"]["counts"]
    del document["sinks"]["evens"]
    assert warnings(parse_job(document)) == [
        "operators.halves: no reader of halves.even",
        "operators.halves: no reader of halves.sizes",
    ]


def test_explain_and_the_drawing_show_every_output():
    plan = parse_job(job())
    outputs = explain(plan)["operators"]["halves"]["outputs"]
    assert list(outputs) == ["even", "odd", "sizes"]
    assert [f["name"] for f in outputs["sizes"]["schema"]] == ["t", "n"]
    console = Console(file=io.StringIO(), width=100)
    console.print(graph(plan))
    show(plan, console)
    text = "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())
    assert text.startswith(
        "split\n"
        "└── a  generator\n"
        "    └── halves  test_halves\n"
        "        ├── ▣ evens  pages\n"
        "        ├── halves.odd  output\n"
        "        │   └── shown  map\n"
        "        │       └── ▣ odds  pages\n"
        "        └── halves.sizes  output\n"
        "            └── ▣ counts  pages\n"
    )
    assert "  halves.sizes\n" in text


def test_an_output_travels_over_a_link_of_a_graph():
    document = {key: value for key, value in job().items() if key != "promises"}
    document["daemons"] = daemons(("gate", "site"))
    document["streams"]["a"]["place"] = "gate"
    document["operators"]["shown"]["place"] = "site"
    document["sinks"]["counts"]["place"] = "site"
    document["links"] = {"odd": {"from": "halves.odd", "to": "shown", "by": ["k"]}}
    plan, wrong = read(document)
    assert not wrong
    made = cut(plan)
    found = [(e.id, e.rows, e.source, e.target) for e in made.exchanges]
    assert ("odd", "halves.odd", "a", "shown") in found
    documents = {j.stage: j.document for j in jobs(made, place(made, 1 << 20, {})[0])[0]}
    assert documents["a"]["sinks"]["odd"]["input"] == "halves.odd"
    assert documents["shown"]["operators"]["shown"]["input"] == "halves-odd"
    for one in documents.values():
        assert not faults(one), one
