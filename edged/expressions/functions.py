"""The table of functions that expressions may call, and their types.

sqlglot has classes for some functions and leaves others anonymous; `_call_of` reduces both to
DuckDB's name and the arguments.  A function that is not in `FUNCTIONS` is refused with a list of
those that are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from sqlglot import exp

from edged.expressions import lists, parse, regexps, text, time_formats, times
from edged.expressions import types as t
from edged.expressions.arguments import Handler, bound
from edged.expressions.arithmetic import arithmetic, bits
from edged.expressions.bind import Binder, call
from edged.expressions.tree import Call, Const, Node, null_of
from governors.registry import Registry

FUNCTIONS: Registry[Handler] = Registry("edged.functions", __name__, "function")
"""Every function by DuckDB's name; plug-ins add theirs (`edged.expressions.plugin_functions`)."""

_IGNORED = {"ignore_nulls", "safe", "coalesce", "big_int"}
"""Arguments that sqlglot sets by itself."""

_RENAMED = {
    "bitwisexor": "xor", "timestamptrunc": "date_trunc", "datetrunc": "date_trunc",
    "timetounix": "epoch", "unixtotime": "make_timestamp", "datebin": "time_bucket",
    "dayofweekiso": "isodow", "dayofweek": "dow", "weekday": "dow", "dayofmonth": "day",
    "dayofyear": "doy", "weekofyear": "week", "startswith": "starts_with", "prefix": "starts_with",
    "endswith": "ends_with", "suffix": "ends_with", "power": "pow", "ceiling": "ceil",
    "len": "length", "char_length": "length", "character_length": "length", "datepart": "date_part",
    "ucase": "upper", "lcase": "lower", "substr": "substring", "splitpart": "split_part",
    "concatws": "concat_ws", "timetostr": "strftime", "strtotime": "strptime",
    "todays": "to_days", "datediff": "date_diff", "instr": "strpos", "dpipe": "||",
    "logarithm": "log", "arraymin": "list_min", "arraymax": "list_max",
}  # fmt: skip


def _call_of(node: Any) -> tuple[str, list[Any]]:
    """DuckDB's name of a function node and its arguments, in order."""
    if isinstance(node, exp.Anonymous):
        name = node.name.lower()
        return _RENAMED.get(name, name), list(node.expressions)
    name = type(node).__name__.lower()
    if type(node) in _SHAPES:
        name, keys = _SHAPES[type(node)](node)
    else:
        keys = [key for key in node.arg_types if key not in _IGNORED]
    args: list[Any] = []
    for key in keys:
        value = node.args.get(key)
        if value is not None and not isinstance(value, bool):
            args.extend(value if isinstance(value, list) else [value])
    return _RENAMED.get(name, name), args


