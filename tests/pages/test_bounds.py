"""What a page's header claims is bounded by the page's length before anything is allocated."""

from __future__ import annotations

import struct

import pytest

from edged.errors import JobError, PageError
from edged.job.plan import parse_job
from edged.pages.format import LZ4_RATIO_MAX, PAGE_COLUMNS_MAX, parse_header
from edged.pages.header import HEADER_BYTES, checksum
from edged.pages.read import read_weights
from tests.beat.support import copy_job
from tests.central.support import make_page

LAYOUT, STORED, RAW, TUPLES, STRIDE, FLAGS = 5, 12, 16, 20, 24, 88


def claiming(body=b"", **claims):
    """A page whose header makes these claims (offset: value), with the right checksum."""
    page = bytearray(make_page(1, rows=0) + body)
    given = {STORED: len(page), RAW: len(page), TUPLES: 0, **claims["fields"]}
    for at, value in given.items():
        struct.pack_into("<B" if at == LAYOUT else "<I", page, at, value)
    struct.pack_into("<I", page, 8, 16 << 20)
    struct.pack_into("<I", page, 28, checksum(page))
    return bytes(page)


@pytest.mark.parametrize("weighted", [0, 2])
@pytest.mark.parametrize("fields", [
    {TUPLES: 2**32 - 1, STRIDE: 0},
    {TUPLES: 0, STRIDE: 0},
    {LAYOUT: 2, TUPLES: 2**32 - 1, STRIDE: 0},
    {LAYOUT: 2, TUPLES: 40, STRIDE: 1},
    {LAYOUT: 2, TUPLES: 2, STRIDE: 20},
])  # fmt: skip
def test_rows_beyond_a_pages_bound_are_refused_by_the_header(fields, weighted):
    """Rows of no bytes would be 4 294 967 295 of them in a page of 264 bytes."""
    page = claiming(bytes(40 * (LAYOUT in fields)), fields=fields | {FLAGS: weighted})
    for read in (parse_header, read_weights):
        with pytest.raises(PageError, match="contradict"):
            read(page)


def test_a_block_is_bounded_by_what_lz4_can_make_of_it():
    most = LZ4_RATIO_MAX * 10
    for raw, right in ((most, True), (most + 1, False)):
        fields = {FLAGS: 1, RAW: HEADER_BYTES + raw, TUPLES: raw, STRIDE: 1}
        page = claiming(bytes(10), fields=fields)
        if right:
            assert parse_header(page).raw_bytes == HEADER_BYTES + raw
        else:
            with pytest.raises(PageError, match="contradict"):
                parse_header(page)


def test_the_columns_of_a_pages_sink_are_bounded():
    columns = {f"c{i}": "int8" for i in range(999)} | {"time": "timestamp"}
    sides = [copy_job()["streams"]["r"] | {"columns": columns} for _ in range(5)]
    document = copy_job() | {"streams": {f"s{i}": side for i, side in enumerate(sides)}}
    joined, operators = "s0", {}
    for i in range(1, 5):
        names = {f"t{k}_{c}": f"right.{c}" for k in (i,) for c in columns}
        left = [*columns] if i == 1 else list(operators[joined]["columns"])
        operators[f"j{i}"] = {
            "type": "interval_join", "left": joined, "right": f"s{i}", "on": ["c0"],
            "columns": {name: f"left.{name}" for name in left} | names,
        }  # fmt: skip
        joined = f"j{i}"
    document |= {"operators": operators}
    document["sinks"] = {"rows": {"type": "pages", "input": joined, "page": "16MiB"}}
    with pytest.raises(JobError, match=f"has 5000 columns.*{PAGE_COLUMNS_MAX}"):
        parse_job(document)
