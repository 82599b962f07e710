"""Rings and lanes without columns, held to their naive twin beat by beat."""

from __future__ import annotations

import numpy as np

from edged.data.columns import address
from edged.joins._lanes import Lanes
from edged.joins._rings import Rings
from edged.joins.base import Beat, Records
from kernels.cpu import beat, rings
from tests.naive import chain as naive

RECORD = np.dtype([("time", "i8"), ("tag", "u4"), ("row", "u4")])
NO_KEYS = np.zeros((0, 5), np.int64)


def tag_of(key, partition):
    """A tag of this partition for a key, a number below 2^32 of which the low 26 bits count."""
    return partition << 26 | key % 2**26


class Model:
    """A join of rings and lanes without columns, beside its naive twin."""

    def __init__(self, before, after, start=0, spread=1, room=None, pooled=False):
        """Rows of one tag have `spread` different keys; the output has `room` at first.  Where
        `pooled`, partitions share a ring in each beat that can be joined so."""
        self.rings, self.spread, self.pooled = Rings(start), spread, pooled
        self.lanes = Lanes(self.rings, before, after)
        self.wide = [np.zeros(0, np.int64), np.zeros(0, np.int64)]
        for lane in self.lanes._lanes if room else []:
            lane.make_room(room)
        self.twin = naive.Join(before, after)
        self.rows = [0, 0]

    def records(self, side, rows):
        """Rows (time, tag, partition) as the kernel's records and as the twin's."""
        first = self.rows[side]
        self.rows[side] += len(rows)
        wide = [(first + i) % self.spread for i in range(len(rows))]
        self.wide[side] = np.append(self.wide[side], np.array(wide, np.int64))
        numbered = [
            (t, (k, w), p, first + i)
            for i, ((t, k, p), w) in enumerate(zip(rows, wide, strict=True))
        ]
        by_partition = sorted(numbered, key=lambda row: row[2])
        records = np.zeros(len(rows) + rings.AHEAD, RECORD)
        records[: len(rows)] = [(t, tag_of(k, p), r % 2**32) for t, (k, _), p, r in by_partition]
        counts = np.bincount([p for *_, p, _ in numbered], minlength=64).astype(np.int64)
        return numbered, Records(records.view(np.int64), counts)

    def beat(self, left, right, marks=(-(2**63), -(2**63)), workers=None):
        """One beat: the kernel's pairs and the twin's."""
        ours, left_records = self.records(0, left)
        theirs, right_records = self.records(1, right)
        bounds = (
            max(-(2**63), marks[1] - self.twin.after),
            max(-(2**63), marks[0] - self.twin.before),
        )
        keys = NO_KEYS
        if self.spread > 1:
            left_keys, right_keys = (address(values) for values in self.wide)
            keys = np.array([[8, left_keys, 0, right_keys, 0]], np.int64)
        about = Beat((0, 0), bounds, keys=keys)
        if self.pooled:
            self.lanes.desk[beat.DESK.patience] = 1
        pairs = self.lanes.join(left_records, right_records, about, workers)
        found = list(zip(*(side.tolist() for side in pairs), strict=True))
        return found, self.twin.join(ours, theirs, *marks)

    def grow(self):
        """Move everything into larger rings."""
        for table in self.rings.tables:
            table[:, rings.RING.batch_rows] = 0
        room = self.rings.tables[0][:, rings.RING.mask] + 1
        self.rings.reserve([room, room])
