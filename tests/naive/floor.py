"""The floor's accesses, one by one, over lists."""

from __future__ import annotations

MASK = 2**64 - 1


class Part:
    """A partition: lines of heads (left, right), and rings of [time, tag, link, row]."""

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
    """The sum of what is read.  `beats` are (left, right), each a list of rows (time, tag, row) for
    each partition; `rate` is in 2^-32 matches a tuple."""
    seen = 0
    for beat in beats:
        for p, part in enumerate(parts):
            for side in (0, 1):
                for row in beat[side][p]:
                    seen += _tuple(part, side, row, rate, out)
            for side in (0, 1):
                ring = part.rings[side]
                for _ in beat[side][p]:
                    seen += ring[part.tail[side]][0] & MASK
                    part.tail[side] = (part.tail[side] + 1) % len(ring)
    return seen & MASK


def _tuple(part, side, row, rate, out):
    time, tag, number = row
    line = part.heads[(tag % 2**26) * len(part.heads) >> 26]
    seen = line[1 - side]
    slot, ring = part.next[side], part.rings[side]
    ring[slot] = [time, tag, line[side], number]
    line[side] = slot
    part.next[side] = (slot + 1) % len(ring)
    other = part.rings[1 - side]
    out.share += rate
    while out.share >= 2**32:
        out.share -= 2**32
        when, met, link, partner = other[mixed(out.matches) * len(other) >> 32]
        seen += (when + met + (link << 32)) & MASK
        place = out.matches % len(out.mine)
        out.mine[place], out.met[place] = number, partner
        out.matches += 1
    return seen
