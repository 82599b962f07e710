"""The keys and output columns of an interval join, from its document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edged.data.flow import Link
from edged.data.schema import Field, Schema
from edged.documents.faults import FaultCollector
from edged.documents.reader import did_you_mean, names
from edged.errors import JobError

SIDES = ("left", "right")


@dataclass(frozen=True)
class Output:
    """One output column: its name, the side it comes from (0 left, 1 right), and its name there."""

    name: str
    side: int
    source: str


def read_keys(
    path: str, document: Mapping[str, Any], left: Link, right: Link
) -> tuple[tuple[str, str], ...]:
    """The pairs of key columns, `on` of the document.  Raises JobError with all faults."""
    wrong, pairs = FaultCollector(), list[tuple[str, str]]()
    for i, entry in enumerate(names(path, document, "on")):
        where = f"{path}.on[{i}]"
        first, equals, second = (part.strip() for part in entry.partition("="))
        pair = (first, second if equals else first)
        for name, link, side in zip(pair, (left, right), SIDES, strict=True):
            if name not in link.schema:
                advice = did_you_mean(name, link.schema.names)
                wrong.note(where, f"{side} has no column {name}", advice)
        if not all(n in link.schema for n, link in zip(pair, (left, right), strict=True)):
            continue
        kinds = [link.schema.field(n).dtype for n, link in zip(pair, (left, right), strict=True)]
        if kinds[0] is not kinds[1]:
            problem = f"left.{pair[0]} is {kinds[0]}, right.{pair[1]} is {kinds[1]}"
            wrong.note(where, problem, "cast one of them with a map before the join")
        pairs.append(pair)
    wrong.settle()
    return tuple(pairs)


def default_columns(
    path: str, left: Link, right: Link, on: tuple[tuple[str, str], ...]
) -> tuple[Output, ...]:
    """The output without `columns`.  Raises JobError where names clash."""
    keys = [a for a, _ in on], [b for _, b in on]
    columns = [Output(name, 0, name) for name in dict.fromkeys(keys[0])]
    columns += [Output(name, 0, name) for name in left.schema.names if name not in keys[0]]
    taken = {c.name for c in columns}
    for name in right.schema.names:
        if name in keys[1]:
            continue
        out = f"{name}_right" if name in taken else name
        if out in taken:
            advice = "give the output's columns with `columns`"
            raise JobError(path, f"the output has both {name} and {out} already", advice)
        taken.add(out)
        columns.append(Output(out, 1, name))
    return tuple(columns)


def chosen_columns(
    path: str, given: Mapping[str, Any], left: Link, right: Link
) -> tuple[Output, ...]:
    """The output that `columns` describes.  Raises JobError with all faults."""
    wrong, columns = FaultCollector(), list[Output]()
    for name, source in given.items():
        where = f"{path}.{name}"
        side, dot, column = source.partition(".") if isinstance(source, str) else ("", "", "")
        if side not in SIDES or not dot:
            wrong.note(where, f"{source!r} is not a column", 'write "left.x" or "right.x"')
            continue
        link = (left, right)[SIDES.index(side)]
        if column not in link.schema:
            advice = did_you_mean(column, link.schema.names)
            wrong.note(where, f"{side} has no column {column}", advice)
            continue
        columns.append(Output(name, SIDES.index(side), column))
    wrong.settle()
    return tuple(columns)


def output_schema(columns: Sequence[Output], inputs: tuple[Link, Link]) -> Schema:
    """The types of the output."""
    fields = []
    for c in columns:
        f = inputs[c.side].schema.field(c.source)
        fields.append(Field(c.name, f.dtype, f.nullable))
    return Schema.of(fields)
