"""The aggregates of windows: how a document calls them, their accumulators and output columns.

An aggregate's *parts* are the columns that merge at the centre.  Aggregates that share an
accumulator (both of `regr_slope(y, x)` and `regr_intercept(y, x)`, `quantile(c, 0.5)` and
`quantile(c, 0.99)`) have them once, with the first of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from edged.data.flow import Link
from edged.data.schema import BINARY, FLOAT64, INT64, TIMESTAMP, DType, Field, Schema
from edged.data.schema_document import COLUMN
from edged.documents import reader as doc
from edged.documents.faults import FaultCollector
from edged.errors import JobError
from edged.operators import _window_weights as weights
from kernels.cpu import accumulate as acc
from kernels.cpu import weighted
from kernels.cpu.comoments import PAIR
from kernels.cpu.exact_sums import EXACT_WORDS
from kernels.cpu.quantile_sketch import SKETCH

SPREADS = ("stddev", "stddev_samp", "stddev_pop", "var_samp", "var_pop")
"""Of the moments of a column; those without `pop` are of a sample."""
PAIRS = ("covar_pop", "covar_samp", "corr", "regr_slope", "regr_intercept")
"""Of the moments of pairs (y, x)."""
TIMED = ("first", "last")
FUNCTIONS = (
    "count", "sum", "min", "max", "mean", "variance", *TIMED, *SPREADS, *PAIRS, "quantile",
    "approx_distinct",
)  # fmt: skip
BUCKETS = 512
"""Buckets of a quantile sketch."""
QUANTILE_DIGITS = 6
"""Digits behind the point of a quantile's share."""
ERROR_DEFAULT, REGISTERS_LEAST, REGISTERS_MOST = 0.02, 4, 16
"""Standard error of `approx_distinct`; least and most of the binary logarithm of its registers."""
_STANDARD_ERROR = 1.04
_CALL = re.compile(r"\s*([A-Za-z_]+)\s*\(([^()]*)\)\s*")
TYPE_CODES = {
    "bool": acc.U1, "int8": acc.I1, "int16": acc.I2, "int32": acc.I4, "int64": acc.I8,
    "uint8": acc.U1, "uint16": acc.U2, "uint32": acc.U4, "uint64": acc.U8, "float32": acc.F4,
    "float64": acc.F8, "timestamp": acc.I8, "string": acc.VARIABLE, "binary": acc.VARIABLE,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Measure:
    """One aggregate of a job: its output name, function and column ("" for `count(*)`)."""

    name: str
    function: str
    column: str
    second: str = ""
    """y of pairs, of which `column` is x; the event time of `first` and `last`."""
    share: Fraction = Fraction(0)
    """The share of `quantile`."""
    registers: int = 0
    """Binary logarithm of the registers of `approx_distinct`."""
    parts: bool = True
    """Whether the output has its parts."""

    def call(self) -> str:
        """The aggregate as a document calls it."""
        if self.function in PAIRS:
            return f"{self.function}({self.second}, {self.column})"
        more = f", {float(self.share):g}" if self.function == "quantile" else ""
        return f"{self.function}({self.column or '*'}{more})"

    def facts(self) -> list[Any]:
        """JSON values that the state depends on."""
        more = [self.second, str(self.share), self.registers]
        new = self.second or self.share or self.registers
        return [self.name, self.function, self.column, *(more if new else [])]


@dataclass(frozen=True, slots=True)
class Accumulator:
    """An accumulator of a group's row (`kernels.cpu.accumulate.GroupAggregate`)."""

    kind: int
    column: int = 0
    code: int = 0
    second: int = 0
    second_code: int = 0
    size: int = 0

    def words(self) -> int:
        """Its length in a group's row."""
        if self.kind == acc.QUANTILES:
            return SKETCH.buckets + self.size
        if self.kind == acc.DISTINCT:
            return max(1, (1 << self.size) // 8)
        return _WORDS[self.kind]


_WORDS = {
    acc.ROWS: 1, acc.COUNT: 1,
    acc.SUM_INT: len(acc.INTEGER_SUM), acc.SUM_FLOAT: len(acc.FLOAT_SUM),
    **dict.fromkeys((acc.MIN_INT, acc.MAX_INT, acc.MIN_FLOAT, acc.MAX_FLOAT), len(acc.EXTREME)),
    **dict.fromkeys((acc.FIRST_INT, acc.LAST_INT, acc.FIRST_FLOAT, acc.LAST_FLOAT), len(acc.TIMED)),
    acc.MOMENTS: len(acc.WELFORD), acc.COMOMENTS: len(PAIR),
    weighted.WEIGHTED_ROWS: 1, weighted.WEIGHTED_COUNT: 1,
    weighted.WEIGHTED_INT: len(acc.INTEGER_SUM), weighted.WEIGHTED_FLOAT: EXACT_WORDS,
    weighted.WEIGHTED_SQUARES: 2 * EXACT_WORDS,
    weighted.WEIGHTED_PAIRS: weighted.PAIR_SUMS * EXACT_WORDS,
}  # fmt: skip
_KINDS = {
    "sum": (acc.SUM_INT, acc.SUM_FLOAT), "mean": (acc.SUM_INT, acc.SUM_FLOAT),
    "min": (acc.MIN_INT, acc.MIN_FLOAT), "max": (acc.MAX_INT, acc.MAX_FLOAT),
    "first": (acc.FIRST_INT, acc.FIRST_FLOAT), "last": (acc.LAST_INT, acc.LAST_FLOAT),
}  # fmt: skip


def type_code(dtype: DType) -> int:
    """How kernels read a column's values; those of lists are bytes."""
    return acc.VARIABLE if dtype.variable else TYPE_CODES[dtype.name]


def accumulator(schema: Schema, m: Measure, weight: str) -> Accumulator:
    """The accumulator of a measure."""
    if not m.column:
        return Accumulator(weighted.WEIGHTED_ROWS if weight else acc.ROWS)
    c = schema.index(m.column)
    dtype = schema.fields[c].dtype
    if m.function == "count":
        return Accumulator(weighted.WEIGHTED_COUNT if weight else acc.COUNT, c)
    code = type_code(dtype)
    if m.function in PAIRS:
        d = schema.index(m.second)
        kind = weighted.WEIGHTED_PAIRS if weight else acc.COMOMENTS
        return Accumulator(kind, c, code, d, type_code(schema.fields[d].dtype))
    if weight:
        return Accumulator(weights.accumulator(schema, m.function, m.column), c, code)
    if m.function == "variance" or m.function in SPREADS:
        return Accumulator(acc.MOMENTS, c, code)
    if m.function == "quantile":
        return Accumulator(acc.QUANTILES, c, code, size=BUCKETS)
    if m.function == "approx_distinct":
        return Accumulator(acc.DISTINCT, c, code, size=m.registers)
    second = schema.index(m.second) if m.function in TIMED else 0
    return Accumulator(_KINDS[m.function][dtype.floating], c, code, second)


def measures(path: str, calls: Mapping[str, Any], link: Link) -> tuple[Measure, ...]:
    """The aggregates of a document; raises JobError with all that are wrong."""
    if not calls:
        raise JobError(path, "is empty", 'name at least one, e.g. n = "count(*)"')
    wrong, found = FaultCollector(), list[Measure]()
    for name, call in calls.items():
        try:
            measure = _measure(f"{path}.{name}", name, call, link)
            if link.weight:
                weights.refuse(f"{path}.{name}", measure.function)
            found.append(measure)
        except JobError as fault:
            wrong.faults.append(fault)
    wrong.settle()
    return _parts_once(found, link)


def _parts_once(found: Sequence[Measure], link: Link) -> tuple[Measure, ...]:
    """The measures, of which those over one accumulator have its parts once."""
    schema, weight = link.schema, link.weight
    seen = {accumulator(schema, m, weight) for m in found if m.function == "variance"}
    out = []
    for m in found:
        if m.function in (*SPREADS, *PAIRS, "quantile", "approx_distinct"):
            needed = accumulator(schema, m, weight)
            m = replace(m, parts=needed not in seen)
            seen.add(needed)
        out.append(m)
    return tuple(out)


def _measure(path: str, name: str, call: object, link: Link) -> Measure:
    match = _CALL.fullmatch(call) if isinstance(call, str) else None
    if match is None:
        raise JobError(path, f"{call!r} is not an aggregate", "write e.g. mean(power_kw)")
    if not COLUMN.fullmatch(name):
        raise JobError(path, f"{name!r} cannot name a column")
    function = match[1].lower()
    arguments = [a.strip() for a in match[2].split(",")]
    if function not in FUNCTIONS:
        advice = doc.did_you_mean(function, FUNCTIONS)
        raise JobError(path, f"unknown aggregate {match[1]}", advice)
    columns, most = _counts(function)
    if not columns <= len(arguments) <= most:
        raise JobError(path, f"{call!r} has {len(arguments)} arguments", f"write {_form(function)}")
    if arguments[0] == "*":
        if function != "count":
            raise JobError(path, f"{function}(*) is not defined", f"write {function}(a column)")
        return Measure(name, function, "")
    if function in PAIRS:
        y, x = (_taken(path, function, a, link.schema) for a in arguments)
        return Measure(name, function, x, y)
    column = _taken(path, function, arguments[0], link.schema)
    if function in TIMED:
        return Measure(name, function, column, link.time)
    if function == "quantile":
        return Measure(name, function, column, share=_share(path, arguments[1]))
    if function == "approx_distinct":
        return Measure(name, function, column, registers=_registers(path, arguments[1:]))
    return Measure(name, function, column)


def _counts(function: str) -> tuple[int, int]:
    """Least and most arguments of a function."""
    if function == "approx_distinct":
        return 1, 2
    arguments = 2 if function == "quantile" or function in PAIRS else 1
    return arguments, arguments


def _form(function: str) -> str:
    if function in PAIRS:
        return f"{function}(y, x)"
    more = {"quantile": ", 0.99", "approx_distinct": ", 0.02"}
    return f"{function}(a column{more.get(function, '')})"


def _taken(path: str, function: str, column: str, schema: Schema) -> str:
    """A column that the function takes."""
    if column not in schema:
        raise JobError(
            path, f"no column {column!r} in the input", doc.did_you_mean(column, schema.names)
        )
    dtype = schema.field(column).dtype
    takes_all = function in ("count", "approx_distinct")
    takes_time = takes_all or function in ("min", "max", *TIMED, *PAIRS)
    if (dtype.variable and not takes_all) or (dtype is TIMESTAMP and not takes_time):
        raise JobError(path, f"{function} does not take {dtype.name}", "give it a number")
    return column


def _share(path: str, text: str) -> Fraction:
    try:
        share = Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise JobError(path, f"{text!r} is not a share", "write e.g. 0.99") from None
    if not 0 <= share <= 1:
        raise JobError(path, f"{text} is not between 0 and 1")
    if 10**QUANTILE_DIGITS % share.denominator:
        raise JobError(path, f"{text} has too many digits", f"at most {QUANTILE_DIGITS}")
    return share


def _registers(path: str, given: Sequence[str]) -> int:
    """The binary logarithm of the registers for a standard error."""
    try:
        error = float(given[0]) if given else ERROR_DEFAULT
    except ValueError:
        raise JobError(path, f"{given[0]!r} is not an error", "write e.g. 0.02") from None
    sizes = range(REGISTERS_LEAST, REGISTERS_MOST + 1)
    fitting = [s for s in sizes if _STANDARD_ERROR / 2 ** (s / 2) <= error]
    if not fitting or not error < 1.0:
        least = _STANDARD_ERROR / 2 ** (REGISTERS_MOST / 2)
        raise JobError(path, f"the error {given[0]} is not possible", f"from {least:.4f} to 1")
    return fitting[0]


def output(path: str, schema: Schema, by: Sequence[str], found: Sequence[Measure]) -> Schema:
    """The columns of a window's output.  Raises JobError at the first wrong one."""
    fields = [schema.field(name) for name in by]
    fields += [Field("window_start", TIMESTAMP), Field("window_end", TIMESTAMP)]
    seen = {f.name for f in fields}
    if len(seen) < len(fields):
        raise JobError(f"{path}.keys", "window_start and window_end are the window's own columns")
    for m in found:
        for field in _fields(schema, m):
            if field.name in seen:
                problem = f"there is a column {field.name!r} already"
                raise JobError(f"{path}.aggregates.{m.name}", problem, "choose another name")
            seen.add(field.name)
            fields.append(field)
    return Schema.of(fields)


def _fields(schema: Schema, m: Measure) -> list[Field]:
    """The output columns of a measure."""
    if m.function == "count":
        return [Field(m.name, INT64)]
    if m.function == "mean":
        return [Field(f"{m.name}_count", INT64), Field(f"{m.name}_sum", FLOAT64)]
    moments = [
        Field(f"{m.name}_count", INT64), *_floats(m.name, ("mean", "m2")),
    ]  # fmt: skip
    if m.function == "variance":
        return moments
    if m.function in SPREADS:
        return [Field(m.name, FLOAT64, True), *(moments if m.parts else [])]
    if m.function in PAIRS:
        names = ("mean_x", "mean_y", "m2_x", "m2_y", "m2_xy")
        parts = [Field(f"{m.name}_count", INT64), *_floats(m.name, names)]
        return [Field(m.name, FLOAT64, True), *(parts if m.parts else [])]
    field = schema.field(m.column)
    sketch = [Field(f"{m.name}_sketch", BINARY, field.nullable)] if m.parts else []
    if m.function == "quantile":
        return [Field(m.name, FLOAT64, field.nullable), *sketch]
    if m.function == "approx_distinct":
        return [Field(m.name, INT64), *sketch]
    if m.function == "sum":
        total: DType = FLOAT64 if field.dtype.floating else INT64
        return [Field(m.name, total, field.nullable or total is INT64)]
    kept = Field(m.name, field.dtype, field.nullable)
    if m.function in TIMED:
        return [kept, Field(f"{m.name}_time", TIMESTAMP, field.nullable)]
    return [kept]


def _floats(name: str, parts: Sequence[str]) -> list[Field]:
    return [Field(f"{name}_{part}", FLOAT64) for part in parts]
