"""Mutations of valid inputs: what a bad link, a broken sender and an attacker make of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

INPUT_BYTES_MAX = 1 << 16
"""Longest mutated input; the bounds of size have tests of their own."""
_ODD = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 62,
        (1 << 64) - 1)  # fmt: skip
"""Values for what may be a length, an offset or a count."""
_TOKENS = (b"\xff", b"\xc3\x28", b"\0", b"\n", b'"', b"'", b"[", b"{", b"}", b".", b",", b"=", b"#",
           b"\\", b"-1", b"1e999", b"null", b"0x", b"99999999999999999999", b"\xff\xff\xff\xff",
           b"EDGP")  # fmt: skip

Change = Callable[[random.Random, bytearray, Sequence[bytes]], None]


def mutated(rng: random.Random, corpus: Sequence[bytes]) -> bytes:
    """One to four mutations of a member of `corpus`."""
    data = bytearray(rng.choice(corpus))
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        rng.choice(_CHANGES)(rng, data, corpus)
        del data[INPUT_BYTES_MAX:]
    return bytes(data)


def _flip(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    for _unused in range(rng.choice((1, 1, 2, 8))):
        if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _cut(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    at = rng.randint(0, len(data))
    if rng.random() < 0.5:
        del data[at:]
    else:
        del data[at : at + rng.choice((1, 4, 8, 64))]


def _number(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    width = rng.choice((1, 2, 4, 4, 4, 8))
    at = rng.randint(0, max(0, len(data) - width))
    at -= at % width if rng.random() < 0.8 else 0
    old = int.from_bytes(data[at : at + width], "little")
    value = rng.choice((rng.choice(_ODD), old + rng.randint(-9, 9), old * 2, rng.getrandbits(64)))
    data[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, "little")


def _splice(rng: random.Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    other = rng.choice(corpus)
    start = rng.randint(0, len(other))
    part = other[start : start + rng.choice((4, 16, 64, 256, 4096))]
    at = rng.randint(0, len(data))
    data[at : at + rng.choice((0, len(part)))] = part


def _repeat(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    start = rng.randint(0, len(data))
    part = bytes(data[start : start + rng.choice((1, 2, 8, 32, 256))])
    at = rng.choice((start, rng.randint(0, len(data))))
    data[at:at] = part * rng.choice((1, 2, 10, 100, 1000))


def _token(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    at = rng.randint(0, len(data))
    token = rng.choice(_TOKENS)
    data[at : at + rng.choice((0, len(token)))] = token


_CHANGES: tuple[Change, ...] = (_flip, _flip, _number, _number, _cut, _splice, _repeat, _token)
