"""A damaged page is reported, never partly read."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.data.schema import BINARY, INT32, STRING, Field, Schema
from edged.errors import PageError
from edged.pages.format import Header, encode_name, parse_header, scan_pages, verify
from edged.pages.header import checksum
from edged.pages.read import read_page
from tests.naive import pages as naive
from tests.pages import shapes

DENSE = Schema.of([shapes.TIME, Field("c", INT32, True)])
SLOTTED = Schema.of([shapes.TIME, Field("s", STRING, True), Field("b", BINARY)])


def small(schema):
    row = [1, None] if schema is DENSE else [1, None, b"xyz"]
    other = [2, 5] if schema is DENSE else [2, "text", b""]
    batch = shapes.batch_of(schema, [row, other])
    return shapes.write_all(shapes.stream_of(schema), [batch])[0].data


def compressed():
    page = shapes.write_all(shapes.stream_of(DENSE), [shapes.batch_of(DENSE, [[1, 1]] * 500)])
    assert verify(page[0].data).compressed
    return page[0].data


def resealed(page, at, value, code="<I"):
    """The page with a changed field and a matching checksum."""
    page = bytearray(page)
    struct.pack_into(code, page, at, value)
    struct.pack_into("<I", page, 28, checksum(page))
    return bytes(page)


def test_the_checksum_is_zlibs():
    assert zlib.crc32(b"123456789") == 0xCBF43926


@pytest.mark.parametrize("page", [small(DENSE), small(SLOTTED), compressed()], ids=len)
def test_every_single_flipped_bit_is_found(page):
    schema = SLOTTED if parse_header(page).layout == 2 else DENSE
    read_page(page, schema)
    for bit in range(8 * len(page)):
        broken = bytearray(page)
        broken[bit // 8] ^= 1 << (bit % 8)
        with pytest.raises(PageError):
            read_page(broken, schema)


@pytest.mark.parametrize("page", [small(DENSE), small(SLOTTED), compressed()], ids=len)
def test_a_page_cut_anywhere_is_found(page):
    schema = SLOTTED if parse_header(page).layout == 2 else DENSE
    for size in range(len(page)):
        with pytest.raises(PageError):
            read_page(page[:size], schema)
    with pytest.raises(PageError, match="here are"):
        read_page(page + b"\0", schema)


@pytest.mark.parametrize(
    ("at", "value"),
    [(20, 3), (20, 0), (24, 4), (224 + 4, 9), (224 + 4, 2**32 - 1), (224 + 8, 1), (232, 99)],
)
def test_a_slotted_page_that_lies_under_a_right_checksum_is_refused(at, value):
    with pytest.raises(PageError):
        read_page(resealed(small(SLOTTED), at, value), SLOTTED)


def test_ends_that_run_backwards_are_refused():
    page = small(SLOTTED)
    h = parse_header(page)
    first_end = h.raw_bytes - 20 + 9
    assert struct.unpack_from("<I", page, first_end)[0] == 0
    with pytest.raises(PageError, match="column b"):
        read_page(resealed(page, first_end, 200), SLOTTED)


@pytest.mark.parametrize(
    ("at", "value", "code", "message"),
    [
        (4, 2, "B", "format 2"),
        (5, 3, "B", "layout 3"),
        (6, 9, "B", "checksum of kind 9"),
        (7, 1, "B", "reserved"),
        (88, 4, "<I", "flags"),
        (92, 1, "<I", "reserved"),
        (8, 10, "<I", "sizes"),
        (8, 2**25, "<I", "sizes"),
        (16, 2**20, "<I", "sizes"),
        (96, 0xFF, "B", "UTF-8"),
        (223, 1, "B", "UTF-8"),
    ],
)
def test_a_header_of_an_unknown_kind_is_refused_by_name(at, value, code, message):
    with pytest.raises(PageError, match=message):
        read_page(resealed(small(DENSE), at, value, code), DENSE)


def test_a_body_that_does_not_decompress_is_refused():
    with pytest.raises(PageError, match="does not decompress"):
        read_page(resealed(compressed(), 224, 0xFF, "B"), DENSE)


def test_a_damaged_page_carries_its_name():
    page = bytearray(small(DENSE))
    page[-1] ^= 1
    with pytest.raises(PageError, match=r"power@3 partition 0 seq 1 of device gateway-1 epoch 7"):
        verify(page)


def test_a_scan_goes_on_behind_damage():
    page = small(DENSE)
    in_body, in_size, in_magic = bytearray(page), bytearray(page), bytearray(page)
    in_body[-1] ^= 1
    in_size[12] ^= 1
    in_magic[0] ^= 1
    whole = page + in_body + page + in_size + page + in_magic + page + page[:100]
    found = list(scan_pages(whole))
    assert [f.offset // len(page) for f in found] == list(range(8))
    assert [f.problem is None for f in found] == [True, False] * 4
    assert all(bytes(f.data) == page for f in found if f.problem is None)
    assert sum(len(f.data) for f in found) == len(whole)


def test_a_name_that_does_not_fit_is_refused():
    assert len(encode_name("é" * 31)) == 62
    for name in ("é" * 32, "a\0b"):
        with pytest.raises(PageError, match="does not fit"):
            encode_name(name)


def test_a_header_packs_to_what_it_was_parsed_from():
    page = small(SLOTTED)
    header = parse_header(page)
    assert isinstance(header, Header)
    assert header.pack() == page[:224]


def test_text_that_is_not_utf_8_is_refused_by_column_under_a_right_checksum():
    at = small(SLOTTED).index(b"text")
    with pytest.raises(PageError, match="not UTF-8 in column s"):
        read_page(resealed(small(SLOTTED), at + 1, 0xFF, "B"), SLOTTED)
    read_page(resealed(small(SLOTTED), at + 1, 0xFF, "B"), SLOTTED, columns=["b"])


def test_text_is_utf_8_in_each_row_by_itself():
    rows = [[1, "é", b""], [2, "", b""], [3, "é", b""]]
    page = shapes.write_all(shapes.stream_of(SLOTTED), [shapes.batch_of(SLOTTED, rows)])[0].data
    half = bytearray(page)
    first_end = parse_header(page).raw_bytes - 2 - 8
    struct.pack_into("<I", half, first_end, 1)  # the character is shared with the binary column
    with pytest.raises(PageError, match="not UTF-8"):
        read_page(resealed(half, first_end, 1), SLOTTED)


def outcome(read, page, schema):
    """The rows, or that the page is refused."""
    try:
        return [list(map(repr, row)) for row in read(page, schema)]
    except (PageError, ValueError, IndexError, AssertionError):  # the last two: the naive LZ4
        return "refused"


def vectorised(page, schema):
    columns = read_page(page, schema).columns
    stamps = [
        c.cast("int64") if f.dtype is shapes.TIME.dtype else c
        for f, c in zip(schema, columns, strict=True)
    ]
    return zip(*(c.to_pylist() for c in stamps), strict=True)


@pytest.mark.parametrize("schema", [DENSE, SLOTTED], ids=["dense", "slotted"])
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_both_readers_refuse_the_same_pages(schema, data):
    page = small(schema)
    places = [4, 5, 6, 7, 8, 12, 16, 20, 24, 56, 88, 89, 92, 96, 159, 200, 223]
    places += range(224, len(page))
    at = data.draw(st.sampled_from(places))
    wrong = resealed(page, at, data.draw(st.integers(0, 255)), "B")
    expected = outcome(lambda p, s: naive.read_page(p, shapes.plain(s))[1], wrong, schema)
    assert outcome(vectorised, wrong, schema) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "at least one column"),
        ("[]", "at least one column"),
        ("[1]", "is not a column"),
        ('[{"name":"a"}]', "is not a column"),
        ('[{"name":"a","type":"int8","width":1}]', "is not a column"),
        ('[{"name":"","type":"int8"}]', "name"),
        ('[{"name":"a","type":"int128"}]', "int128"),
        ('[{"name":"a","type":"int8","nullable":"false"}]', "not true or false"),
        ('[{"name":"a","type":"int8"},{"name":"a","type":"int8"}]', "distinct"),
    ],
)
def test_a_schema_that_the_format_does_not_know_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        Schema.from_json(text)
