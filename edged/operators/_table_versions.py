"""A table's rows as versions: which row a key had at a time.

A version holds from the time in its column `since` until that of the key's next version.  A row of
the table adds a version, or replaces the one of its key and time.  A delete by key takes all
versions of the key back, because it has no time of its own.

Versions are kept as far back as `horizon_us`: with a change of a key, those of its versions go
whose next one holds at the horizon already.  What is kept is at most one version a key, and those
that are younger than the horizon was at the key's last change.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edged.data.columns import Batch
from edged.data.concatenate import concatenate
from edged.data.flow import WATERMARK_MIN_US, BeatContext, Link
from edged.data.gather import take
from edged.data.schema import Schema
from edged.data.scratch import Scratch
from edged.operators._row_codes import Int64s, firsts, lasts, project, row_codes, sums
from edged.operators._table_side import Changes, TableSide, deletes_of_nothing
from edged.tables.base import Matches


class TableVersions(TableSide):
    """A table whose key is `on`, in any order."""

    def __init__(self, link: Link, on: tuple[str, ...], kept: Schema, since: str) -> None:
        super().__init__(link, on, kept, emits=False)
        self._since = since
        self._keys = Schema.of(kept.field(name) for name in on)
        self._distinct = Scratch()
        self.horizon_us = WATERMARK_MIN_US

    def _meaning(self, batch: Batch, beat: BeatContext) -> Changes:
        """The versions that a beat's rows add, replace and end."""
        rows, weights = self.events(batch, beat)
        if not rows.rows:
            return Changes(rows, weights)
        codes = row_codes(rows, self.on)
        old = self._of_keys(rows, codes)
        gone, alive = np.zeros(int(codes.max()) + 1, np.bool_), np.arange(rows.rows)
        if (weights < 0).any():
            gone, alive = self._deleted(rows, codes, weights < 0, old, beat)
        alive = alive[np.sort(lasts(row_codes(take(rows, alive, Scratch()), self._version)))]
        fresh = take(rows, alive, self._scratch[0])
        both = concatenate(self.kept, [old.rows, fresh], self._scratch[1])
        key = np.concatenate([old.probe, codes[alive]])
        stays = self._staying(both, key, old.rows.rows, gone)
        change = stays.astype(np.int32)
        change[: old.rows.rows] -= 1
        same = row_codes(both, self.kept.names)
        changed = np.flatnonzero((change != 0) & (sums(same, change)[same] != 0))
        return Changes(take(both, changed, self._scratch[2]), change[changed])

    def at(self, keys: Batch, times: Int64s) -> tuple[Int64s, Matches]:
        """The version of each key at its time: its row in the matches, -1 where there is none."""
        codes = row_codes(keys, keys.schema.names)
        some = take(keys, firsts(codes), self._distinct, "probe")
        found = self.rows.probe(some)
        if not found.rows.rows:
            return np.full(keys.rows, -1, np.int64), found
        since = found.rows[self._since].values
        moments = np.unique(since)
        width = moments.size + 1
        places = found.probe * width + np.searchsorted(moments, since) + 1
        order = np.argsort(places, kind="stable")
        wanted = codes * width + np.searchsorted(moments, times, side="right")
        last = np.searchsorted(places[order], wanted, side="right") - 1
        version = order[np.maximum(last, 0)]
        there = (last >= 0) & (found.probe[version] == codes)
        return np.where(there, version, -1), found

    @property
    def _version(self) -> tuple[str, ...]:
        return (*self.on, self._since)

    def _of_keys(self, rows: Batch, codes: Int64s) -> Matches:
        """The versions of the rows' keys; `probe` is the key's code."""
        some = take(rows, firsts(codes), self._distinct, "keys")
        return self.rows.probe(project(some, self._keys))

    def _deleted(
        self,
        rows: Batch,
        codes: Int64s,
        deletes: npt.NDArray[np.bool_],
        old: Matches,
        beat: BeatContext,
    ) -> tuple[npt.NDArray[np.bool_], Int64s]:
        """The keys that were deleted, and the rows behind their last delete."""
        held = np.zeros(int(codes.max()) + 1, np.bool_)
        held[old.probe] = True
        absent = deletes_of_nothing(codes, deletes, held)
        if absent.size:
            self.refuse(absent.size, rows, int(absent[0]), beat, "no such row is there")
        last = np.full(held.size, -1, np.int64)
        np.maximum.at(last, codes[deletes], np.flatnonzero(deletes))
        alive = ~deletes & (np.arange(rows.rows) > last[codes])
        return last >= 0, np.flatnonzero(alive)

    def _staying(
        self, both: Batch, key: Int64s, count: int, gone: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.bool_]:
        """The versions that are kept, of `count` old ones and the new ones behind them."""
        since = both[self._since].values
        stays = np.ones(both.rows, np.bool_)
        stays[:count] = ~gone[key[:count]]
        order = np.lexsort([np.arange(both.rows), since, key])
        order = order[stays[order]]
        a, b = order[:-1], order[1:]
        ended = (since[b] == since[a]) | (since[b] <= self.horizon_us)
        stays[a[(key[a] == key[b]) & ended]] = False
        return stays
