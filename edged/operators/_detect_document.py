"""Reading the steps and columns of a `detect`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edged.data.flow import Link
from edged.data.schema_document import COLUMN
from edged.documents.faults import FaultCollector
from edged.documents.reader import did_you_mean, refuse_unknown, table, text
from edged.errors import JobError
from edged.expressions.program import Predicate

STEPS_MAX = 32
"""Most steps of a pattern."""
STEP_KEYS = frozenset({"name", "where", "unless"})


@dataclass(frozen=True)
class PatternStep:
    """One step: its name, the condition that takes it, and the one that ends the wait for it."""

    name: str
    where_text: str
    where: Predicate
    unless_text: str = ""
    unless: Predicate | None = None


@dataclass(frozen=True)
class StepColumn:
    """An output column: its name, the number of its step, and its name in the input."""

    name: str
    step: int
    source: str


def read_steps(path: str, document: Mapping[str, Any], link: Link) -> tuple[PatternStep, ...]:
    """The steps of a document.  Raises JobError with all faults."""
    where, wrong, found = f"{path}.steps", FaultCollector(), list[PatternStep]()
    given = document.get("steps")
    example = '[{ name = "a", where = "x > 1" }, { name = "b", where = "x < 0" }]'
    if not isinstance(given, list) or not 2 <= len(given) <= STEPS_MAX:
        raise JobError(where, f"is no list of 2 to {STEPS_MAX} steps", f"write e.g. {example}")
    for i, step in enumerate(given):
        at = f"{where}[{i}]"
        if not isinstance(step, Mapping):
            wrong.note(at, f"{step!r} is not a step", f"write e.g. {example}")
            continue
        read = wrong.attempt(lambda a=at, s=step, n=i: _step(a, s, n, link), None)  # type: ignore[misc]
        if read is None:
            continue
        if read.name in (other.name for other in found):
            wrong.note(f"{at}.name", f"{read.name} names another step already")
        found.append(read)
    wrong.settle()
    return tuple(found)


def _step(path: str, document: Mapping[str, Any], number: int, link: Link) -> PatternStep:
    wrong = FaultCollector()
    wrong.attempt(lambda: refuse_unknown(path, document, STEP_KEYS), None)
    name = wrong.attempt(lambda: text(path, document, "name"), "")
    if name and not COLUMN.fullmatch(name):
        wrong.note(f"{path}.name", f"{name!r} cannot name a step")
    where_text = wrong.attempt(lambda: text(path, document, "where"), "")
    unless_text = wrong.attempt(lambda: text(path, document, "unless", ""), "")
    if unless_text and number == 0:
        advice = "put it into where: no row is waited for before the first step"
        wrong.note(f"{path}.unless", "is of the first step", advice)
    wrong.settle()
    where = wrong.attempt(lambda: Predicate.of(f"{path}.where", where_text, link.schema), None)
    unless = None
    if unless_text:
        unless = wrong.attempt(
            lambda: Predicate.of(f"{path}.unless", unless_text, link.schema), None
        )
    wrong.settle()
    assert where is not None
    return PatternStep(
        name, " ".join(where_text.split()), where, " ".join(unless_text.split()), unless
    )


def columns_of(
    path: str,
    document: Mapping[str, Any],
    link: Link,
    by: Sequence[str],
    steps: Sequence[PatternStep],
) -> tuple[tuple[StepColumn, ...], str]:
    """The output's columns, and the name of its event time.  Raises JobError with all faults."""
    last, where = len(steps) - 1, f"{path}.columns"
    if "columns" not in document:
        names = [f"{step.name}_{link.time}" for step in steps]
        if clash := set(names) & set(by):
            raise JobError(where, f"{min(clash)} is a key and a step's time", "name the columns")
        found = [StepColumn(name, last, name) for name in by]
        found += [StepColumn(name, i, link.time) for i, name in enumerate(names)]
        return tuple(found), names[-1]
    wrong, chosen = FaultCollector(), list[StepColumn]()
    names = [step.name for step in steps]
    for name, source in table(path, document, "columns").items():
        at = f"{where}.{name}"
        step, dot, column = source.partition(".") if isinstance(source, str) else ("", "", "")
        if not COLUMN.fullmatch(name):
            wrong.note(at, f"{name!r} cannot name a column")
        if step not in names or not dot:
            wrong.note(at, f"{source!r} is not a column of a step", f'write "{names[-1]}.x"')
        elif column not in link.schema:
            advice = did_you_mean(column, link.schema.names)
            wrong.note(at, f"the input has no column {column}", advice)
        else:
            chosen.append(StepColumn(name, names.index(step), column))
    wrong.settle()
    time = next((c.name for c in chosen if c.step == last and c.source == link.time), None)
    if time is None:
        advice = f'add e.g. {link.time} = "{names[-1]}.{link.time}": it is the output\'s event time'
        raise JobError(where, "the time column of the last step is missing", advice)
    return tuple(chosen), time