def _trim_name(node: Any) -> str:
    side = str(node.args.get("position"))
    return {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(side, "trim")


def _unix_name(node: Any) -> str:
    scale = node.args.get("scale")
    return {"3": "epoch_ms", "6": "make_timestamp"}.get(scale.name if scale else "", "to_timestamp")


_SHAPES: dict[Any, Callable[[Any], tuple[str, list[str]]]] = {
    exp.UnixToTime: lambda n: (_unix_name(n), ["this"]),
    exp.Trim: lambda n: (_trim_name(n), ["this", "expression"]),
    exp.Pad: lambda n: (
        "lpad" if n.args.get("is_left") else "rpad", ["this", "expression", "fill_pattern"]
    ),
    exp.SHA2: lambda n: (f"sha{n.args['length'].name}", ["this"]),
    exp.RegexpLike: lambda n: ("regexp_matches", ["this", "expression", "flag"]),
    exp.RegexpFullMatch: lambda n: ("regexp_full_match", ["this", "expression", "options"]),
    exp.RegexpExtract: lambda n: (
        "regexp_extract", ["this", "expression", "group", "parameters"]
    ),
    exp.RegexpReplace: lambda n: (
        "regexp_replace", ["this", "expression", "replacement", "modifiers"]
    ),
    exp.DateDiff: lambda n: ("date_diff", ["unit", "expression", "this"]),
    exp.DateBin: lambda n: ("time_bucket", ["this", "expression", "unit"]),
    exp.StrPosition: lambda n: ("strpos", ["this", "substr"]),
}  # fmt: skip
"""Name, and keys of the arguments in DuckDB's order, of classes whose own order is another."""


def bind_call(b: Binder, node: Any) -> Node:
    """A function call, typed; refused where edged has no such function."""
    what = parse.excerpt(node)
    if isinstance(node, (exp.Like, exp.Escape, exp.ILike)):
        return text.like(b, node, what)
    if not isinstance(node, (exp.Func, exp.DPipe)) or isinstance(node, (exp.AggFunc, exp.Window)):
        b.fail(f"{what} is not supported", "an expression works on one row's columns")
    name, args = _call_of(node)
    handler = FUNCTIONS.load().get(name)
    if handler is None and (problem := FUNCTIONS.why_missing(name)):
        b.fail(problem, "repair or remove it; see edged plugins")
    if handler is None:
        name = what.split("(")[0].lower()
        b.fail(f"function {name}() is not supported", f"there are {', '.join(sorted(FUNCTIONS))}")
    return handler(b, args, what)


def _numbers(b: Binder, args: Sequence[Any], what: str, least: int, most: int) -> list[Node]:
    nodes = bound(b, args, what, least, most)
    for n in nodes:
        if not n.type.numeric and n.type != t.NULL:
            b.fail(f"{what} takes numbers, not {n.type}", "CAST it")
    return nodes


def _double(op: str, count: int = 1) -> Handler:
    """A function of doubles that returns a double."""

    def handler(b: Binder, args: list[Any], what: str) -> Node:
        nodes = _numbers(b, args, what, count, count)
        return call(t.DOUBLE, op, *(b.cast(n, t.DOUBLE, what) for n in nodes))

    return handler


def _test(op: str) -> Handler:
    """isnan, isinf, isfinite."""

    def handler(b: Binder, args: list[Any], what: str) -> Node:
        (x,) = _numbers(b, args, what, 1, 1)
        return call(t.BOOLEAN, op, x if x.type.real else b.cast(x, t.DOUBLE, what))

    return handler


def _abs(b: Binder, args: list[Any], what: str) -> Node:
    (x,) = _numbers(b, args, what, 1, 1)
    x = null_of(t.BIGINT) if x.type == t.NULL else x
    fault = f"overflow of {x.type} in {what}" if x.type.kind == "int" else ""
    return call(x.type, "abs", x, fault=fault)


def _sign(b: Binder, args: list[Any], what: str) -> Node:
    (x,) = _numbers(b, args, what, 1, 1)
    return call(t.TINYINT, "sign", null_of(t.BIGINT) if x.type == t.NULL else x)


def _whole(op: str) -> Handler:
    """floor and ceil: FLOAT stays FLOAT, integers become DOUBLE."""

    def handler(b: Binder, args: list[Any], what: str) -> Node:
        (x,) = _numbers(b, args, what, 1, 1)
        x = x if x.type.real else b.cast(x, t.DOUBLE, what)
        return call(x.type, op, x)

    return handler


def _round(op: str) -> Handler:
    """round and trunc, with or without a number of digits."""

    def handler(b: Binder, args: list[Any], what: str) -> Node:
        nodes = _numbers(b, args, what, 1, 2)
        x = nodes[0]
        if x.type == t.NULL:
            x = null_of(t.DOUBLE)
        if op == "round" and x.type.kind == "uint":
            if x.type == t.UBIGINT:
                b.fail(f"{what} of UBIGINT is a 128-bit integer", "CAST it to BIGINT or DOUBLE")
            x = b.cast(x, t.BIGINT, what)
        if len(nodes) == 1:
            return x if x.type.integer else call(x.type, op, x)
        digits = nodes[1]
        if digits.type != t.NULL and (digits.type.bits > 32 or digits.type in (t.UINTEGER,)):
            b.fail(f"{what}: the number of digits is an INTEGER, not {digits.type}", "CAST it")
        if not digits.type.integer and digits.type != t.NULL:
            b.fail(f"{what}: the number of digits is an INTEGER, not {digits.type}", "CAST it")
        digits = b.cast(digits, t.INTEGER, what)
        fault = f"overflow of {x.type} in {what}" if x.type.integer else ""
        return call(x.type, f"{op}_digits", x, digits, fault=fault)

    return handler


def _log(b: Binder, args: list[Any], what: str) -> Node:
    """log(x) is log10; log(base, x)."""
    nodes = [b.cast(n, t.DOUBLE, what) for n in _numbers(b, args, what, 1, 2)]
    if len(nodes) == 1:
        return call(t.DOUBLE, "log10", nodes[0])
    base = nodes[0].value if isinstance(nodes[0], Const) else None
    if base in ("2.0", "10.0"):
        return call(t.DOUBLE, "log2" if base == "2.0" else "log10", nodes[1])
    return call(t.DOUBLE, "log", *nodes)


def _named(name: str) -> Handler:
    return lambda b, args, what: _log(b, [exp.Literal.number(name[3:]), *args], what)


def _pi(b: Binder, args: list[Any], what: str) -> Node:
    bound(b, args, what, 0, 0)
    return Const(t.DOUBLE, False, repr(math.pi))


def _bit_count(b: Binder, args: list[Any], what: str) -> Node:
    (x,) = bound(b, args, what, 1, 1)
    x = null_of(t.BIGINT) if x.type == t.NULL else x
    if not x.type.integer:
        b.fail(f"{what} takes integers, not {x.type}", "CAST it")
    return call(t.TINYINT, "bit_count", x)


def _extreme(op: str) -> Handler:
    """greatest and least; NULLs are ignored, NaN is the greatest."""

    def handler(b: Binder, args: list[Any], what: str) -> Node:
        nodes = bound(b, args, what, 1, 1_000)
        kind, nodes = b.unify(nodes, what)
        if kind in (t.NULL, t.HUGEINT):
            b.fail(f"{what} has no type that a column can have", "CAST its arguments")
        if kind == t.BLOB:
            b.fail(f"{what} of BLOB is not supported")
        return Call(kind, all(n.nullable for n in nodes), op, tuple(nodes))

    return handler


def _binary(op: str) -> Handler:
    def handler(b: Binder, args: list[Any], what: str) -> Node:
        left, right = bound(b, args, what, 2, 2)
        return (bits if op == "xor" else arithmetic)(b, op, left, right, what)

    return handler


def _length(op: str, takes: t.SqlType) -> Handler:
    def handler(b: Binder, args: list[Any], what: str) -> Node:
        (x,) = bound(b, args, what, 1, 1)
        x = null_of(takes) if x.type == t.NULL else x
        if x.type != takes:
            b.fail(f"{what} takes {takes}, not {x.type}")
        return call(t.BIGINT, op, x)

    return handler


def _affix(op: str) -> Handler:
    """starts_with, ends_with, contains."""

    def handler(b: Binder, args: list[Any], what: str) -> Node:
        nodes = bound(b, args, what, 2, 2)
        nodes = [null_of(t.VARCHAR) if n.type == t.NULL else n for n in nodes]
        for n in nodes:
            if n.type != t.VARCHAR:
                b.fail(f"{what} takes strings, not {n.type}")
        return call(t.BOOLEAN, op, *nodes)

    return handler


def _unit_first(use: Callable[[Binder, str, Node, str], Node]) -> Handler:
    """date_trunc and date_part: a unit's name and a time, in either order (sqlglot swaps)."""

    def handler(b: Binder, args: list[Any], what: str) -> Node:
        units = [a for a in args if isinstance(a, exp.Var) or (a.is_string)]
        if len(args) != 2 or not units:
            b.fail(f"{what} takes a unit in quotes and a TIMESTAMP")
        other = args[1] if args[0] is units[0] else args[0]
        return use(b, units[0].name, b.bind(other), what)

    return handler


def _time(use: Callable[[Binder, Node, str], Node]) -> Handler:
    def handler(b: Binder, args: list[Any], what: str) -> Node:
        (x,) = bound(b, args, what, 1, 1)
        return use(b, x, what)

    return handler


def _part(name: str) -> Handler:
    return _time(lambda b, x, what: times.part(b, name, x, what))


def _bucket(b: Binder, args: list[Any], what: str) -> Node:
    if len(args) == 3 and isinstance(args[2], exp.Var):
        args[2] = exp.column(args[2].name)  # sqlglot takes a column here for a unit
    width, x, *origin = bound(b, args, what, 2, 3)
    return times.bucket(b, width, x, origin[0] if origin else None, what)


def _difference(b: Binder, args: list[Any], what: str) -> Node:
    if len(args) != 3 or not (isinstance(args[0], exp.Var) or args[0].is_string):
        b.fail(f"{what} takes a unit in quotes and two times")
    return times.difference(b, args[0].name, b.bind(args[1]), b.bind(args[2]), what)


_BUILT_IN: dict[str, Handler] = {
    "abs": _abs,
    "sign": _sign,
    **{f: _double(f) for f in (
        "sqrt", "exp", "ln", "sin", "cos", "tan", "asin", "acos", "atan",
        "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "degrees", "radians",
    )},
    "log": _log,
    "log2": _named("log2"),
    "log10": _named("log10"),
    **{f: _double(f, 2) for f in ("pow", "atan2")},
    "pi": _pi,
    "floor": _whole("floor"),
    "ceil": _whole("ceil"),
    "round": _round("round"),
    "trunc": _round("trunc"),
    "mod": _binary("mod"),
    "xor": _binary("xor"),
    "bit_count": _bit_count,
    "isnan": _test("isnan"),
    "isinf": _test("isinf"),
    "isfinite": _test("isfinite"),
    "greatest": _extreme("greatest"),
    "least": _extreme("least"),
    "length": _length("length", t.VARCHAR),
    "strlen": _length("strlen", t.VARCHAR),
    "octet_length": _length("strlen", t.BLOB),
    "starts_with": _affix("starts_with"),
    "ends_with": _affix("ends_with"),
    "contains": _affix("contains"),
    "date_trunc": _unit_first(times.trunc),
    "date_part": _unit_first(times.part),
    "extract": _unit_first(times.part),
    **{f: _part(f) for f in (
        "year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond",
        "microsecond", "dow", "isodow", "doy",
    )},
    "epoch": _time(times.epoch),
    "epoch_us": _time(times.epoch_us),
    "epoch_ms": _time(times.epoch_ms),
    "make_timestamp": _time(times.make_timestamp),
    "to_timestamp": _time(times.of_seconds(t.TIMESTAMPTZ)),
    "to_seconds": _time(times.of_seconds(t.INTERVAL)),
    "to_minutes": _time(times.length("minute")),
    "to_hours": _time(times.length("hour")),
    "to_days": _time(times.length("day")),
    "date_diff": _difference,
    "time_bucket": _bucket,
    **text.FUNCTIONS,
    **lists.FUNCTIONS,
    **regexps.FUNCTIONS,
    **time_formats.FUNCTIONS,
}  # fmt: skip
"""By DuckDB's name; aliases are in `_RENAMED`."""

for _name, _handler in _BUILT_IN.items():
    FUNCTIONS.register(_name, _handler, __name__)
