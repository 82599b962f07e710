"""The join's floor touches what its docstring says, whatever the prefetching."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.data.columns import address
from kernels.cpu import rings, roofline
from tests.naive import floor as naive

RECORD = np.dtype([("time", "i8"), ("tag", "u4"), ("row", "u4")])
ENTRY = np.dtype([("time", "i8"), ("tag", "u4"), ("link", "u4"), ("row", "u4")])
PARTITIONS = 3
number = st.integers(0, 2**32 - 1)
row = st.tuples(st.integers(-(2**40), 2**40), number, number)
sides = st.lists(st.lists(row, max_size=5), min_size=PARTITIONS, max_size=PARTITIONS)
beats_of_rows = st.lists(st.tuples(sides, sides), max_size=4)


class Memory:
    """Partitions of `lines` lines and rings of `entries`, half filled; `places` of output."""

    def __init__(self, lines, entries, places):
        self.heads = np.zeros((PARTITIONS, lines, 16), np.uint32)
        self.rings = np.zeros((PARTITIONS, 2, entries), ENTRY)
        self.rings["time"], self.rings["tag"] = np.arange(entries), 7
        self.rings["row"] = 3 * np.arange(entries)
        self.out = np.zeros((2, places), np.int64)
        self.state = np.zeros((PARTITIONS, roofline.PART_FIELDS), np.int64)
        self.lane = np.zeros(roofline.LANE_FIELDS, np.int64)
        self.lane[roofline.LANE.places] = places
        self.lane[[roofline.LANE.out_mine, roofline.LANE.out_met]] = (
            address(self.out[0]),
            address(self.out[1]),
        )
        for p, mine in enumerate(self.state):
            mine[[roofline.PART.heads, roofline.PART.lines]] = address(self.heads[p]), lines
            for side in (0, 1):
                mine[roofline.PART.rings + side] = address(self.rings[p, side])
                mine[roofline.PART.entries + side] = entries
                mine[roofline.PART.next + side] = entries // 2

    def twin(self):
        """The same as lists."""
        places = self.out.shape[1]
        filled = [self.rings.shape[2] // 2] * 2
        parts = [
            naive.Part(self.heads.shape[1], (0, 0), rings, filled) for rings in self.rings.tolist()
        ]
        return parts, naive.Out(places)


def arrays_of(beats):
    """Records, addresses and edges as the kernel takes them."""
    kept, records = [], np.zeros((len(beats), 2), np.int64)
    edges = np.zeros((len(beats), 2, PARTITIONS + 1), np.int64)
    for b, beat in enumerate(beats):
        for side, parts in enumerate(beat):
            rows = [row for part in parts for row in part]
            data = np.zeros(len(rows) + rings.AHEAD, RECORD)
            data[: len(rows)] = np.array(rows, RECORD)
            kept.append(data)
            records[b, side] = address(data)
            edges[b, side, 1:] = np.cumsum([len(part) for part in parts])
    return kept, records, edges


@settings(deadline=None)
@given(
    beats_of_rows,
    st.sampled_from([0, 8, 64]),
    st.sampled_from([0, 1, roofline.ONE // 3, roofline.ONE, 5 * roofline.ONE // 2]),
    st.integers(1, 4),
    st.integers(2, 9),
)
def test_the_kernel_reads_and_writes_what_its_twin_does(beats, ahead, rate, lines, entries):
    memory = Memory(lines, entries, places=5)
    parts, out = memory.twin()
    kept, records, edges = arrays_of(beats)
    seen = roofline.touch(0, PARTITIONS, ahead, rate, records, edges, memory.state, memory.lane)
    assert int(seen) == naive.touch(parts, beats, rate, out)
    assert kept is not None
    for p, part in enumerate(parts):
        assert memory.heads[p, :, :2].tolist() == part.heads
        assert memory.rings[p].tolist() == [[tuple(e) for e in ring] for ring in part.rings]
    assert memory.out.tolist() == [out.mine, out.met]
    assert memory.lane[[roofline.LANE.share, roofline.LANE.matches]].tolist() == [
        out.share,
        out.matches,
    ]


@pytest.mark.parametrize("rate", [0.005, 1, 10])
def test_as_many_matches_are_made_as_the_rate_says(rate):
    memory = Memory(8, 64, places=100)
    beats = [([[(i, i * 2**20, i) for i in range(1000)], [], []], [[], [(5, 5, 5)] * 1000, []])]
    kept, records, edges = arrays_of(beats)
    share = round(rate * roofline.ONE)
    roofline.touch(0, PARTITIONS, 16, share, records, edges, memory.state, memory.lane)
    assert len(kept) == 2
    assert abs(memory.lane[roofline.LANE.matches] - 2000 * rate) <= 1


def test_all_lines_of_a_partition_are_used_by_keys_of_32_bits():
    """Their tags begin with the partition's six bits: once one line in 64 was used."""
    memory = Memory(64, 64, places=5)
    tags = np.random.default_rng(5).integers(0, 2**26, 2000) + (37 << 26)
    kept, records, edges = arrays_of([([[(0, int(tag), 0) for tag in tags], [], []], [[]] * 3)])
    roofline.touch(0, PARTITIONS, 0, 0, records, edges, memory.state, memory.lane)
    assert len(kept) == 2
    assert (memory.heads[0, :, 0] > 0).mean() > 0.7
