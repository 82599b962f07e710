"""Tables that change, said plainly: images, runs and probes (`kernels.cpu.tables`)."""

from __future__ import annotations

import math
import struct
from collections import Counter, defaultdict
from itertools import pairwise

HEADER = 16


def canonical(value):
    """A value as tables keep it: one zero, one NaN."""
    if isinstance(value, float):
        return math.nan if math.isnan(value) else value + 0.0
    return value


def image(field, value):
    """The bytes of one column of an image."""
    mark = b"" if not field.nullable else bytes([value is not None])
    width, name = field.dtype.width, field.dtype.name
    if value is None:
        return mark + bytes(width)
    if width == 0:
        raw = value.encode() if isinstance(value, str) else value
        return mark + raw.replace(b"\0", b"\0\xff") + b"\0\0"
    if field.dtype.floating:
        code, bits = (">d", 64) if width == 8 else (">f", 32)
        word = int.from_bytes(struct.pack(code, canonical(value)), "big")
        word = word ^ (2**bits - 1) if word >> (bits - 1) else word | 1 << (bits - 1)
    elif name.startswith(("int", "timestamp")):
        word = int(value) + (1 << (8 * width - 1))
    else:
        word = int(value)
    return mark + word.to_bytes(width, "big")


def row_image(fields, row):
    """The image of a row whose values are in the order of `fields`."""
    return b"".join(image(f, value) for f, value in zip(fields, row, strict=True))


def records(rows):
    """The records of (hash, weight, image)."""
    out = []
    for h, weight, content in rows:
        size = -(-(HEADER + len(content)) // 8) * 8
        head = struct.pack("<QIi", h, size // 8, weight)
        out.append((head + content).ljust(size, b"\0"))
    return out


def offsets(sizes, header):
    """Where images of these sizes lie with their headers, each filled up to 8 bytes."""
    out = [0]
    for size in sizes:
        out.append(out[-1] + -(-(header + size) // 8) * 8)
    return out


def sorted_records(rows):
    """(hash, weight, image) by hash and image."""
    return sorted(rows, key=lambda row: (row[0], row[2]))


def consolidated(rows):
    """Each (hash, image) once with its summed weight, in order, without those of weight 0."""
    sums = Counter()
    for h, weight, content in rows:
        sums[h, content] += weight
    return [(h, weight, content) for (h, content), weight in sorted(sums.items()) if weight]


def directory(placed, bits, words):
    """The first place (in words) of a hash whose top bits are at least i; `placed` is (hash, place)
    in order."""
    return [
        next((place for h, place in placed if h >> (64 - bits) >= i), words) for i in range(2**bits)
    ] + [words]


def until(hashes, high):
    """How many of the ascending hashes are at most `high`."""
    return sum(h <= high for h in hashes)


def column(field, content):
    """The value that an image's part begins with, and the bytes behind it."""
    width = field.dtype.width
    if field.nullable:
        mark, content = content[0], content[1:]
        if not mark:
            return None, content[width:]
    if width == 0:
        end = next(
            i for i in range(len(content)) if content[i : i + 2] == b"\0\0" and _ends(content, i)
        )
        raw = content[:end].replace(b"\0\xff", b"\0")
        return raw.decode() if field.dtype.name == "string" else raw, content[end + 2 :]
    word, rest = int.from_bytes(content[:width], "big"), content[width:]
    top = 1 << (8 * width - 1)
    if field.dtype.floating:
        word = word ^ top if word & top else word ^ (2 * top - 1)
        return struct.unpack(">d" if width == 8 else ">f", word.to_bytes(width, "big"))[0], rest
    if field.dtype.name.startswith(("int", "timestamp")):
        return word - top, rest
    return bool(word) if field.dtype.name == "bool" else word, rest


def _ends(content, i):
    """Whether the two bytes 0 at `i` end a value: no byte 0 before them waits for its 255."""
    return content[:i].replace(b"\0\xff", b"").count(0) == 0


def order_of(value):
    """A key that sorts as tables do: nulls first, NaN last."""
    if value is None:
        return (0,)
    if isinstance(value, float):
        return (1, math.isnan(value), 0.0 if math.isnan(value) else value + 0.0)
    return (1, value.encode() if isinstance(value, str) else value)


class Twin:
    """A table as a dictionary from key to rows and weights."""

    def __init__(self, schema, key):
        self._places = [schema.index(name) for name in key]
        self._rows = defaultdict(Counter)

    def _key(self, values):
        return None if None in values else tuple(order_of(value) for value in values)

    def apply(self, rows, weights):
        for row, weight in zip(rows, weights, strict=True):
            key = self._key([row[i] for i in self._places])
            if key is not None:
                self._rows[key][tuple(order_of(value) for value in row)] += weight

    def probe(self, keys):
        """(probing row, the row's order, weight) of each match."""
        found = []
        for i, values in enumerate(keys):
            key = self._key(values)
            rows = sorted(self._rows[key].items()) if key is not None else []
            found += [(i, row, weight) for row, weight in rows if weight]
        return found


def probe(schema, key, changes, keys):
    """The matches of keys after (rows, weights) of each change."""
    twin = Twin(schema, key)
    for rows, weights in changes:
        twin.apply(rows, weights)
    return twin.probe(keys)


def heaviest(sums, added):
    """The largest weight of a row, without its sign, after the rows `added` with their weights."""
    return max((abs(sums.get(row, 0) + weight) for row, weight in added), default=0)


def marked_pages(places, page):
    """The pages of records that begin and end at these places of a run (bytes)."""
    return {n for first, end in places for n in range(first // page, (end - 1) // page + 1)}


def asked_pages(marked, gap):
    """The number of marked pages, and of those between two that are at most `gap` apart."""
    ordered = sorted(marked)
    steps = [b - a for a, b in pairwise(ordered)]
    return len(ordered) + sum(step - 1 for step in steps if step <= gap)
