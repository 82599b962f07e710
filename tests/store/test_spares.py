"""Segment files of the log are reused, and never show what they held before."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest

from edged.beat.snapshots import SnapshotSchedule
from edged.store import StoreFull
from tests.store.test_store import SEGMENT, beat, open_store, page, read


def test_recycled_segments_never_show_what_they_held_before(tmp_path):
    with open_store(tmp_path) as store:
        number = 0
        for _ in range(6):
            for _ in range(9):
                number += 1
                store.commit(beat(number, inputs=60_000))
            store.snapshot(number, b"", {})
        names = [p.name for p in (tmp_path / "log").iterdir()]
        assert any(n.endswith(".spare") for n in names)
        for _ in range(3):
            number += 1
            store.commit(beat(number, inputs=60_000))
    with open_store(tmp_path) as store:
        assert [r.number for r in store.recover().records] == [number - 2, number - 1, number]


def test_a_segment_whose_pages_moved_is_reused_after_the_next_snapshot_only(tmp_path):
    """A page reader may read a batch at the old location meanwhile."""

    def files(kind):
        return {p.stat().st_ino for p in (tmp_path / "log").glob(kind)}

    def beats(store, first):
        for number in range(first, first + 9):
            store.commit(beat(number, page(number), inputs=60_000))

    with open_store(tmp_path) as store:
        beats(store, 1)
        store.snapshot(9, b"", {})
        retired = files("*.spare")
        assert retired
        beats(store, 10)
        assert files("*.spare") == retired
        store.snapshot(18, b"", {})
        beats(store, 19)
        assert files("*.log") & retired
        assert [read(r) for r in store.pending()] == [page(i).data for i in range(1, 28)]


class NoSnapshots:
    """No snapshot is being written, none was given up."""

    under_way, given_up = False, 0


@pytest.mark.parametrize("filled", [0.3, 0.45, 0.6, 0.9, 1.2])
@pytest.mark.parametrize("state", [3.1, 3.5])
def test_snapshots_come_before_a_small_store_is_full_of_half_empty_segments(
    tmp_path, filled, state
):
    """Records fill a part of their segments; the state is about a third of the store."""
    with open_store(tmp_path, bytes_max=12 * SEGMENT) as store:
        schedule = SnapshotSchedule(store, NoSnapshots(), 1 << 30)
        size = int(SEGMENT * filled)
        taken = 0
        for number in range(1, 60):
            due = schedule.due(size)
            store.commit(beat(number, page(number), inputs=size))
            store.acked("curve", 0, number)
            if due:
                arrays = {"a": np.zeros(int(SEGMENT * (state + number % 3 / 4)), "u1")}
                with suppress(StoreFull):
                    store.snapshot(number, b"", arrays)
                    taken += 1
        assert 59 / taken > 1.5 or filled > 0.7, "not after each beat"
