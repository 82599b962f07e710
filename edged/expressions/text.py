"""Strings: how functions of strings are typed, and LIKE.

Parts of strings and positions are computed in the kernel (`text_ops`).  Functions that create
strings make a column before it (`stages`).

A LIKE pattern reaches the kernel as bytes in which `%` is `tree.ANY` and `_` is `tree.ONE`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlglot import exp

from edged.expressions import text_casts
from edged.expressions import types as t
from edged.expressions.arguments import Handler, bound, texts, whole
from edged.expressions.bind import Binder, call
from edged.expressions.text_ops import SUBSTRING_MOST
from edged.expressions.tree import ANY, ONE, Call, Const, Node, null_of

SPACES = "".join(map(chr, (0x20, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000)))
"""What trim removes: Unicode's space separators (category Zs), not tabs or line ends."""

PAD_MOST = 65_536
"""Longest result of lpad and rpad, in code points, so that a length does not fill the memory."""


def _parts(op: str, to: t.SqlType, least: int, most: int) -> Handler:
    """A function of one string and integers: substring, left, right."""

    def handler(b: Binder, args: list[Any], what: str) -> Node:
        nodes = bound(b, args, what, least, most)
        numbers = [whole(b, n, to, what) for n in nodes[1:]]
        if op == "substring" and len(numbers) == 1:
            numbers.append(Const(to, False, SUBSTRING_MOST))
        fault = f"start or length beyond {SUBSTRING_MOST} in {what}" if op != "right" else ""
        if all(isinstance(n, Const) and abs(int(n.value or 0)) <= SUBSTRING_MOST for n in numbers):
            fault = ""
        return call(t.VARCHAR, op, *texts(b, nodes[:1], what), *numbers, fault=fault)

    return handler


def _trim(sides: int) -> Handler:
    def handler(b: Binder, args: list[Any], what: str) -> Node:
        nodes = texts(b, bound(b, args, what, 1, 2), what)
        if len(nodes) == 1:
            nodes.append(Const(t.VARCHAR, False, SPACES.encode()))
        return call(t.VARCHAR, "trim", *nodes, extra=(sides,))

    return handler


def _split_part(b: Binder, args: list[Any], what: str) -> Node:
    *nodes, index = bound(b, args, what, 3, 3)
    return call(t.VARCHAR, "split_part", *texts(b, nodes, what), whole(b, index, t.BIGINT, what))


def _position(b: Binder, args: list[Any], what: str) -> Node:
    return call(t.BIGINT, "position", *texts(b, bound(b, args, what, 2, 2), what))


def _made(op: str, count: int) -> Handler:
    """A function of strings that creates one: upper, lower, reverse, replace."""
    fault = "characters of several code points in {}" if op == "reverse" else ""

    def handler(b: Binder, args: list[Any], what: str) -> Node:
        nodes = texts(b, bound(b, args, what, count, count), what)
        return b.derive(t.VARCHAR, op, nodes, fault=fault.format(what))

    return handler


def _digest(op: str) -> Handler:
    def handler(b: Binder, args: list[Any], what: str) -> Node:
        (x,) = bound(b, args, what, 1, 1)
        if x.type != t.BLOB:
            (x,) = texts(b, [x], what)
        return b.derive(t.VARCHAR, op, [x])

    return handler


def _pad(op: str) -> Handler:
    def handler(b: Binder, args: list[Any], what: str) -> Node:
        s, count, fill = bound(b, args, what, 3, 3)
        s, fill = texts(b, [s, fill], what)
        count = whole(b, count, t.INTEGER, what)
        length = (
            count.value if isinstance(count, Const) and count.value is not None else PAD_MOST + 1
        )
        if isinstance(count, Const) and int(length) > PAD_MOST and count.value is not None:
            b.fail(f"{what} pads to more than {PAD_MOST}", "pad to less")
        sure = isinstance(fill, Const) and fill.value != b"" and int(length) <= PAD_MOST
        fault = "" if sure else f"nothing to pad with, or a length above {PAD_MOST}, in {what}"
        operands = [s, count, fill]
        return b.derive(t.VARCHAR, op, operands, extra=(PAD_MOST,), fault=fault)

    return handler


def _as_text(b: Binder, node: Node, what: str) -> Node:
    """An operand of a concatenation: anything that CAST makes a string of."""
    if node.type == t.BLOB:
        b.fail(f"{what} of BLOB is not supported")
    return text_casts.cast(b, node, t.VARCHAR, what)


def _join(b: Binder, separator: Node, nodes: Sequence[Node], what: str) -> Node:
    """The nodes that are not NULL, with the separator between them."""
    parts = [_as_text(b, n, what) for n in nodes if n.type != t.NULL]
    if not parts:
        parts = [Const(t.VARCHAR, False, b"")]
    return b.derive(t.VARCHAR, "join", [separator, *parts], nullable=separator.nullable)


