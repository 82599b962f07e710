"""strftime and strptime: their formats, checked with the job, as programs for kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from edged.expressions import makers
from edged.expressions import types as t
from edged.expressions.arguments import Handler, bound, texts
from edged.expressions.bind import Binder, call
from edged.expressions.operands import Operand, common
from edged.expressions.runtime_strptime import MARK
from edged.expressions.stages import Made, derived
from edged.expressions.times import timestamp_argument
from edged.expressions.tree import Call, Const, Node, null_of
from kernels.cpu import text_time

_WHOLE = {"c": "%Y-%m-%d %H:%M:%S", "x": "%Y-%m-%d", "X": "%H:%M:%S"}
_WRITTEN = "aAbBdfgGHIjmMpSuUVwWyYzZ"
_READ = "aAbBdfgHImMpSyY"
_BARE = "dHIjmMSy"
CAST_FORMAT = (text_time.DATE, *b" %H:%M:%S", text_time.FRACTION)


def _specifiers(b: Binder, text: str, allowed: str, what: str) -> Iterator[tuple[str, str]]:
    """(literal, "") or ("", specifier with its `-`) in order; refused where one is unknown."""
    at = 0
    while at < len(text):
        if text[at] != "%":
            yield text[at], ""
            at += 1
            continue
        bare = "-" if text[at + 1 : at + 2] == "-" else ""
        letter = text[at + 1 + len(bare) : at + 2 + len(bare)]
        at += 2 + len(bare)
        if letter in _WHOLE and not bare:
            yield from _specifiers(b, _WHOLE[letter], allowed, what)
        elif letter == "%" and not bare:
            yield "%", ""
        elif letter and letter in allowed and (not bare or letter in _BARE):
            yield "", bare + letter
        else:
            known = " ".join(f"%{x}" for x in (*allowed, *_WHOLE))
            b.fail(f"{what}: the specifier %{bare}{letter} is not supported", f"there are {known}")


def _program(b: Binder, text: str, allowed: str, what: str) -> tuple[int, ...]:
    codes: list[int] = []
    for literal, specifier in _specifiers(b, text, allowed, what):
        if specifier == "z":
            codes += b"+00"
        elif specifier and specifier != "Z":
            base = text_time.BARE if specifier[0] == "-" else text_time.SPECIFIER
            codes.append(base + ord(specifier[-1]))
        codes += literal.encode()
    if not codes:
        b.fail(f"{what}: the format is empty")
    return tuple(codes)


def _format(b: Binder, node: Node, what: str) -> str | None:
    if node.type == t.NULL:
        return None
    if not isinstance(node, Const) or not isinstance(node.value, bytes):
        b.fail(f"{what}: the format is a string literal")
    return node.value.decode()


def _strftime(b: Binder, args: list[Any], what: str) -> Node:
    """strftime(time, format), in either order."""
    nodes = bound(b, args, what, 2, 2)
    if nodes[0].type == t.VARCHAR:
        nodes.reverse()
    time, form = nodes
    text = _format(b, form, what)
    if time.type == t.NULL or text is None:
        return null_of(t.VARCHAR)
    extra = _program(b, text, _WRITTEN, what)
    return b.derive(t.VARCHAR, "strftime", [timestamp_argument(b, time, what)], extra=extra)


@derived("strftime")
def _strftime_of(call: Call, args: Sequence[Operand], rows: int) -> Made:
    program = np.array(call.extra, np.int64)
    return makers.run(text_time.format_time, args, rows, common(args, rows), program)


def time_text(b: Binder, time: Node) -> Node:
    """CAST(timestamp AS VARCHAR)."""
    codes = _program(b, " %H:%M:%S", _WRITTEN, "CAST")
    extra = (text_time.DATE, *codes, text_time.FRACTION)
    return b.derive(t.VARCHAR, "strftime", [time], extra=extra)


def date_text(b: Binder, time: Node) -> Node:
    """CAST(date AS VARCHAR), of the date's midnight."""
    return b.derive(t.VARCHAR, "strftime", [time], extra=(text_time.DATE,))


def _strptime(attempt: bool) -> Handler:
    def handler(b: Binder, args: list[Any], what: str) -> Node:
        s, form = bound(b, args, what, 2, 2)
        (s,), text = texts(b, [s], what), _format(b, form, what)
        if text is None:
            return null_of(t.TIMESTAMP)
        if not text:
            b.fail(f"{what}: the format is empty")
        parts = list(_specifiers(b, text, _READ, what))
        letters = [part.strip("-") for _, part in parts if part]
        if len(set(letters)) < len(letters):
            b.fail(f"{what}: a specifier stands twice in the format")
        if ("I" in letters) != ("p" in letters) or {"H", "I"} <= set(letters):
            b.fail(f"{what}: %I and %p stand together, without %H")
        for pair in ("yY", "bm", "Bm", "bB", "fg"):
            if set(pair) <= set(letters):
                b.fail(f"{what}: %{pair[0]} and %{pair[1]} stand for the same")
        program = b"".join(
            bytes([MARK, ord(part[-1])]) if part else literal.encode() for literal, part in parts
        )
        form = Const(t.BLOB, False, program)
        names = Const(t.BLOB, False, bytes(text_time._NAMES))
        if attempt:
            return Call(t.TIMESTAMP, True, "try_strptime", (s, form, names))
        fault = f"a string is not like the format in {what}"
        return call(t.TIMESTAMP, "strptime", s, form, names, fault=fault)

    return handler


FUNCTIONS: dict[str, Handler] = {
    "strftime": _strftime,
    "strptime": _strptime(attempt=False),
    "try_strptime": _strptime(attempt=True),
}
"""By DuckDB's name."""
