"""The kernels that make texts make those of their naive twins."""

from __future__ import annotations

import struct

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edged.data.columns import Column
from edged.expressions import makers, stages, unicode_case
from edged.expressions import types as t
from edged.expressions.operands import of_column, of_constant
from edged.expressions.tree import Call, Const
from edged.expressions.unicode_joiners import JOINERS
from kernels.cpu import text_make, text_number, text_time
from tests.naive import text_make as naive
from tests.naive import text_number as naive_number
from tests.naive import text_time as naive_time
from tests.whole import examples

TEXTS = st.text(st.sampled_from("aAbé日😀 ,"), max_size=6)
FEW = settings(max_examples=examples(40))


def column(values):
    """Texts, None for null, as an operand."""
    data = [b"" if v is None else v.encode() for v in values]
    offsets = np.cumsum([0, *map(len, data)]).astype(np.int64)
    valid = np.array([v is not None for v in values], np.uint8)
    made = Column(np.frombuffer(b"".join(data) + b"\0", np.uint8), valid, offsets)
    return of_column(t.VARCHAR, made, len(values))


def numbers(values, dtype=np.int64):
    """Numbers as an operand."""
    return of_column(t.BIGINT, Column(np.array(values, dtype)), len(values))


def read(made):
    """Texts of a made column, None for null and for an error."""
    c, bad = made
    raw = c.values.tobytes()
    rows = len(c.offsets) - 1
    good = [
        (c.valid is None or c.valid[i]) and not (bad is not None and bad[i]) for i in range(rows)
    ]
    return [raw[c.offsets[i] : c.offsets[i + 1]].decode() if good[i] else None for i in range(rows)]


@FEW
@given(st.lists(st.tuples(*[st.none() | TEXTS] * 3), min_size=1, max_size=8))
def test_join_leaves_out_nulls_and_the_rows_where_all_parts_are_null_are_empty(rows):
    columns = [column(c) for c in zip(*rows, strict=True)]
    made = makers.run(text_make.join, columns, len(rows), columns[0].column.valid)
    assert read(made) == [None if s is None else naive.join(s, *parts) for s, *parts in rows]


@FEW
@given(st.lists(st.tuples(TEXTS, st.integers(-2, 9), TEXTS), min_size=1, max_size=8))
def test_pads_and_replacements_are_those_of_the_naive_twins(rows):
    s, count, fill = zip(*rows, strict=True)
    valid, operands = np.ones(len(rows), np.uint8), [column(s), numbers(count), column(fill)]
    for left in (1, 0):
        made = makers.run(text_make.pad, operands, len(rows), valid, np.array([left, 100]))
        assert read(made) == [naive.pad(left, *row) for row in rows]
    new = of_constant(Const(t.VARCHAR, False, "xé".encode()), len(rows))
    made = makers.run(text_make.replace, [operands[2], operands[0], new], len(rows), valid)
    assert read(made) == [naive.replace(f, a, "xé") for a, _, f in rows]


@FEW
@example(["ab"])
@given(st.lists(st.text(max_size=200) | TEXTS, min_size=1, max_size=5))
def test_digests_and_case_are_those_of_the_naive_twins(texts):
    texts = [s.encode("utf-8", "replace").decode() for s in texts]
    for op in ("md5", "sha256"):
        made = stages.DERIVED[op](Call(t.VARCHAR, False, op, ()), [column(texts)], len(texts))
        assert read(made) == [getattr(naive, op)(s) for s in texts]
    mapping = {}
    for first, last, step, offset in unicode_case.UPPER.reshape(-1, 4).tolist():
        mapping |= {point: point + offset for point in range(first, last + 1, step)}
    joiners = {c for a, b in JOINERS.reshape(-1, 2).tolist() for c in range(a, b + 1)}
    made = stages.DERIVED["reverse"](Call(t.VARCHAR, False, "", ()), [column(texts)], len(texts))
    assert read(made) == [naive.reverse(s, joiners) for s in texts]
    valid = np.ones(len(texts), np.uint8)
    made = makers.run(text_make.recode, [column(texts)], len(texts), valid, unicode_case.UPPER)
    assert read(made) == [naive.recode(s, mapping) for s in texts]


def test_digests_hold_around_the_edges_of_their_blocks():
    texts = ["x" * n for n in (0, 1, 54, 55, 56, 57, 63, 64, 65, 118, 119, 120, 128, 1000)]
    for op in ("md5", "sha256"):
        made = stages.DERIVED[op](Call(t.VARCHAR, False, op, ()), [column(texts)], len(texts))
        assert read(made) == [getattr(naive, op)(s) for s in texts]


PIECES = ["1", "0", "25", ".", "e", "-", "+", "_", " ", "\t", "inf", "INFINITY", "nan", "(a1)", "x"]


@settings(max_examples=examples(200))
@given(
    st.lists(st.lists(st.sampled_from(PIECES), max_size=5).map("".join), min_size=1, max_size=20)
)
def test_what_is_a_float_and_its_plain_form_are_those_of_the_naive_twin(texts):
    made = makers.run(
        text_number.plain_float, [column(texts)], len(texts), np.ones(len(texts), np.uint8)
    )
    assert read(made) == [naive_number.plain_float(s) for s in texts]


EIGHTHS = st.integers(-99, 99).map(lambda n: struct.unpack("Q", struct.pack("d", n / 8))[0])


@FEW
@given(st.lists(st.integers(0, 2**64 - 1) | EIGHTHS, min_size=1, max_size=20))
def test_floats_have_pythons_digits_in_duckdbs_layout(bits):
    values = np.array(bits, np.uint64).view(np.float64)
    operand = of_column(t.DOUBLE, Column(values), len(bits))
    made = stages.DERIVED["float_text"](Call(t.VARCHAR, False, "", ()), [operand], len(bits))
    assert read(made) == [naive_number.float_layout(float(v)) for v in values]


YEARS = st.integers(-30_610_224_000_000_000, 253_402_300_799_999_999)


@FEW
@given(st.lists(YEARS, min_size=1, max_size=10))
def test_times_are_formatted_as_python_formats_them(times):
    letters = "aAbBdfGHIjmMpSuUVwWyY"
    program = np.array([c for x in letters for c in (text_time.SPECIFIER + ord(x), 59)])
    valid = np.ones(len(times), np.uint8)
    made = makers.run(text_time.format_time, [numbers(times)], len(times), valid, program)
    form = "".join(f"%{x};" for x in letters)
    assert read(made) == [naive_time.format_time(us, form) for us in times]
