"""What the tests of the join family share: a driver that runs a member, streams, and checks.

Each `check_*` takes a member's class and a `Stream`, so that the same properties hold members on
any device; `members` filters by device.  Rows are (time, tag) without columns: their tags stand for
their keys.  Keys of other kinds go through `IntervalJoin` (`operator_on`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from edged.data.scratch import Scratch
from edged.data.workers import Workers
from edged.joins.base import Beat, Records, load_joins
from edged.operators.interval_join import IntervalJoin
from kernels.cpu import rings
from tests.naive import joins as naive

RECORD = np.dtype([("time", "i8"), ("tag", "u4"), ("row", "u4")])
MIN, MAX = -(2**63), 2**63 - 1
TAGS = [0, 1, 2, 2**26 - 1, 2**26, 2**31 - 1, 2**31, 2**32 - 1]
WINDOWS = [(0, 0), (3, 0), (0, 4), (2, 7), (100, 100)]


def members(device, ordered=None):
    """The registered members of a device; those that are `ordered`, or not, where it is given."""
    return [
        m
        for m in load_joins().values()
        if m.device == device and (ordered is None or m.ordered == ordered)
    ]


def named(member):
    """The id of a parameter."""
    return getattr(member, "name", None)


@dataclass
class Stream:
    """Beats (left rows, right rows, bounds, everything) for windows of `before` and `after`."""

    before: int
    after: int
    beats: list

    def rows(self, side):
        """All rows of a side."""
        return [row for beat in self.beats for row in beat[side]]


class Run:
    """A member at work.  It stands for the operator: it numbers rows and moves its stores on."""

    def __init__(self, member, before, after, start=0, workers=None):
        self.join = member(before, after, start % 2**32)
        self.before, self.after, self.workers = before, after, workers
        self.base, self.next = [start, start], [start, start]
        self.windows = [{}, {}]

    def beat(self, left, right, bounds=(MIN, MIN), everything=(False, False)):
        """The pairs of numbers that the member answers; stores move to the oldest row after it."""
        records = [self.records(side, rows) for side, rows in enumerate((left, right))]
        bases = self.base[0] % 2**32, self.base[1] % 2**32
        pairs = self.join.join(*records, Beat(bases, bounds, everything), self.workers)
        found = [(array + base).tolist() for array, base in zip(pairs, self.base, strict=True)]
        for side in (0, 1):
            self.base[side] += self.oldest(side)
        return list(zip(*found, strict=True))

    def records(self, side, rows, numbers=None):
        """Rows as the records of a batch, in memory of the member's."""
        if numbers is None:
            numbers = range(self.next[side], self.next[side] + len(rows))
            self.next[side] += len(rows)
        array = np.array(
            [(t, tag, n % 2**32) for (t, tag), n in zip(rows, numbers, strict=True)], RECORD
        )
        self.windows[side].update(zip(numbers, rows, strict=True))
        return self.place(side, array)

    def place(self, side, array):
        """An array of records in arrival order as a batch, partition by partition."""
        partitions = array["tag"] >> 26
        data = self.join.buffer(side, array.size)
        assert data.size >= 2 * (array.size + rings.AHEAD)
        data[:] = -1
        data.view(RECORD)[: array.size] = array[np.argsort(partitions, kind="stable")]
        return Records(data, np.bincount(partitions, minlength=64).astype(np.int64))

    def oldest(self, side):
        """The store's first row that may be held."""
        rows = self.next[side] - self.base[side]
        return self.join.oldest(side, self.base[side] % 2**32, rows)

    def live(self, side):
        """The numbers of the rows that are held, ascending, each with its tag."""
        rows = self.next[side] - self.base[side]
        found, hashes = self.join.live(side, self.base[side] % 2**32, rows, Scratch())
        assert found.tolist() == sorted(set(found.tolist()))
        assert ((hashes >> 58) == (hashes & 0xFFFFFFFF) >> 26).all()
        tags = (hashes & 0xFFFFFFFF).tolist()
        return [(r + self.base[side], t) for r, t in zip(found.tolist(), tags, strict=True)]

    def switch(self, member):
        """Go on with another member, as the operator does."""
        old, held = self.join, [self.live(side) for side in (0, 1)]
        self.join = member(self.before, self.after)
        for side in (0, 1):
            numbers = [number for number, _ in held[side]]
            rows = [self.windows[side][number] for number in numbers]
            self.join.restore(side, self.records(side, rows, numbers))
        old.close()

    def close(self):
        """Give up what the member holds."""
        self.join.close()


def numbered(rows, first):
    """Rows with their numbers."""
    return [(t, tag, first + i) for i, (t, tag) in enumerate(rows)]


