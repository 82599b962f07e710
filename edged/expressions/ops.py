"""The Python text of each operation, by the types of its operands.

`bad` is an expression over the value `$`; it is true where the operation is an error.
"""

from __future__ import annotations

from collections.abc import Sequence

from edged.expressions import lists, literals, text_ops
from edged.expressions import types as t
from edged.expressions.made import ZERO, Made, Operand
from edged.expressions.plugin_functions import PLUGIN, alias
from edged.expressions.tree import Call
from edged.expressions.types import SqlType


def render(node: Call, operands: Sequence[Operand]) -> Made:
    """The Python of a strict operation."""
    kind = node.type if node.op not in _BY_ARGUMENT else node.args[0].type
    names = [name for name, _ in operands]
    if node.op in _COMPARISONS:
        kinds = (node.args[0].type, node.args[1].type)
        return Made(comparison(node.op, kinds, operands))
    if node.op in ("cast", "try_cast"):
        return _cast(names[0], node.args[0].type, node.type)
    if node.op in lists.OPS:
        return lists.render(node, operands)
    if node.op in text_ops.OPS:
        return text_ops.render(node, operands)
    if node.op in _TEXT:
        flat = ", ".join(f"{name}, {size}" for name, size in operands)
        return Made(f"text_{_TEXT[node.op]}({flat})")
    if node.op == PLUGIN:
        return Made(f"{node.type.carry}({alias(node)}({', '.join(names)}))")
    if node.op == "bit_count":
        masked = f"{names[0]} & {kind.high if kind.kind == 'uint' else 2 * kind.high + 1}"
        return Made(f"bit_count(uint64({names[0] if kind.bits == 64 else masked}))")
    if node.op == "strlen":
        return Made(operands[0][1])
    if node.op in _TIME:
        return _time(node, operands)
    if node.op in _MATH:
        return Made(_MATH[node.op].format(*names, kind=kind.carry))
    family = _FLOAT if kind.real else _UNSIGNED if kind == t.UBIGINT else _INTEGER
    return family(node.op, kind, names)


_BY_ARGUMENT = ("bit_count", "sign", "abs", "not", "invert", "isnan", "isinf", "isfinite")
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_TEXT = {
    "starts_with": "starts",
    "ends_with": "ends",
    "contains": "contains",
    "like": "like",
    "length": "length",
}
_MATH = {
    "not": "not {0}",
    "sqrt": "sqrt({0})",
    "exp": "exp({0})",
    "ln": "log({0})",
    "log": "log_base({0}, {1})",
    "log2": "log2({0})",
    "log10": "log10({0})",
    "pow": "pow({0}, {1})",
    "atan2": "atan2({0}, {1})",
    "degrees": "degrees({0})",
    "radians": "radians({0})",
    **{
        f: f"{f}({{0}})"
        for f in ("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh")
    },
    **{f: f"{f}({{0}})" for f in ("asinh", "acosh", "atanh", "isnan", "isinf", "isfinite")},
    **{f: f"{f}_{{kind}}({{0}})" for f in ("floor", "ceil")},
}


def _range(kind: SqlType) -> str:
    """True where the int64 `$` is out of range of a narrower integer type."""
    return f"($ < {kind.low}) | ($ > {kind.high})"


def _INTEGER(op: str, kind: SqlType, names: Sequence[str]) -> Made:
    a, b = (*names, "")[:2]
    wide = kind.bits == 64
    if op in ("add", "sub", "mul"):
        if wide:
            return Made(f"s{op}({a}, {b})", pair=True)
        return Made(f"w{op}({a}, {b})", _range(kind))
    if op in ("idiv", "mod"):
        overflow = "" if kind.kind == "uint" else f" | (({a} == {kind.low}) & ({b} == -1))"
        return Made(f"{'div' if op == 'idiv' else 'mod'}_int64({a}, {b})", f"({b} == 0){overflow}")
    if op in ("neg", "abs"):
        value = f"wsub(0, {a})" if op == "neg" else f"abs_int64({a})"
        return Made(value, f"{a} == {kind.low}" if kind.kind != "uint" else _range(kind))
    if op == "sign":
        return Made(f"int64({a} > 0) - int64({a} < 0)")
    if op in ("and_bits", "or_bits", "xor"):
        return Made(f"{a} {'&' if op == 'and_bits' else '|' if op == 'or_bits' else '^'} {b}")
    if op == "invert":
        return Made(f"~{a}" if kind.kind == "int" else f"{a} ^ {kind.high}")
    if op == "shl":
        room = kind.bits + (kind.kind == "uint")
        return Made(f"shl_int64({a}, {b})", f"shl_bad({a}, {b}, {room})")
    if op == "shr":
        return Made(f"shr_int64({a}, {b}, {kind.bits})")
    if op == "round_digits":
        return _rounded(kind, a, b)
    assert op == "trunc_digits", op
    return Made(f"trunc_digits_int({a}, {b})")