def _concat(b: Binder, args: list[Any], what: str) -> Node:
    return _join(b, Const(t.VARCHAR, False, b""), bound(b, args, what, 1, 100), what)


def _concat_ws(b: Binder, args: list[Any], what: str) -> Node:
    separator, *nodes = bound(b, args, what, 2, 100)
    (separator,) = texts(b, [separator], what)
    return _join(b, separator, nodes, what)


def _pipes(b: Binder, args: list[Any], what: str) -> Node:
    """a || b, NULL where one is."""
    nodes = bound(b, args, what, 2, 2)
    if any(n.type == t.NULL for n in nodes):
        return null_of(t.NULL)
    parts = [_as_text(b, n, what) for n in nodes]
    return b.derive(t.VARCHAR, "pipe", [Const(t.VARCHAR, False, b""), *parts])


FUNCTIONS: dict[str, Handler] = {
    "substring": _parts("substring", t.BIGINT, 2, 3),
    "left": _parts("left", t.BIGINT, 2, 2),
    "right": _parts("right", t.BIGINT, 2, 2),
    "trim": _trim(3),
    "ltrim": _trim(1),
    "rtrim": _trim(2),
    "split_part": _split_part,
    "strpos": _position,
    **{op: _made(op, 1) for op in ("upper", "lower", "reverse")},
    "replace": _made("replace", 3),
    "lpad": _pad("lpad"),
    "rpad": _pad("rpad"),
    "md5": _digest("md5"),
    "sha256": _digest("sha256"),
    "concat": _concat,
    "concat_ws": _concat_ws,
    "||": _pipes,
}
"""Functions of strings by DuckDB's name."""


def like(b: Binder, node: Any, what: str) -> Node:
    """[NOT] LIKE and ILIKE, with or without ESCAPE; the pattern is a literal."""
    escape = None
    if isinstance(node, exp.Escape):
        escape, node = b.bind(node.expression), node.this
    subject, pattern = b.bind(node.this), b.bind(node.expression)
    for part in (pattern, escape):
        if part is not None and not (isinstance(part, Const) and part.type in (t.VARCHAR, t.NULL)):
            b.fail(f"{what}: LIKE takes a pattern that is a string literal", "or use starts_with")
    (subject,) = texts(b, [subject], what)
    if isinstance(node, exp.ILike):
        subject = b.derive(t.VARCHAR, "lower", [subject])
        (pattern,) = texts(b, [pattern], what)
        pattern = b.derive(t.VARCHAR, "lower", [pattern])
    assert isinstance(pattern, (Const, Call))
    values = [n.value for n in (subject, pattern, escape) if isinstance(n, Const)]
    if None in values or isinstance(pattern, Call):
        return null_of(t.BOOLEAN)
    assert isinstance(pattern.value, bytes)
    test = _like(subject, _pieces(b, pattern.value, escape, what))
    return call(t.BOOLEAN, "not", test) if node.args.get("negate") else test


def _pieces(b: Binder, pattern: bytes, escape: Node | None, what: str) -> bytes:
    """The pattern with `%` as ANY and `_` as ONE, and its escapes resolved."""
    mark = escape.value if isinstance(escape, Const) else b""
    assert isinstance(mark, bytes)
    if len(mark) > 1:
        b.fail(f"{what}: ESCAPE takes one ASCII character, or ''")
    made, at = bytearray(), 0
    while at < len(pattern):
        one = pattern[at : at + 1]
        if one == mark:
            at += 1
            if at == len(pattern):
                b.fail(f"{what}: the pattern ends with its escape character")
            made += pattern[at : at + 1]
        else:
            made.append({b"%": ANY, b"_": ONE}.get(one, one[0]))
        at += 1
    return bytes(made)


def _like(subject: Node, pattern: bytes) -> Call:
    """A pattern of one piece becomes a plain comparison."""
    pieces = pattern.split(bytes([ANY]))
    plain = ONE not in pattern
    op, text = "like", pattern
    if plain and len(pieces) == 1:
        op, text = "eq", pattern
    elif plain and len(pieces) == 2 and not pieces[1]:
        op, text = "starts_with", pieces[0]
    elif plain and len(pieces) == 2 and not pieces[0]:
        op, text = "ends_with", pieces[1]
    elif plain and len(pieces) == 3 and not pieces[0] and not pieces[2]:
        op, text = "contains", pieces[1]
    return Call(t.BOOLEAN, subject.nullable, op, (subject, Const(t.VARCHAR, False, text)))
