"""Running members of the shuffle family, and reading what they hand on."""

from __future__ import annotations

import struct
from collections import Counter

from hypothesis import strategies as st

from edged.pages.shuffle import MEMBERS, GeneratedInput, Shuffle, ShufflePlan
from tests.naive import pages as naive_pages
from tests.naive.shuffle import K, L

ORDERED = tuple(member for member in MEMBERS if member != "merge")
"""Members that keep the order of a batch within a partition."""
INVERSE = pow(K, -1, 2**64)


def run(member, source, partitions, **settings):
    if member.startswith("units"):
        settings.setdefault("units", min(2, settings.get("threads", 1)))
    return Shuffle(ShufflePlan(member, partitions, **settings), source).run()


def pages_of(finished):
    """(page, its tuples as (slot key, row bytes)) of each page, checked by the naive reader."""
    schema = [(f.name, f.dtype.name, f.nullable) for f in finished.schema]
    for page in finished.handed():
        data = finished.sealed(page)
        header, rows, _, _ = naive_pages.read_page(data, schema)
        assert (header["partition"], header["seq"]) == (page.partition, page.seq)
        assert header["tuples"] == page.tuples == len(rows) > 0
        yield page, contents(header, data)


def contents(header, data):
    if header["layout"] == 1:
        stride = header["stride"]
        return [(None, data[at : at + stride]) for at in range(224, header["raw_bytes"], stride)]
    found = []
    for at in range(224, 224 + 12 * header["tuples"], 12):
        key, offset, length = struct.unpack_from("<III", data, at)
        begin = header["raw_bytes"] - offset
        found.append((key, data[begin : begin + length]))
    return found


def by_partition(finished, partitions):
    """A multiset of (slot key, row) for each partition; page numbers are 1, 2, 3, …"""
    found, seqs = [Counter() for _ in range(partitions)], [0] * partitions
    for page, tuples in pages_of(finished):
        seqs[page.partition] += 1
        assert page.seq == seqs[page.partition]
        found[page.partition].update(tuples)
    return found


def number_of(row, slotted):
    """The number of a generated tuple, from the first word of its data."""
    (word,) = struct.unpack_from("<Q", row, 8 if slotted else 4)
    return (word - L) * INVERSE % 2**64 - 1


@st.composite
def sources(draw):
    layout = draw(st.sampled_from(["dense", "slotted"]))
    sizes = [4, 12, 16, 21, 64, 5000] + [0] * (2 if layout == "slotted" else 0)
    size = draw(st.sampled_from(sizes))
    low = draw(st.integers(0, 40))
    high = draw(st.sampled_from([low, low + 9, 300, 6000]))
    most = 60 if 5000 in (size, high - 1000) else 1500
    return GeneratedInput(
        draw(st.integers(0, most)), size, (low, max(low, high)), layout,
        batch=draw(st.sampled_from([1, 7, 64, 300])), seed=draw(st.integers(0, 2**32 - 1)),
    )  # fmt: skip


@st.composite
def settings_of_plans(draw):
    threads = draw(st.sampled_from([1, 2, 4, 5]))
    return {
        "threads": threads,
        "partitions": draw(st.sampled_from([1, 2, 3, 8, 100])),
        "page_bytes": draw(st.sampled_from([4096, 4100, 8192, 65536])),
        "buffer_bytes": draw(st.sampled_from([0, 40, 256])),
        "function": draw(st.sampled_from(["hash", "key"])),
        "yields": draw(st.sampled_from([1, 2, 5])),
        "flushes": draw(st.sampled_from([0, 1, 3])),
        "units": draw(st.integers(1, threads)),
        "padded": draw(st.booleans()),
        "two_step": draw(st.booleans()),
        "batch_insert": draw(st.booleans()),
        "nontemporal": draw(st.booleans()),
        "mask": draw(st.booleans()),
    }