def expected(stream, start=0):
    """What members that the daemon runs answer, beat by beat."""
    twin, first, out = naive.Exact(stream.before, stream.after), [start, start], []
    for left, right, bounds, everything in stream.beats:
        rows = numbered(left, first[0]), numbered(right, first[1])
        first = [first[0] + len(left), first[1] + len(right)]
        out.append(twin.join(*rows, bounds, everything))
    return out


def answers(member, stream, start=0, workers=None, switch=()):
    """A member's pairs, beat by beat; before beat i it gives over to `switch[i]`, if there is.
    `workers` are those of all beats, or a list of those of each."""
    run = Run(member, stream.before, stream.after, start, workers)
    out = []
    for i, beat in enumerate(stream.beats):
        if isinstance(workers, list):
            run.workers = workers[i] if i < len(workers) else None
        if i < len(switch) and switch[i] is not None:
            run.switch(switch[i])
        out.append(run.beat(*beat))
    run.close()
    return out


def check(member, stream, start=0, workers=None, switch=()):
    """The answers are what the twin allows: all of them, once, in order where there is one."""
    found = answers(member, stream, start, workers, switch)
    if member.ordered and all(m is None or m.ordered for m in switch):
        assert found == expected(stream, start)
        return
    twin, first = naive.Bounds(stream.before, stream.after), [start, start]
    seen = Counter()
    for (left, right, bounds, everything), pairs in zip(stream.beats, found, strict=True):
        rows = numbered(left, first[0]), numbered(right, first[1])
        first = [first[0] + len(left), first[1] + len(right)]
        must, may = twin.join(*rows, bounds, everything)
        assert must <= set(pairs) <= may
        seen.update(pairs)
    assert not seen or max(seen.values()) == 1


def check_windows(member, stream, start=0):
    """What is held after each beat: exactly so for members that the daemon runs, else no less than
    what may not go; and `oldest` never passes a row that is held."""
    run = Run(member, stream.before, stream.after, start)
    twins = naive.Exact(stream.before, stream.after), naive.Bounds(stream.before, stream.after)
    for left, right, bounds, everything in stream.beats:
        rows = numbered(left, run.next[0]), numbered(right, run.next[1])
        for twin in twins:
            twin.join(*rows, bounds, everything)
        run.beat(left, right, bounds, everything)
        for side in (0, 1):
            live = run.live(side)
            assert run.join.held(side) >= len(live)
            if member.ordered:
                assert live == twins[0].held(side)
            assert {number for *_, number in twins[1].kept[side]} <= {number for number, _ in live}
            assert all(run.windows[side][number][1] == tag for number, tag in live)
    run.close()


def check_cuts(member, stream, cuts):
    """The same pairs in all, whatever the beats: for streams without late rows."""
    whole = [pair for beat in answers(member, stream) for pair in beat]
    other = [pair for beat in answers(member, recut(stream, cuts)) for pair in beat]
    assert sorted(whole) == sorted(other) == sorted(all_pairs(stream))


def check_threads(member, stream, counts=(2, 3, 7), start=0):
    """The answers of as many threads as you like are what the twin allows."""
    for count in counts:
        workers = Workers(count)
        try:
            check(member, stream, start, workers)
        finally:
            workers.close()


def all_pairs(stream):
    """Every pair of numbers of the two streams."""
    left, right = (numbered(stream.rows(side), 0) for side in (0, 1))
    pairs = naive.meet([], right, left, [], stream.before, stream.after)
    return [(r[2], s[2]) for r, s in pairs]


def recut(stream, cuts):
    """The same rows in other beats, cut at `cuts` (left row, right row)."""
    return beats_of(stream.rows(0), stream.rows(1), stream.before, stream.after, cuts, LATENESS)


LATENESS = 5
"""How far a row of a stream that is not `late` may lie behind the largest time before it."""


def beats_of(left, right, before, after, cuts, lateness):
    """Streams of rows cut into beats, with the bounds that their watermarks allow."""
    n = len(cuts) + 1
    edges = [
        [0, *sorted(min(cut[side], len(rows)) for cut in cuts), len(rows)]
        for side, rows in enumerate((left, right))
    ]
    marks, beats = [MIN, MIN], []
    for b in range(n):
        parts = [rows[edges[s][b] : edges[s][b + 1]] for s, rows in enumerate((left, right))]
        for side, part in enumerate(parts):
            marks[side] = max([marks[side], *(max(MIN, t - lateness) for t, _ in part)])
        bounds = max(MIN, marks[1] - after), max(MIN, marks[0] - before)
        beats.append((*parts, bounds, (False, False)))
    return Stream(before, after, beats)