def _rounded(kind: SqlType, a: str, b: str) -> Made:
    if kind.bits == 64:
        return Made(f"round_digits_int({a}, {b})", pair=True)
    return Made(f"round_digits_int({a}, {b})[0]", _range(kind))


def _UNSIGNED(op: str, kind: SqlType, names: Sequence[str]) -> Made:
    """uint64, which is carried as itself."""
    a, b = (*names, "")[:2]
    simple = {
        "add": Made(f"{a} + {b}", f"$ < {a}"),
        "sub": Made(f"{a} - {b}", f"{a} < {b}"),
        "mul": Made(f"umul({a}, {b})", pair=True),
        "idiv": Made(f"div_uint64({a}, {b})", f"{b} == uint64(0)"),
        "mod": Made(f"mod_uint64({a}, {b})", f"{b} == uint64(0)"),
        "neg": Made("uint64(0)", f"{a} != uint64(0)"),
        "abs": Made(a),
        "sign": Made(f"int64({a} > uint64(0))"),
        "and_bits": Made(f"{a} & {b}"),
        "or_bits": Made(f"{a} | {b}"),
        "xor": Made(f"{a} ^ {b}"),
        "invert": Made(f"~{a}"),
        "shl": Made(f"shl_uint64({a}, {b})", f"shl_bad_uint64({a}, {b})"),
        "shr": Made(f"shr_uint64({a}, {b})"),
        "trunc_digits": Made(f"trunc_digits_uint({a}, {b})"),
    }
    return simple[op]


def _FLOAT(op: str, kind: SqlType, names: Sequence[str]) -> Made:
    a, b = (*names, "")[:2]
    c = kind.carry
    simple = {
        "add": Made(f"{a} + {b}"),
        "sub": Made(f"{a} - {b}"),
        "mul": Made(f"{a} * {b}"),
        "div": Made(f"{a} / {b}"),
        "idiv": Made(f"{a} / {b}", f"{b} == 0"),
        "mod": Made(f"frem_{c}({a}, {b})", f"{b} == 0"),
        "neg": Made(f"-{a}"),
        "abs": Made(f"abs({a})"),
        "sign": Made(f"sign_float({a})"),
        "round": Made(f"round_{c}({a})"),
        "trunc": Made(f"trunc_{c}({a})"),
        "round_digits": Made(f"{c}(round_digits_float(float64({a}), {b}))"),
        "trunc_digits": Made(f"{c}(trunc_digits_float(float64({a}), {b}))"),
    }
    return simple[op]


def comparison(op: str, kinds: tuple[SqlType, SqlType], operands: Sequence[Operand]) -> str:
    """A comparison of two values that are not null, in DuckDB's total order (NaN is greatest)."""
    (a, a_size), (b, b_size) = operands
    if kinds[0].variable:
        if op in ("eq", "ne"):
            same = f"text_same({a}, {a_size}, {b}, {b_size})"
            return same if op == "eq" else f"not {same}"
        return f"text_order({a}, {a_size}, {b}, {b_size}) {_COMPARISONS[op]} 0"
    if kinds[0].real:
        return _real(op, a, b)
    if kinds[0].kind == "bool":
        return f"int64({a}) {_COMPARISONS[op]} int64({b})"
    if (kinds[0] == t.UBIGINT) != (kinds[1] == t.UBIGINT):
        return _mixed(op, a, b, kinds[0] == t.UBIGINT)
    return f"{a} {_COMPARISONS[op]} {b}"


def _real(op: str, a: str, b: str) -> str:
    forms = {
        "eq": "({0} == {1}) | (({0} != {0}) & ({1} != {1}))",
        "ne": "({0} != {1}) & (({0} == {0}) | ({1} == {1}))",
        "gt": "(not ({0} <= {1})) & ({1} == {1})",
        "ge": "({0} >= {1}) | ({0} != {0})",
    }
    if op in ("lt", "le"):
        op, a, b = ("gt" if op == "lt" else "ge"), b, a
    return forms[op].format(a, b)


