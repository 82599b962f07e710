"""Hot keys' own chains: the pairs are DuckDB's, in the family's order, and others' chains short."""

from __future__ import annotations

import ctypes
from itertools import product

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from edged.joins._lanes import Lanes
from edged.joins._rings import Rings
from edged.joins.base import Beat, Records
from kernels.cpu import beat, heavy_hitters, rings
from tests.eager import team_of
from tests.kernels.chain_model import RECORD
from tests.whole import count

WINDOW = 100_000
PARTS = (0, 5, 63)
ROOM = np.bincount(PARTS, minlength=64) * 40_000
CHAIN_BITS = 18
"""Windows of 100 000 rows in three partitions: rings of 2^16 slots, 2^18 chains each."""
EXPECTED = f"""
    select l.row, r.row, greatest(l.beat, r.beat) beat from l join r on l.tag = r.tag
    where r.row - l.row between -{WINDOW} and {WINDOW}
    order by beat, l.part, l.beat <= r.beat,
        case when l.beat > r.beat then l.row else r.row end,
        case when l.beat > r.beat then r.row else l.row end desc
"""
HOT = 7 * np.arange(6) ** 2
"""What is added to a phase's first key to get its hot ones."""


class Stream:
    """A side: a row a µs, in phases (rows, the hot keys' share, the first of these), in beats.

    Some of the other keys fall to a hot key's chain, some to a chain with its name, others
    anywhere."""

    def __init__(self, dice, phases, batch, distinct):
        rows = sum(n for n, *_ in phases)
        share, first = (np.repeat([p[k] for p in phases], [p[0] for p in phases]) for k in (1, 2))
        few = first + dice.choice(HOT, rows)
        kinds = [
            few | dice.integers(0, 2**8, rows) << CHAIN_BITS,
            few & heavy_hitters.NAMES - 1
            | dice.integers(0, 2 ** (26 - heavy_hitters.NAME_BITS), rows)
            << heavy_hitters.NAME_BITS,
            dice.integers(0, distinct, rows) * 0x9E3779B1 % 2**26,
        ]
        others = np.choose(dice.choice(3, rows, p=[0.004, 0.196, 0.8]), kinds)
        self.part = dice.choice(PARTS, rows)
        self.tag = self.part << rings.PARTITION_SHIFT
        self.tag |= np.where(dice.random(rows) < share, few, others)
        self.row, self.batch = np.arange(rows), batch

    def records(self, number):
        """A beat's records."""
        rows = self.row[number * self.batch : (number + 1) * self.batch]
        rows = rows[np.argsort(self.part[rows], kind="stable")]
        records = np.zeros(rows.size + rings.AHEAD, RECORD)
        records["time"][: rows.size] = records["row"][: rows.size] = rows
        records["tag"][: rows.size] = self.tag[rows]
        counts = np.bincount(self.part[rows], minlength=64).astype(np.int64)
        return Records(records.view(np.int64), counts)

    def table(self):
        """Rows for DuckDB."""
        columns = (self.row, self.tag, self.part, self.row // self.batch)
        return pa.table(columns, ("row", "tag", "part", "beat"))


def longest(table, first_key):
    """How many live entries the usual chain of a hot key has, at the most."""

    def u32(at):
        return ctypes.c_uint32.from_address(at).value

    def links(p, tag):
        ring, mask, tail = (
            int(table[p, f]) for f in (rings.RING.entries, rings.RING.mask, rings.RING.tail)
        )
        chain, count = tag & int(table[p, rings.RING.heads_mask]), 0
        link = u32(int(table[p, rings.RING.heads]) + rings.PAIR * chain)
        while link >= tail:
            count += 1
            link = u32(ring + rings.ENTRY * (link & mask) + rings.NEXT)
        return count

    return max(links(p, first_key + int(key)) for p in PARTS for key in HOT)


@pytest.fixture
def workers(request):
    """Threads that are worth having for any work."""
    with team_of(request.param) as team:
        yield team


CASES = list(product((1_000, 10_000), (1, 2), (0, 1), (2**26, 2**16)))
"""Rows a beat (short, or in a pipeline), threads, the hot keys' side, and keys: few match, or
half a match each."""
SLICE = [case for k, case in enumerate(CASES) if k in (0, 7, 11, 12)]
"""Each value of one meets each value of every other, except sides and keys."""


@pytest.mark.parametrize(
    ("batch", "workers", "hot_side", "distinct"), count(SLICE, CASES), indirect=["workers"]
)
def test_pairs_are_duckdbs_while_keys_become_hot_and_cold(batch, workers, hot_side, distinct):
    """Those of the second phase have the names of the first's as soon as these have gone, and lose
    them again to those of the third; before the last one rings grow."""
    dice, lengths, found = np.random.default_rng([batch, hot_side]), [], []
    phases = [(3 * WINDOW, 0.5, 0), (6 * WINDOW, 0.5, 2**16), (3 * WINDOW, 0.5, 0)]
    phases += [(2 * WINDOW, 0.5, 1000)]
    rare = [(rows, 0.0002, first) for rows, _, first in phases]
    sides = [Stream(dice, each, batch, distinct) for each in (phases, rare)]
    if hot_side:
        sides.reverse()
    kept = Rings()
    kept.reserve([ROOM, ROOM])
    lanes = Lanes(kept, WINDOW, WINDOW)
    lanes.desk[beat.DESK.patience] = 1 << 40  # no pools
    ends, firsts = np.cumsum([n for n, *_ in phases]).tolist(), [first for *_, first in phases]
    for number in range(14 * WINDOW // batch):
        now = (number + 1) * batch
        about = Beat((0, 0), (now - WINDOW, now - WINDOW))
        pairs = lanes.join(*(side.records(number) for side in sides), about, workers)
        found.append(np.stack([*pairs, np.full(pairs[0].size, number)]))
        if now in ends:
            lengths.append(longest(kept.tables[hot_side], firsts[len(lengths)]))
        if now == ends[2]:
            assert kept.hot[list(PARTS)].all()
            assert kept.hot.sum() == len(PARTS)
            kept.reserve([2 * ROOM, 2 * ROOM])
            assert not kept.hot.any()
    with duckdb.connect() as db:
        for name, side in zip("lr", sides, strict=True):
            db.register(name, side.table())
        expected = db.sql(EXPECTED).fetchnumpy()
    for ours, theirs in zip(np.concatenate(found, axis=1), expected.values(), strict=True):
        assert np.array_equal(ours, theirs)
    usual = WINDOW // len(PARTS) * 0.5 // len(HOT)
    assert max(lengths) < usual / 4
