"""A plan as JSON values, and as a drawing on the terminal.

The drawing is the graph, starting at the streams.  A part with several inputs is drawn below its
first input; below the others an arrow names it:

    power_curve
    ├── power  tcp
    │   ├── joined  interval_join of power, wind
    │   │   └── producing  filter
    │   │       └── ▣ curve  pages
    │   └── daily  window
    │       └── ▣ energy  pages
    └── wind  tcp
        └── ↑ joined
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edged.data.flow import Link
from edged.data.schema import Field, Schema
from edged.data.table_terms import COUNT, OWE, REFUSE, TableTerms
from edged.documents.units import show_duration, show_size
from edged.job import schedule_latency
from edged.job.open_pages import open_page_shares
from edged.job.plan import JobPlan, StreamPlan
from edged.job.plan_warnings import warnings
from edged.job.promises import BLOCK
from edged.operators.base import OperatorPlan
from edged.placement.placement import KernelProfile, outline
from edged.sinks.base import SinkPlan
from edged.sources.base import SourcePlan

if TYPE_CHECKING:
    from rich.console import Console
    from rich.tree import Tree


def explain(
    plan: JobPlan, profile: KernelProfile | None = None, root: Path | None = None
) -> dict[str, Any]:
    """The plan as JSON values: promises, every part with its lines and schema, and warnings.

    With a machine's `profile`, also the kernels that would run there; with `root`, where relative
    paths start, the `path` of every source and sink that has files.
    """
    p, shares = plan.promises, open_page_shares(plan.promises.memory_bytes, plan.sinks)
    return {
        "name": plan.name,
        "promises": {
            "latency_us": p.latency_us,
            "ack_within_us": p.ack_within_us,
            "upload_within_us": p.upload_within_us,
            "memory_bytes": p.memory_bytes,
            "durability": p.durability,
            "telemetry_first": p.telemetry_first,
            "when_full": p.when_full,
        },
        "governor": None if plan.governor is None else asdict(plan.governor),
        "streams": {
            name: {**_stream(stream), **_path(stream.source, root)}
            for name, stream in plan.streams.items()
            if stream.table is None
        },
        **_tables(plan, root),
        "order": list(plan.order),
        "operators": {
            id: {
                "type": plan.operators[id].kind,
                "inputs": list(plan.inputs[id]),
                "does": [
                    *plan.operators[id].describe(),
                    *_placement(plan, id, profile),
                    *([plan.schedules[id].describe()] if id in plan.schedules else []),
                ],
                **_link(plan.operators[id].output),
                **_outputs(plan.operators[id]),
                "signature": plan.operators[id].signature(),
            }
            for id in plan.order
        },
        "sinks": {
            id: {
                "type": sink.kind,
                "input": plan.inputs[id][0],
                "does": [
                    *sink.describe(),
                    *_open_pages(sink, shares.get(id, 0)),
                    *schedule_latency.sink_line(plan, id),
                ],
                "open_bytes_max": shares.get(id, 0),
                "schema": _schema(plan.links[plan.inputs[id][0]].schema),
                "signature": sink.signature(),
                **_path(sink, root),
            }
            for id, sink in plan.sinks.items()
        },
        "warnings": warnings(plan),
    }


def show(
    plan: JobPlan,
    console: Console,
    profile: KernelProfile | None = None,
    root: Path | None = None,
) -> None:
    """Print the plan: promises, graph, every part, and warnings."""
    from rich.text import Text

    facts = explain(plan, profile, root)
    p = plan.promises
    console.print(
        Text.assemble(
            (plan.name, "bold"),
            f"  results within {show_duration(p.latency_us)}, acks within"
            f" {show_duration(p.ack_within_us)}, memory {show_size(p.memory_bytes)},"
            f" durability {p.durability}",
            f", uploads within {show_duration(p.upload_within_us)}" if p.upload_within_us else "",
            ", telemetry first" if p.telemetry_first else "",
            "" if p.when_full == BLOCK else f", {p.when_full} when the store is full",
            f", policy {plan.governor.policy}" if plan.governor is not None else "",
        )
    )
    console.print()
    console.print(graph(plan))
    for section in ("streams", "tables", "operators", "sinks"):
        for id, part in facts.get(section, {}).items():
            console.print()
            _part(console, section, id, part)
    for warning in facts["warnings"]:
        console.print()
        console.print(Text.assemble(("warning: ", "yellow"), warning))


def paths(plan: JobPlan, root: Path) -> dict[str, str]:
    """The absolute path of every source and sink that has files, by `streams.ID`, `tables.ID` or
    `sinks.ID`."""
    found = {f"{s.section}.{n}": s.source.file_path(root) for n, s in plan.streams.items()}
    found |= {f"sinks.{id}": sink.file_path(root) for id, sink in plan.sinks.items()}
    return {part: path for part, path in found.items() if path}


def graph(plan: JobPlan) -> Tree:
    """The drawing of the graph."""
    from rich.text import Text
    from rich.tree import Tree

    root = Tree(Text(plan.name, "bold"))
    drawn: set[str] = set()

    def grow(at: Tree, link: str) -> None:
        for id in plan.readers(link):
            if id in drawn:
                at.add(Text.assemble(("↑ ", "dim"), id))
                continue
            drawn.add(id)
            if id in plan.sinks:
                at.add(Text.assemble(("▣ ", "green"), (id, "bold"), f"  {plan.sinks[id].kind}"))
                continue
            inputs = plan.inputs[id]
            several = f" of {', '.join(inputs)}" if len(inputs) > 1 else ""
            label = Text.assemble((id, "bold"), f"  {plan.operators[id].kind}{several}")
            branch = at.add(label)
            grow(branch, id)
            for output in plan.operators[id].outputs():
                if plan.readers(link := f"{id}.{output}"):
                    grow(branch.add(Text.assemble((link, "cyan"), "  output")), link)

    for name, stream in plan.streams.items():
        branch = root.add(Text.assemble((name, "bold cyan"), f"  {stream.source.kind}"))
        grow(branch, name)
        if f"{name}.late" in plan.links:
            grow(branch.add(Text.assemble((f"{name}.late", "cyan"), "  late rows")), f"{name}.late")
    return root


def _placement(plan: JobPlan, id: str, profile: KernelProfile | None) -> list[str]:
    if not plan.operators[id].placed:
        return []
    return outline(profile, plan.promises.latency_us)


def _open_pages(sink: SinkPlan, share_bytes: int) -> list[str]:
    if not share_bytes:
        return []
    early = ", then the largest are sealed early" if share_bytes < sink.open_bytes().most else ""
    return [f"open pages take up to {show_size(share_bytes)} of the job's memory{early}"]


def _path(part: SourcePlan | SinkPlan, root: Path | None) -> dict[str, str]:
    path = "" if root is None else part.file_path(root)
    return {"path": path} if path else {}


def _stream(stream: StreamPlan) -> dict[str, Any]:
    return {
        "type": stream.source.kind,
        "does": stream.source.describe(),
        "time": stream.time,
        "weight": stream.weight,
        "lateness_us": stream.lateness_us,
        "idle_after_us": stream.idle_after_us,
        "max_ahead_us": stream.max_ahead_us,
        "max_behind_us": stream.max_behind_us,
        "silent_after_us": stream.silent_after_us,
        "late": stream.late,
        "schema": _schema(stream.schema),
    }


def _tables(plan: JobPlan, root: Path | None) -> dict[str, Any]:
    """The part of the tables; a job without tables has none."""
    found = {}
    for name, stream in plan.streams.items():
        if (terms := stream.table) is not None:
            found[name] = {
                "type": stream.source.kind,
                "does": [*stream.source.describe(), *_meaning(terms)],
                "time": "",
                "weight": stream.weight,
                **asdict(terms),
                "schema": _schema(stream.schema),
                **_path(stream.source, root),
            }
    return {"tables": found} if found else {}


def _meaning(terms: TableTerms) -> list[str]:
    by = f" by {', '.join(terms.key)}" if terms.key else ""
    missing = {
        REFUSE: "left out, and its place is shown",
        COUNT: "left out, and counted",
        OWE: "owed until its insert comes",
    }
    return [
        f"changes {terms.changes}{by}; a delete of an absent row is {missing[terms.missing]}",
        f"role {terms.role}, files are merged: {terms.compact}",
    ]


def _outputs(operator: OperatorPlan) -> dict[str, Any]:
    """The named outputs; an operator with one output has no such part."""
    named = {name: _link(link) for name, link in operator.outputs().items()}
    return {"outputs": named} if named else {}


def _link(link: Link) -> dict[str, Any]:
    times = {"time": link.time, "disorder_us": link.disorder_us}
    return {**times, "weight": link.weight, "schema": _schema(link.schema)}


def _schema(schema: Schema) -> list[dict[str, Any]]:
    return [{**f.to_json(), "arrow": _arrow(f), "spark": f.dtype.spark} for f in schema]


def _arrow(f: Field) -> str:
    return str(f.dtype.arrow)


def _part(console: Console, section: str, id: str, part: dict[str, Any]) -> None:
    from rich.text import Text

    console.print(Text.assemble((f"{section}.{id}", "bold"), f"  {part['type']}"))
    lines = list(part["does"]) + ([f"path {part['path']}"] if "path" in part else [])
    if section == "streams":
        lines.append(_times(part))
    for line in lines:
        console.print(Text(f"  {line}"), soft_wrap=True)
    if section == "sinks":
        return
    for name, output in part.get("outputs", {"": part}).items():
        if name:
            console.print(Text(f"  {id}.{name}", "cyan"))
        heading, *rows = _columns(output)
        console.print(Text(heading, "dim"), soft_wrap=True)
        for row in rows:
            console.print(Text(row), soft_wrap=True)


def _columns(part: dict[str, Any]) -> list[str]:
    """The schema as lines of a table; the first is its heading."""
    cells = [("column", "type", "Spark", "")]
    for row in part["schema"]:
        kind = row["type"] + ("?" if row["nullable"] else "")
        mark = {part["time"]: "event time", part["weight"]: "weight"}.get(row["name"], "")
        cells.append((row["name"], kind, row["spark"], mark))
    widths = [max(len(row[i]) for row in cells) for i in range(3)]
    return [
        ("    " + "  ".join(c.ljust(w) for c, w in zip(row, [*widths, 0], strict=True))).rstrip()
        for row in cells
    ]


def _times(part: dict[str, Any]) -> str:
    late = {"drop": "dropped", "process": "processed", "dead_letter": "sent to the late link"}
    silent = f", silent after {show_duration(us)}" if (us := part["silent_after_us"]) else ""
    return (
        f"lateness {show_duration(part['lateness_us'])}, late rows are {late[part['late']]};"
        f" idle after {show_duration(part['idle_after_us'])},"
        f" refused when more than {show_duration(part['max_ahead_us'])} ahead,"
        f" producers disregarded when more than {show_duration(part['max_behind_us'])} behind"
        f"{silent}"
    )
