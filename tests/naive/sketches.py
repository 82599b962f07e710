"""Sketches in plain Python: buckets by integer powers, MurmurHash3 by its definition."""

from __future__ import annotations

import math
import struct
from collections import Counter
from fractions import Fraction

MASK = 2**64 - 1
SEED = 9001


def bucket(value):
    """The largest i with 2^(i / 128) <= abs(value), from a power of 128."""
    mantissa, exponent = math.frexp(abs(value))
    whole = int(mantissa * 2**53)
    return (whole**128).bit_length() - 1 + 128 * (exponent - 53)


def sketch(values, size):
    """(halvings, counts of NaN, infinities and 0, buckets below 0, buckets above 0)."""
    odd, sides = [0, 0, 0, 0], (Counter(), Counter())
    for v in map(float, values):
        if v != v:
            odd[0] += 1
        elif math.isinf(v):
            odd[1 if v > 0 else 2] += 1
        elif abs(v) < 2.0**-1022:
            odd[3] += 1
        else:
            sides[v > 0][bucket(v)] += 1
    halvings = 0
    while sum(max(s) - min(s) + 1 for s in sides if s) > size:
        halvings += 1
        sides = tuple(halved(s) for s in sides)
    return halvings, odd, *sides


def halved(counts):
    found = Counter()
    for i, count in counts.items():
        found[i >> 1] += count
    return found


def packed(values, size):
    """The bytes of a sketch of values; None of none."""
    values = list(values)
    if not values:
        return None
    halvings, odd, *sides = sketch(values, size)
    numbers = [1, size, halvings, *odd]
    for side in sides:
        low, high = min(side, default=0), max(side, default=-1)
        numbers.append(high - low + 1)
        if side:
            numbers += [2 * low if low >= 0 else -2 * low - 1]
            numbers += [side[i] for i in range(low, high + 1)]
    return b"".join(map(number, numbers))


def number(n):
    out = b""
    while n >= 128:
        out += bytes([n % 128 + 128])
        n //= 128
    return out + bytes([n])


def ranked(values, share):
    """The value of rank ceil(share * n), NaN the greatest."""
    ordered = sorted(map(float, values), key=lambda v: (v != v, v))
    return ordered[max(1, math.ceil(Fraction(share) * len(ordered))) - 1]


def quantile(values, share, size):
    """The middle of the bucket of the value of that rank."""
    value = ranked(values, share)
    if value != value or math.isinf(value):
        return value
    if abs(value) < 2.0**-1022:
        return 0.0
    halvings = sketch(values, size)[0]
    scale = 7 - halvings
    growth = 2.0 ** (2.0**-scale)
    low = (bucket(value) >> halvings) * 2.0**-scale
    try:
        middle = math.ldexp(2.0 ** (low - math.floor(low)) * 2 / (1 + 1 / growth), math.floor(low))
    except OverflowError:
        middle = math.nextafter(math.inf, 0)
    return math.copysign(middle, value)


def fmix(x):
    x = (x ^ x >> 33) * 0xFF51AFD7ED558CCD & MASK
    x = (x ^ x >> 33) * 0xC4CEB9FE1A85EC53 & MASK
    return x ^ x >> 33


def turned(x, bits):
    return (x << bits | x >> 64 - bits) & MASK


def murmur(data):
    """MurmurHash3_x64_128."""
    c1, c2 = 0x87C37B91114253D5, 0x4CF5AD432745937F
    h1 = h2 = SEED
    whole = len(data) // 16 * 16
    for at in range(0, whole, 16):
        k1, k2 = struct.unpack_from("<QQ", data, at)
        h1 ^= turned(k1 * c1 & MASK, 31) * c2 & MASK
        h1 = ((turned(h1, 27) + h2) * 5 + 0x52DCE729) & MASK
        h2 ^= turned(k2 * c2 & MASK, 33) * c1 & MASK
        h2 = ((turned(h2, 31) + h1) * 5 + 0x38495AB5) & MASK
    k1, k2 = struct.unpack("<QQ", data[whole:].ljust(16, b"\0"))
    h2 ^= turned(k2 * c2 & MASK, 33) * c1 & MASK
    h1 ^= turned(k1 * c1 & MASK, 31) * c2 & MASK
    h1, h2 = h1 ^ len(data), h2 ^ len(data)
    h1 = (h1 + h2) & MASK
    h1, h2 = fmix(h1), fmix((h2 + h1) & MASK)
    h1 = (h1 + h2) & MASK
    return h1, (h2 + h1) & MASK


def registers(values, log):
    """The registers of values: integers, floats, strings or bytes."""
    found = bytearray(1 << log)
    for value in values:
        h1, h2 = murmur(image(value))
        rank = min(64 - h2.bit_length(), 62) + 1
        at = h1 & (1 << log) - 1
        found[at] = max(found[at], rank)
    return bytes(found)


def image(value):
    """What is hashed."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, float):
        return struct.pack("<d", math.nan if value != value else value + 0.0)
    return value if isinstance(value, bytes) else struct.pack("<Q", int(value) & MASK)
