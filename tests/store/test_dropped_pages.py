"""A full store gives up the oldest pages of jobs that allow it."""

from __future__ import annotations

from edged.store import StoreFull
from tests.store.test_store import SEGMENT, beat, open_store, page, read


def test_the_oldest_pages_of_one_job_are_given_up_and_the_others_stay(tmp_path):
    """Also where one log segment holds pages of both, and after a restart."""
    with open_store(tmp_path, bytes_max=8 * SEGMENT) as store:
        store.apart, number, gaps = {"fast"}, 0, []
        slow = []
        while len(gaps) < 3:
            number += 1
            pages = [page(number, 60_000, "fast")]
            if number <= 5:
                pages.append(page(number, 2000, "slow"))
                slow.append(number)
            while True:
                try:
                    store.commit(beat(number, *pages))
                    break
                except StoreFull:
                    found, _ = store.drop_oldest({"fast": "quick"}, 5)
                    assert found, "something can be given up"
                    gaps += found
            if number % 4 == 0:
                store.snapshot(number, b"", {})
        kept = [r.key.seq for r in store.pending() if r.key.stream == "fast"]
        assert kept == list(range(gaps[-1].last + 1, number + 1))
        (gap,) = store.gaps.newest  # neighbours are one
        assert (gap.first, gap.last, gap.job, gap.rows) == (1, kept[0] - 1, "quick", None)
        assert [r.key.seq for r in store.pending() if r.key.stream == "slow"] == slow
        assert all(read(r) == page(r.key.seq, r.length).data for r in store.pending())
        assert store.drop_oldest({}) == ([], [])
    with open_store(tmp_path) as store:
        assert [r.key.seq for r in store.pending() if r.key.stream == "fast"] == kept
        assert store.gaps.newest == [gap]
