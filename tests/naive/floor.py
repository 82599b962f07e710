"""The floor's accesses, one by one, over lists."""

from __future__ import annotations

MASK = 2**64 - 1


class Part:
    """A partition: lines of heads (left, right), and a ring of [time, tag] for each side."""

    def __init__(self, lines, heads, rings, filled):
        self.heads = [list(heads) for _ in range(lines)]
        self.rings = [[list(entry) for entry in ring] for ring in rings]
        self.next, self.tail = list(filled), [0, 0]


class Out:
    """Where matches go."""

    def __init__(self, places):
        self.mine, self.met = [0] * places, [0] * places
        self.share = self.matches = 0


def mixed(number):
    """32 random bits for a match's number."""
    x = number * 0x9E3779B97F4A7C15 & MASK
    x ^= x >> 29
    return (x * 0xBF58476D1CE4E5B9 & MASK) >> 32


def touch(parts, beats, rate, out):
    """The sum of what is read.  `beats` are (left, right), each a list of rows (time, tag) for each
    partition; `rate` is in 2^-32 matches a tuple."""
    seen = 0
    for beat in beats:
        for p, part in enumerate(parts):
            for side in (0, 1):
                for time, tag in beat[side][p]:
                    seen += _tuple(part, side, time, tag, rate, out)
            for side in (0, 1):
                ring = part.rings[side]
                for _ in beat[side][p]:
                    seen += ring[part.tail[side]][0] & MASK
                    part.tail[side] = (part.tail[side] + 1) % len(ring)
    return seen & MASK


def _tuple(part, side, time, tag, rate, out):
    line = part.heads[tag * len(part.heads) >> 32]
    seen = line[1 - side]
    slot, ring = part.next[side], part.rings[side]
    line[side] = slot
    ring[slot] = [time, tag]
    part.next[side] = (slot + 1) % len(ring)
    other = part.rings[1 - side]
    out.share += rate
    while out.share >= 2**32:
        out.share -= 2**32
        entry = other[mixed(out.matches) * len(other) >> 32]
        seen += (entry[0] + entry[1]) & MASK
        place = out.matches % len(out.mine)
        out.mine[place], out.met[place] = tag, out.matches
        out.matches += 1
    return seen
