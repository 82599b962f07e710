"""Digests of texts in hexadecimal: MD5 (RFC 1321) and SHA-256 (FIPS 180-4).

Makers as in `kernels.cpu.text_make`.  Words are int64 cut to 32 bits, and `extra` holds the
constants, so that one module serves both without tables of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu.mem import load_u8, store_u8
from kernels.cpu.text_make import MAKER, text_at
from kernels.registry import device, kernel

_LOW = 0xFFFFFFFF


@device
def _byte(text: Any, size: Any, blocks: Any, at: Any, big: Any) -> Any:
    """Byte `at` of the padded message: text, 0x80, zeros, and the size in bits in 8 bytes."""
    if at < size:
        return np.int64(load_u8(text + at))
    if at == size:
        return np.int64(0x80)
    place = at - (64 * blocks - 8)
    if place < 0:
        return np.int64(0)
    return (size * 8) >> (8 * (7 - place if big else place)) & 0xFF


@device
def _turn(x: Any, by: Any) -> Any:
    """`x` rotated left within 32 bits."""
    return (x << by | x >> (32 - by)) & _LOW


@device
def _hex(target: Any, value: Any, digits: Any) -> Any:
    for i in range(digits):
        digit = value >> (4 * (digits - 1 - i)) & 0xF
        store_u8(target + i, digit + (48 if digit < 10 else 87))


@device
def _md5_block(state: Any, words: Any, extra: Any) -> Any:
    a, b, c, d = state[0], state[1], state[2], state[3]
    for i in range(64):
        turn = i // 16
        if turn == 0:
            f, g = (b & c) | (~b & d), i
        elif turn == 1:
            f, g = (d & b) | (~d & c), (5 * i + 1) % 16
        elif turn == 2:
            f, g = b ^ c ^ d, (3 * i + 5) % 16
        else:
            f, g = c ^ (b | (~d & _LOW)), 7 * i % 16
        f = ((f & _LOW) + a + extra[i] + words[g]) & _LOW
        a, d, c = d, c, b
        b = (b + _turn(f, extra[64 + 4 * turn + i % 4])) & _LOW
    state[0] = (state[0] + a) & _LOW
    state[1] = (state[1] + b) & _LOW
    state[2] = (state[2] + c) & _LOW
    state[3] = (state[3] + d) & _LOW


@kernel(MAKER, reference="tests.naive.text_make.md5")
def md5(operands: Any, valid: Any, extra: Any, offsets: Any, target: Any, bad: Any) -> Any:
    """MD5 of a text; `extra`: 64 additive constants, 16 rotations."""
    at = 0
    words = np.empty(16, np.int64)
    state = np.empty(4, np.int64)
    for row in range(valid.size):
        if target == 0:
            offsets[row] = at
        if valid[row] == 0:
            continue
        if target != 0:
            text, size = text_at(operands, 0, row)
            blocks = (size + 72) // 64
            state[0], state[1], state[2], state[3] = 0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476
            for block in range(blocks):
                for i in range(16):
                    words[i] = 0
                    for j in range(4):
                        byte = _byte(text, size, blocks, 64 * block + 4 * i + j, False)
                        words[i] |= byte << (8 * j)
                _md5_block(state, words, extra)
            for i in range(16):
                _hex(target + at + 2 * i, state[i // 4] >> (8 * (i % 4)) & 0xFF, 2)
        at += 32
    if target == 0:
        offsets[valid.size] = at
    return at


@device
def _sha256_block(state: Any, words: Any, extra: Any) -> Any:
    for i in range(16, 64):
        x, y = words[i - 15], words[i - 2]
        s0 = _turn(x, 25) ^ _turn(x, 14) ^ (x >> 3)
        s1 = _turn(y, 15) ^ _turn(y, 13) ^ (y >> 10)
        words[i] = (words[i - 16] + s0 + words[i - 7] + s1) & _LOW
    a, b, c, d, e, f, g, h = (
        state[0], state[1], state[2], state[3], state[4], state[5], state[6], state[7],
    )  # fmt: skip
    for i in range(64):
        s1 = _turn(e, 26) ^ _turn(e, 21) ^ _turn(e, 7)
        one = (h + s1 + ((e & f) ^ (~e & _LOW & g)) + extra[i] + words[i]) & _LOW
        s0 = _turn(a, 30) ^ _turn(a, 19) ^ _turn(a, 10)
        two = (s0 + ((a & b) ^ (a & c) ^ (b & c))) & _LOW
        h, g, f, e, d, c, b, a = g, f, e, (d + one) & _LOW, c, b, a, (one + two) & _LOW
    for i, word in enumerate((a, b, c, d, e, f, g, h)):
        state[i] = (state[i] + word) & _LOW


@kernel(MAKER, reference="tests.naive.text_make.sha256")
def sha256(operands: Any, valid: Any, extra: Any, offsets: Any, target: Any, bad: Any) -> Any:
    """SHA-256 of a text; `extra`: 64 constants, 8 initial words."""
    at = 0
    words = np.empty(64, np.int64)
    state = np.empty(8, np.int64)
    for row in range(valid.size):
        if target == 0:
            offsets[row] = at
        if valid[row] == 0:
            continue
        if target != 0:
            text, size = text_at(operands, 0, row)
            blocks = (size + 72) // 64
            state[:] = extra[64:72]
            for block in range(blocks):
                for i in range(16):
                    words[i] = 0
                    for j in range(4):
                        byte = _byte(text, size, blocks, 64 * block + 4 * i + j, True)
                        words[i] |= byte << (8 * (3 - j))
                _sha256_block(state, words, extra)
            for i in range(8):
                _hex(target + at + 8 * i, state[i], 8)
        at += 64
    if target == 0:
        offsets[valid.size] = at
    return at