def _mixed(op: str, a: str, b: str, first_unsigned: bool) -> str:
    """int64 against uint64, exactly."""
    s, u = (b, a) if first_unsigned else (a, b)
    less, same = f"less_signed({s}, {u})", f"same_signed({s}, {u})"
    if op in ("eq", "ne"):
        return same if op == "eq" else f"not {same}"
    if first_unsigned:
        op = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}[op]
    return {
        "lt": less,
        "le": f"{less} | {same}",
        "gt": f"not ({less} | {same})",
        "ge": f"not {less}",
    }[op]


def _cast(a: str, source: SqlType, to: SqlType) -> Made:
    if to.kind == "bool":
        return Made(f"{a} != {ZERO[source.carry]}")
    if source.kind == "bool":
        zero, one = ZERO[to.carry], f"{to.carry}(1)"
        return Made(f"{one} if {a} else {zero}")
    if to.integer:
        return _to_integer(a, source, to)
    bad = f"isinf($) & (not isinf({a}))" if source.real and to == t.FLOAT else ""
    return Made(f"{to.carry}({a})", bad)


def _to_integer(a: str, source: SqlType, to: SqlType) -> Made:
    if source.real:
        rounded = "round" if source.kind == "decimal" else "rint"
        value = f"{rounded}_float64(float64({a}))"
        low, past = float(to.low), float(1 << (to.bits - (to.kind == "int")))
        bad = f"not (({value} >= {low!r}) & ({value} < {past!r}))"
        return Made(f"to_{to.carry}({value})", bad)
    if source.carry == to.carry == "uint64":
        return Made(a)
    if source.carry == "uint64":
        return Made(f"int64({a})", f"{a} > uint64({to.high})")
    if to.carry == "uint64":
        return Made(f"uint64({a})", f"{a} < 0")
    return Made(a, _range(to))


_TIME = (
    "part", "date_trunc", "epoch", "epoch_us", "epoch_ms", "interval_ms", "make_timestamp",
    "add_months", "bucket", "bucket_at", "to_utc", "to_local", "seconds_us", "ordinal", "same",
)  # fmt: skip


def _time(node: Call, operands: Sequence[Operand]) -> Made:
    names = [name for name, _ in operands]
    a, extra = names[0], node.extra
    if node.op == "part":
        return Made(f"time.{extra[0]!s}({a})")
    if node.op == "date_trunc":
        return _trunc(str(extra[0]), a)
    simple = {
        "epoch": Made(f"float64({a}) / 1000000.0"),
        "epoch_us": Made(a),
        "same": Made(a),
        "epoch_ms": Made(f"time.milliseconds({a})"),
        "interval_ms": Made(f"div_int64({a}, 1000)"),
    }
    if node.op in simple:
        return simple[node.op]
    if node.op == "ordinal":
        return _ordinal(str(extra[0]), a)
    if node.op in ("to_utc", "to_local"):
        table = ", ".join(operands[1])
        return Made(f"time.zone_shift({a}, {table}, {node.op == 'to_utc'})", pair=True)
    if node.op == "bucket_at":
        return Made(f"time.bucket_at({a}, {names[1]}, {int(extra[0]):d})", pair=True)
    args = ", ".join((a, *(f"{int(x):d}" for x in extra)))
    function = "smul" if node.op == "make_timestamp" else f"time.{node.op}"
    return Made(f"{function}({args})", pair=True)


def _ordinal(unit: str, a: str) -> Made:
    """The number of a time's unit, counted from a fixed one."""
    if unit in literals.MONTHS:
        return Made(f"time.ordinal_months({a}, {literals.MONTHS[unit]:d})")
    return Made(f"time.ordinal_fixed({a}, {literals.FIXED_US[unit]:d})")


def _trunc(unit: str, a: str) -> Made:
    if unit == "week":
        return Made(f"time.trunc_week({a})")
    if unit in literals.MONTHS:
        return Made(f"time.trunc_months({a}, {literals.MONTHS[unit]:d})")
    return Made(f"time.trunc_fixed({a}, {literals.FIXED_US[unit]:d})")
