"""The family of window joins as nested loops over lists.

A row is (time, tag, number); its partition is the tag's top 6 bits.  `Exact` is what members that
the daemon runs must answer, order included; `Bounds` what every member must find at the least, and
what it may find at the most.
"""

from __future__ import annotations

from dataclasses import dataclass, field


def matches(row, others, before, after, *, row_is_left):
    """The rows of `others` with the row's key, near enough to it in time."""
    time, tag, _ = row
    low, high = (-before, after) if row_is_left else (-after, before)
    return [o for o in others if o[1] == tag and low <= o[0] - time <= high]


def partition(row):
    """Which of the 64 partitions a row is in."""
    return row[1] >> 26


def meet(left, right, old_left, old_right, before, after):
    """A beat's pairs of rows: left with the old right, right with the old left and the new."""
    pairs = [(r, s) for r in left for s in matches(r, old_right, before, after, row_is_left=True)]
    held = old_left + left
    return pairs + [
        (r, s) for s in right for r in matches(s, held, before, after, row_is_left=False)
    ]


@dataclass
class Exact:
    """Both windows, oldest-first eviction, one order of results."""

    before: int
    after: int
    windows: tuple = field(
        default_factory=lambda: ([[] for _ in range(64)], [[] for _ in range(64)])
    )

    def join(self, left, right, bounds, everything=(False, False)):
        """The pairs (left number, right number) of a beat, in their order."""
        ours, theirs = self.windows
        out = []
        for p in range(64):
            new_left = [r for r in left if partition(r) == p]
            new_right = [s for s in right if partition(s) == p]
            old = ours[p][::-1], theirs[p][::-1]
            for r in new_left:
                met = matches(r, old[1], self.before, self.after, row_is_left=True)
                out += [(r[2], s[2]) for s in met]
            ours[p] += new_left
            for s in new_right:
                met = matches(s, ours[p][::-1], self.before, self.after, row_is_left=False)
                out += [(r[2], s[2]) for r in met]
            theirs[p] += new_right
        for window, bound, all_go in zip(self.windows, bounds, everything, strict=True):
            for part in window:
                while part and (all_go or part[0][0] < bound):
                    part.pop(0)
        return out

    def held(self, side):
        """The numbers of the rows that are held, ascending, each with its tag."""
        return sorted((number, tag) for part in self.windows[side] for _, tag, number in part)


@dataclass
class Bounds:
    """Which pairs of a beat must be found, and which may be: rows leave at once, or never."""

    before: int
    after: int
    kept: list = field(default_factory=lambda: [[], []])
    ever: list = field(default_factory=lambda: [[], []])

    def join(self, left, right, bounds, everything=(False, False)):
        """Two sets of pairs (left number, right number): must, may."""
        found = []
        for old in (self.kept, self.ever):
            pairs = meet(left, right, *old, self.before, self.after)
            found.append({(r[2], s[2]) for r, s in pairs})
            old[0], old[1] = old[0] + left, old[1] + right
        for side in (0, 1):
            stay = [row for row in self.kept[side] if row[0] >= bounds[side]]
            self.kept[side] = [] if everything[side] else stay
        return found[0], found[1]


def join(beats, before, after):
    """The pairs of every beat; a beat is the arguments of `Exact.join`."""
    state = Exact(before, after)
    return [state.join(*beat) for beat in beats]
