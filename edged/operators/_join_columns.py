"""The keys, output columns and weights of a join of two inputs.

A pair has the product of both rows' weights.  Where one side has weights, its weight column is the
output's.  Where both have, the output has one column for both, `multiply` fills it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edged.data.columns import Batch, Column
from edged.data.flow import Link
from edged.data.gather import take, take_columns
from edged.data.picked import Picked
from edged.data.schema import Field, Schema
from edged.data.scratch import Scratch
from edged.data.workers import Workers
from edged.documents.faults import FaultCollector
from edged.documents.reader import did_you_mean, names
from edged.errors import JobError

SIDES = ("left", "right")
WEIGHT_MAX = 2**31 - 1
"""Largest weight, and with a minus the least: what a change adds, another can take back."""


@dataclass(frozen=True)
class Output:
    """One output column: its name, the side it comes from (0 left, 1 right), and its name there."""

    name: str
    side: int
    source: str


def read_keys(
    path: str,
    document: Mapping[str, Any],
    left: Link,
    right: Link,
    sides: tuple[str, str] = SIDES,
) -> tuple[tuple[str, str], ...]:
    """The pairs of key columns, `on` of the document.  Raises JobError with all faults."""
    wrong, pairs = FaultCollector(), list[tuple[str, str]]()
    for i, entry in enumerate(names(path, document, "on")):
        where = f"{path}.on[{i}]"
        first, equals, second = (part.strip() for part in entry.partition("="))
        pair = (first, second if equals else first)
        for name, link, side in zip(pair, (left, right), sides, strict=True):
            if name not in link.schema:
                advice = did_you_mean(name, link.schema.names)
                wrong.note(where, f"{side} has no column {name}", advice)
        if not all(n in link.schema for n, link in zip(pair, (left, right), strict=True)):
            continue
        kinds = [link.schema.field(n).dtype for n, link in zip(pair, (left, right), strict=True)]
        if kinds[0] is not kinds[1]:
            names_of = [f"{side}.{name}" for side, name in zip(sides, pair, strict=True)]
            problem = f"{names_of[0]} is {kinds[0]}, {names_of[1]} is {kinds[1]}"
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
        if name in keys[1] or (left.weight and name == right.weight):
            continue
        out = f"{name}_right" if name in taken else name
        if out in taken:
            advice = "give the output's columns with `columns`"
            raise JobError(path, f"the output has both {name} and {out} already", advice)
        taken.add(out)
        columns.append(Output(out, 1, name))
    return tuple(columns)


def chosen_columns(
    path: str,
    given: Mapping[str, Any],
    left: Link,
    right: Link,
    sides: tuple[str, str] = SIDES,
) -> tuple[Output, ...]:
    """The output that `columns` describes.  Raises JobError with all faults."""
    wrong, columns = FaultCollector(), list[Output]()
    for name, source in given.items():
        where = f"{path}.{name}"
        side, dot, column = source.partition(".") if isinstance(source, str) else ("", "", "")
        if side not in sides or not dot:
            advice = f'write "{sides[0]}.x" or "{sides[1]}.x"'
            wrong.note(where, f"{source!r} is not a column", advice)
            continue
        link = (left, right)[sides.index(side)]
        if column not in link.schema:
            advice = did_you_mean(column, link.schema.names)
            wrong.note(where, f"{side} has no column {column}", advice)
            continue
        columns.append(Output(name, sides.index(side), column))
    wrong.settle()
    return tuple(columns)


def output_schema(columns: Sequence[Output], inputs: tuple[Link, Link]) -> Schema:
    """The types of the output."""
    fields = []
    for c in columns:
        f = inputs[c.side].schema.field(c.source)
        fields.append(Field(c.name, f.dtype, f.nullable))
    return Schema.of(fields)


def with_weight(
    path: str, columns: tuple[Output, ...], inputs: tuple[Link, Link]
) -> tuple[tuple[Output, ...], str]:
    """The output columns with that of the weight, and its name; empty: no input has weights.

    Where both have, the column is said to come from the left.  Raises JobError.
    """
    sides = [side for side in range(2) if inputs[side].weight]
    if not sides:
        return columns, ""
    found = [i for i, c in enumerate(columns) if c.side in sides and _weighs(c, inputs)]
    if not found:
        name = inputs[sides[0]].weight
        if any(c.name == name for c in columns):
            problem = f"the output has a column {name}, and the weight column of that name"
            raise JobError(f"{path}.{name}", problem, "choose another name")
        return (*columns, Output(name, sides[0], name)), name
    if len(sides) == 1:
        return columns, columns[found[0]].name
    if len(found) > 1:
        problem = "holds a weight column; both are multiplied into one"
        raise JobError(f"{path}.{columns[found[1]].name}", problem, "leave one of them out")
    (at,) = found
    weight = Output(columns[at].name, 0, inputs[0].weight)
    return (*columns[:at], weight, *columns[at + 1 :]), weight.name


def _weighs(column: Output, inputs: tuple[Link, Link]) -> bool:
    return column.source == inputs[column.side].weight


def multiply(
    picked: Picked,
    weight: str,
    right: tuple[Column, npt.NDArray[np.int64]],
    scratch: Scratch,
    workers: Workers | None,
) -> Batch:
    """The pairs, each with the product of its left weight, in the column `weight`, and its right,
    given as a column and the number of each pair's row in it.

    Pairs whose product is beyond WEIGHT_MAX are left out.
    """
    pairs, at = picked.batch(scratch, workers), picked.schema.index(weight)
    (other,) = take_columns([right[0]], right[1], scratch, "right", workers)
    product: npt.NDArray[np.int64] = scratch.get("product", pairs.rows, np.int64)
    np.multiply(pairs.columns[at].values, other.values, out=product, dtype=np.int64)
    narrow = scratch.get("weight", pairs.rows, np.int32)
    np.copyto(narrow, product, casting="unsafe")
    columns = (*pairs.columns[:at], Column(narrow), *pairs.columns[at + 1 :])
    done = Batch(pairs.schema, pairs.rows, columns)
    if not pairs.rows or max(int(product.max()), -int(product.min())) <= WEIGHT_MAX:
        return done
    rows = np.flatnonzero((product <= WEIGHT_MAX) & (product >= -WEIGHT_MAX))
    return take(done, rows, scratch, "weighed", workers)