@st.composite
def streams(draw, max_rows=40, late=False, windows=WINDOWS, ends=True):
    """Streams of rows whose times run back by LATENESS at the most, or by more where `late`."""
    before, after = draw(st.sampled_from(windows))
    origin = draw(st.sampled_from([0, 10**15, -(10**6)]))
    sides = []
    for _ in range(2):
        size = draw(st.sampled_from([0, 1, max_rows, max_rows]))
        tag = st.sampled_from(TAGS[: draw(st.sampled_from([1, 2, len(TAGS)]))])
        back = st.integers(0, LATENESS + 30 * late)
        steps = draw(st.lists(st.tuples(st.integers(0, 3), back, tag), max_size=size))
        time, rows = origin, []
        for step, behind, t in steps:
            time += step
            rows.append((time - behind, t))
        sides.append(rows)
    cut = st.tuples(st.integers(0, max_rows), st.integers(0, max_rows))
    stream = beats_of(*sides, before, after, draw(st.lists(cut, max_size=6)), LATENESS)
    if ends and draw(st.booleans()):
        left, right, bounds, _ = stream.beats[-1]
        ended = draw(st.sampled_from([(True, False), (False, True), (True, True)]))
        stream.beats[-1] = (left, right, bounds, ended)
        stream.beats.append(([], [], bounds, ended))
    return stream


EXTREMES = st.sampled_from([MIN, MIN + 1, -1, 0, 1, MAX - 1, MAX, 2**62, -(2**62)])


@st.composite
def extreme_streams(draw):
    """Times at the ends of int64, in any order; no row is evicted."""
    row = st.tuples(EXTREMES, st.sampled_from([7, 2**32 - 7]))
    left, right = (draw(st.lists(row, max_size=12)) for _ in range(2))
    bound = draw(st.sampled_from([0, 1, 10**15, 36_525 * 86_400_000_000]))
    cuts = draw(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=3))
    stream = beats_of(left, right, bound, bound // 2, cuts, 2**64)
    return stream


def random_arrays(seed, rows, keys, skew=0.0, jitter=0):
    """Records of a stream whose times grow by one a row, less up to `jitter`; key = hashed tag."""
    rng = np.random.default_rng(seed)
    array = np.zeros(rows, RECORD)
    key = rng.integers(0, keys, rows, dtype=np.uint64)
    key[rng.random(rows) < skew] = 0
    array["tag"] = (key * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)
    array["time"] = np.arange(rows) - rng.integers(0, jitter + 1, rows)
    array["row"] = np.arange(rows)
    return array


def array_pairs(left, right, before, after):
    """All pairs of two arrays of records, as `sorted_pairs` gives them: by sorting and searching.
    Times are within ±2^30, bounds below that."""
    places = (right["tag"].astype(np.int64) << 31) + right["time"] + 2**30
    order = np.argsort(places)
    places = places[order]
    at = (left["tag"].astype(np.int64) << 31) + left["time"] + 2**30
    start = np.searchsorted(places, at - before)
    sizes = np.searchsorted(places, at + after, side="right") - start
    within = np.arange(sizes.sum()) - np.repeat(sizes.cumsum() - sizes, sizes)
    met = order[np.repeat(start, sizes) + within]
    return sorted_pairs(np.repeat(np.arange(left.size), sizes), met)


def sorted_pairs(left, right):
    """Pairs of rows, each as one number, sorted."""
    return np.sort(left.astype(np.int64) << 32 | right)


class ArrayRun(Run):
    """A member over two arrays of records, beat by beat, without Python a row."""

    def feed(self, left, right, sizes, lateness=0):
        """Pairs as the member gives them (absolute rows), of beats of `sizes` rows a side."""
        beats = max(-(-a.size // n) for a, n in zip((left, right), sizes, strict=True))
        out, marks = [], [MIN, MIN]
        for b in range(beats):
            parts = [
                a[b * n : (b + 1) * n].copy() for a, n in zip((left, right), sizes, strict=True)
            ]
            for side, part in enumerate(parts):
                part["row"] = (self.next[side] + np.arange(part.size)) % 2**32
                self.next[side] += part.size
                if part.size:
                    marks[side] = max(marks[side], int(part["time"].max()) - lateness)
            bounds = max(MIN, marks[1] - self.after), max(MIN, marks[0] - self.before)
            out.append(self.push(parts, bounds))
        return np.concatenate(out)

    def push(self, parts, bounds):
        """One beat."""
        records = [self.place(side, part) for side, part in enumerate(parts)]
        bases = self.base[0] % 2**32, self.base[1] % 2**32
        pairs = self.join.join(*records, Beat(bases, bounds), self.workers)
        found = np.stack([p + b for p, b in zip(pairs, self.base, strict=True)], axis=1)
        for side in (0, 1):
            self.base[side] += self.oldest(side)
        return found


def operator_on(member, plan, start=0):
    """The running operator of a plan on any member, those that the daemon does not run included."""
    join = IntervalJoin(plan, start)
    if member is not None:
        join._join.close()
        join._join = member(plan.before_us, plan.after_us, start)
    return join
