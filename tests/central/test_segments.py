"""Segments: every reader sees exactly what the one writer appended."""

import os
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.central import segments
from edged.central.segments import ROW, ROW_BYTES, SegmentWriter

NAME = segments.segment_name("c0", 1)


def rows_for(start, pages):
    rows = np.zeros(len(pages), dtype=ROW)
    lengths = [len(p) for p in pages]
    rows["length"] = lengths
    rows["offset"] = start + np.concatenate([[0], np.cumsum(lengths)[:-1]])
    rows["seq"] = np.arange(1, len(pages) + 1)
    return rows


def land(writer, pages):
    rows = rows_for(writer.append(pages), pages)
    writer.sync()
    writer.commit(rows)
    return rows


def test_a_row_is_the_64_bytes_that_the_docstring_says(tmp_path):
    row = np.zeros(1, dtype=ROW)
    row[0] = (1, 2, 3, 4, 5, 6, 7, -8, 9, 10)
    assert ROW.itemsize == ROW_BYTES == 64
    assert row.tobytes() == struct.pack("<QIIIIQQqQQ", 1, 2, 3, 4, 5, 6, 7, -8, 9, 10)


@given(
    st.lists(st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=8), max_size=6),
    st.integers(1, 700),
)
def test_what_was_committed_is_read_back_whatever_the_read_size(tmp_path_factory, groups, read):
    landing = tmp_path_factory.mktemp("landing")
    writer = SegmentWriter(landing, NAME)
    for group in groups:
        land(writer, group)
    writer.close()
    rows = segments.read_rows(landing, NAME)
    got = [bytes(v) for v in segments.read_pages(landing, NAME, rows, read)]
    assert got == [p for group in groups for p in group]
    assert segments.positions(landing) == {NAME: len(got)}


def test_rows_may_be_read_in_any_slice_and_skip_holes(tmp_path):
    writer = SegmentWriter(tmp_path, NAME)
    pages = [bytes([i]) * (i + 1) for i in range(10)]
    land(writer, pages[:5])
    writer.append([b"never indexed"])
    land(writer, pages[5:])
    rows = segments.read_rows(tmp_path, NAME, 3, 8)
    assert [bytes(v) for v in segments.read_pages(tmp_path, NAME, rows)] == pages[3:8]
    odd = segments.read_rows(tmp_path, NAME)[::2][::-1]
    assert [bytes(v) for v in segments.read_pages(tmp_path, NAME, odd)] == pages[::2][::-1]
    assert len(segments.read_rows(tmp_path, NAME, 8, 99)) == 2
    assert len(segments.read_rows(tmp_path, NAME, 99)) == 0
    writer.close()


def test_nothing_is_visible_before_commit(tmp_path):
    writer = SegmentWriter(tmp_path, NAME)
    start = writer.append([b"abc"])
    assert segments.positions(tmp_path) == {NAME: 0}
    writer.sync()
    assert segments.positions(tmp_path) == {NAME: 0}
    writer.commit(rows_for(start, [b"abc"]))
    assert segments.positions(tmp_path) == {NAME: 1}
    writer.close()


@pytest.mark.parametrize("torn", range(ROW_BYTES))
def test_a_torn_row_is_no_row_and_is_cut_when_the_segment_is_opened(tmp_path, torn):
    writer = SegmentWriter(tmp_path, NAME)
    land(writer, [b"first", b"second"])
    writer.close()
    idx = segments.idx_path(tmp_path, NAME)
    os.truncate(idx, ROW_BYTES + torn)
    assert segments.committed(tmp_path, NAME) == 1
    assert len(segments.read_rows(tmp_path, NAME)) == 1
    writer = SegmentWriter(tmp_path, NAME)
    assert idx.stat().st_size == ROW_BYTES
    assert writer.tail == 5 and writer.renew_tail() == b"second"
    writer.cut(5)
    land(writer, [b"third"])
    writer.close()
    rows = segments.read_rows(tmp_path, NAME)
    assert [bytes(v) for v in segments.read_pages(tmp_path, NAME, rows)] == [b"first", b"third"]


def test_committed_pages_cannot_be_cut(tmp_path):
    writer = SegmentWriter(tmp_path, NAME)
    land(writer, [b"first"])
    with pytest.raises(ValueError, match="below the committed end"):
        writer.cut(4)
    writer.close()


def test_more_pages_than_one_system_call_takes(tmp_path):
    writer = SegmentWriter(tmp_path, NAME)
    pages = [str(i).encode() for i in range(3000)]
    land(writer, pages)
    rows = segments.read_rows(tmp_path, NAME)
    assert [bytes(v) for v in segments.read_pages(tmp_path, NAME, rows)] == pages
    writer.close()


def test_a_page_whose_file_was_cut_comes_back_short(tmp_path):
    writer = SegmentWriter(tmp_path, NAME)
    land(writer, [b"first", b"second"])
    writer.close()
    os.truncate(segments.pages_path(tmp_path, NAME), 7)
    rows = segments.read_rows(tmp_path, NAME)
    assert [bytes(v) for v in segments.read_pages(tmp_path, NAME, rows)] == [b"first", b"se"]


def test_a_landing_that_is_not_there_has_no_positions(tmp_path):
    assert segments.positions(tmp_path / "not there") == {}


def test_foreign_files_are_no_segments(tmp_path):
    SegmentWriter(tmp_path, NAME).close()
    (segments.segments_dir(tmp_path) / "seg-../x.idx").parent.mkdir(parents=True, exist_ok=True)
    (segments.segments_dir(tmp_path) / "notes.idx").write_bytes(b"")
    assert segments.list_segments(tmp_path) == [NAME]
    assert segments.parse_name(NAME) == ("c0", 1)
    with pytest.raises(ValueError, match="not the name"):
        segments.parse_name("seg-../../etc-00000001")
