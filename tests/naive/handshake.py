"""The pairs that a line of lanes finds in a beat, in whatever lanes the tuples meet."""

from __future__ import annotations

from tests.naive.nested_loop import probe


def work(left, right, left_segments, right_segments, before, after):
    """Pairs (left number, right number): new with old, old with new, and new with new, once each.
    Rows are (time, tag, number); segments are lists of rows, one a lane."""
    old_left = [row for segment in left_segments for row in segment]
    old_right = [row for segment in right_segments for row in segment]
    pairs = probe(left, old_right + right, before, after)
    return sorted(pairs + [(r, s) for s, r in probe(right, old_left, after, before)])


def homes(rows, turn, lanes, block=64):
    """Which rows each lane keeps: blocks in turn, beginning with lane `turn`."""
    kept = [[] for _ in range(lanes)]
    for i in range(0, len(rows), block):
        kept[(i // block + turn) % lanes] += rows[i : i + block]
    return kept
