"""Regular expressions: RE2's syntax, evaluated by pyarrow.compute before the kernel runs.

Patterns, options and replacements are literals and checked with the job.  DuckDB and pyarrow both
use RE2, in versions whose Unicode tables differ; what depends on those is refused: `\\p{…}`, and
matching without regard to case of a pattern that is not ASCII.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from edged.data.columns import Column
from edged.errors import KernelError
from edged.expressions import arrow, makers
from edged.expressions import types as t
from edged.expressions.arguments import Handler, bound, texts
from edged.expressions.bind import Binder
from edged.expressions.operands import Flags, Operand, common, of_column, of_constant, without
from edged.expressions.stages import Made, derived
from edged.expressions.tree import Call, Const, Node, null_of
from kernels.cpu import text_make

GROUPS_MOST = 9
"""Highest group: a replacement names groups by one digit."""
_OPTIONS = "cimnpslg"
_TEXT = pa.large_string()


def _constant(b: Binder, node: Node, what: str, name: str) -> Const:
    if node.type == t.NULL:
        return null_of(t.VARCHAR)
    if not isinstance(node, Const) or node.type != t.VARCHAR:
        b.fail(f"{what}: the {name} is a string literal")
    return node


def _options(b: Binder, node: Node | None, what: str, allowed: str = "") -> str:
    """The option letters of a call; refused where one is unknown."""
    if node is None:
        return ""
    letters = _constant(b, node, what, "option").value
    if not isinstance(letters, bytes):
        b.fail(f"{what}: the options are a string literal of letters")
    for letter in letters.decode():
        if letter not in _OPTIONS or (letter == "g" and letter not in allowed):
            b.fail(
                f"{what}: there is no option {letter!r}", "i, c, s, l; regexp_replace has g, too"
            )
    return letters.decode()


def _pattern(b: Binder, value: bytes, options: str, what: str) -> str:
    """The pattern with its options, checked by RE2."""
    text = value.decode()
    flags = ""
    for letter in options:
        if letter in "ic":
            flags = flags.replace("i", "") + ("i" if letter == "i" else "")
        elif letter in "smnp":
            flags = flags.replace("s", "") + ("s" if letter == "s" else "")
    if "l" in options:
        text = re.sub(r"([^\w\s]|_)", r"\\\1", text, flags=re.ASCII)
    elif re.search(r"\\[pPQC]", text):
        b.fail(f"{what}: \\p, \\Q and \\C are not supported", "write ranges, or the option 'l'")
    folds = "i" in flags or re.search(r"\(\?[a-zA-Z]*i", text)
    if folds and not text.isascii():
        b.fail(f"{what}: a pattern without regard to case is ASCII", "use lower() on both")
    text = f"(?{flags}){text}" if flags else text
    try:
        _match(pa.array([""], _TEXT), text, np.ones(1, np.uint8))
        _groups(text)
    except (KernelError, ValueError) as problem:
        b.fail(f"{what}: the pattern is wrong: {str(problem).split(': ', 1)[-1]}")
    return text


def _groups(pattern: str) -> list[tuple[int, int]]:
    """Where each capturing group begins, and the length of its opening."""
    found, at, inside = [], 0, False
    while at < len(pattern):
        rest = pattern[at:]
        if rest[0] == "\\":
            at += 2
            continue
        if inside:
            named = re.match(r"\[:\^?\w+:\]", rest)
            at += len(named[0]) if named else 1
            inside = rest[0] != "]" or named is not None
            continue
        if rest[0] == "[":
            opening = re.match(r"\[\^?\]?", rest)
            assert opening is not None
            at, inside = at + len(opening[0]), True
            continue
        group = re.match(r"\((?:\?P?<\w+>|(?!\?))", rest)
        if group:
            found.append((at, len(group[0])))
        at += len(group[0]) if group else 1
    return found


def _named(pattern: str, wanted: Sequence[int]) -> str:
    """The pattern whose group n is called `gn` if wanted, and captures nothing else."""
    made, at = "", 0
    for number, (start, size) in enumerate(_groups(pattern), 1):
        opening = f"(?P<g{number}>" if number in wanted else "(?:"
        made += pattern[at:start] + opening
        at = start + size
    return made + pattern[at:]


def _match(array: Any, pattern: str, valid: Flags) -> Any:
    import pyarrow.compute as pc

    options = pc.MatchSubstringOptions(pattern)
    return arrow.compute("match_substring_regex", [array], pa.bool_(), valid, options)


@derived("regexp_matches")
def _matches_of(call: Call, args: Sequence[Operand], rows: int) -> Made:
    valid = common(args, rows)
    made = _match(args[0].arrow(), str(call.extra[0]), valid)
    return Column(arrow.values(made, np.uint8), valid), None


def _extracted(array: Any, pattern: str, names: Sequence[str], valid: Flags) -> tuple[Any, Flags]:
    """(the groups' texts as columns, which rows match); a row that does not match is empty."""
    kind = pa.struct([(name, _TEXT) for name in names])
    import pyarrow.compute as pc

    options = pc.ExtractRegexOptions(pattern)
    found = arrow.compute("extract_regex", [array], kind, valid, options, fewer=True)
    hit = np.array(found.is_valid().to_numpy(zero_copy_only=False), np.uint8)
    every = np.ones(valid.size, np.uint8)
    columns = []
    for k in range(len(names)):
        given = [found.field(k), pa.scalar("", _TEXT)]
        filled = arrow.compute("coalesce", given, _TEXT, every)
        columns.append(arrow.text_column(filled, every))
    return columns, hit


@derived("regexp_extract")
def _extract_of(call: Call, args: Sequence[Operand], rows: int) -> Made:
    valid = common(args, rows)
    pattern, name = (str(x) for x in call.extra)
    (column,), _ = _extracted(args[0].arrow(), pattern, [name], valid)
    return Column(column.values, valid, column.offsets), None


@derived("regexp_replace_all")
def _replace_all_of(call: Call, args: Sequence[Operand], rows: int) -> Made:
    valid = common(args, rows)
    import pyarrow.compute as pc

    options = pc.ReplaceSubstringOptions(str(call.extra[0]), str(call.extra[1]))
    made = arrow.compute("replace_substring_regex", [args[0].arrow()], _TEXT, valid, options)
    return arrow.text_column(made, valid), None


@derived("regexp_replace")
def _replace_of(call: Call, args: Sequence[Operand], rows: int) -> Made:
    """The first match replaced: what is before it, the replacement's pieces, what is after it."""
    valid = common(args, rows)
    pattern, *pieces = (str(x) for x in call.extra)
    names = sorted(set(re.findall(r"P<(\w+)>", pattern)), key=pattern.index)
    columns, hit = _extracted(args[0].arrow(), pattern, names, valid)
    parts = [of_constant(Const(t.VARCHAR, False, b""), rows)]
    for piece in ["=before", *pieces, "=after"]:
        if piece.startswith("="):
            column = columns[names.index(piece[1:])]
        else:
            column = of_constant(Const(t.VARCHAR, False, piece[1:].encode()), rows).whole().column
        parts.append(of_column(t.VARCHAR, Column(column.values, hit, column.offsets), rows))
    whole = args[0].whole().column
    parts.append(
        of_column(t.VARCHAR, Column(whole.values, without(valid, hit), whole.offsets), rows)
    )
    return makers.run(text_make.join, parts, rows, valid)


def _matches(full: bool) -> Handler:
    def handler(b: Binder, args: list[Any], what: str) -> Node:
        s, pattern, *option = bound(b, args, what, 2, 3)
        (s,), value = texts(b, [s], what), _constant(b, pattern, what, "pattern").value
        options = _options(b, option[0] if option else None, what)
        if not isinstance(value, bytes):
            return null_of(t.BOOLEAN)
        text = _pattern(b, value, options, what)
        text = rf"\A(?:{text})\z" if full else text
        return b.derive(t.BOOLEAN, "regexp_matches", [s], extra=(text,))

    return handler


def _extract(b: Binder, args: list[Any], what: str) -> Node:
    """regexp_extract(s, pattern[, group[, options]]): '' where nothing matches."""
    s, pattern, *rest = bound(b, args, what, 2, 4)
    (s,), value = texts(b, [s], what), _constant(b, pattern, what, "pattern").value
    options = _options(b, rest[1] if len(rest) > 1 else None, what)
    group = rest[0] if rest else Const(t.INTEGER, False, 0)
    number = group.value if isinstance(group, Const) and group.type.integer else None
    if not isinstance(number, int) or not 0 <= number <= GROUPS_MOST:
        b.fail(f"{what}: the group is a constant from 0 to {GROUPS_MOST}")
    if not isinstance(value, bytes):
        return null_of(t.VARCHAR)
    text = _pattern(b, value, options, what)
    if number > len(_groups(text)):
        b.fail(f"{what}: the pattern has {len(_groups(text))} groups", "DuckDB gives '' always")
    text = _named(text, [number]) if number else f"(?P<g0>{_named(text, [])})"
    return b.derive(t.VARCHAR, "regexp_extract", [s], extra=(text, f"g{number}"))


def _replace(b: Binder, args: list[Any], what: str) -> Node:
    """regexp_replace(s, pattern, replacement[, options]): the first match, with 'g' all."""
    s, pattern, replacement, *option = bound(b, args, what, 3, 4)
    (s,), value = texts(b, [s], what), _constant(b, pattern, what, "pattern").value
    new = _constant(b, replacement, what, "replacement").value
    options = _options(b, option[0] if option else None, what, "g")
    if not isinstance(value, bytes) or not isinstance(new, bytes):
        return null_of(t.VARCHAR)
    text = _pattern(b, value, options, what)
    pieces = _pieces(b, new.decode(), len(_groups(text)), what)
    if "g" in options:
        extra: tuple[str, ...] = (text, new.decode())
        return b.derive(t.VARCHAR, "regexp_replace_all", [s], extra=extra)
    wanted = [int(p[2:]) for p in pieces if p.startswith("=g")]
    matched = f"(?P<g0>{_named(text, wanted)})" if 0 in wanted else f"(?:{_named(text, wanted)})"
    extra = (rf"\A(?P<before>(?s:.*?)){matched}(?P<after>(?s:.*))\z", *pieces)
    return b.derive(t.VARCHAR, "regexp_replace", [s], extra=extra)


def _pieces(b: Binder, text: str, groups: int, what: str) -> list[str]:
    """A replacement as pieces: `=gN` is group N, `'…` is text."""
    made, literal, at = [], "", 0
    while at < len(text):
        if text[at] != "\\":
            literal, at = literal + text[at], at + 1
            continue
        mark = text[at + 1 : at + 2]
        if mark.isdigit() and mark.isascii():
            if int(mark) > groups:
                b.fail(f"{what}: the replacement names group {mark} of {groups}")
            made += [f"'{literal}", f"=g{mark}"]
            literal = ""
        elif mark == "\\":
            literal += mark
        else:
            b.fail(f"{what}: \\ in the replacement is followed by a digit or \\")
        at += 2
    return [*made, f"'{literal}"]


FUNCTIONS: dict[str, Handler] = {
    "regexp_matches": _matches(full=False),
    "regexp_full_match": _matches(full=True),
    "regexp_extract": _extract,
    "regexp_replace": _replace,
}
"""By DuckDB's name."""
