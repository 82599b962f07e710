"""The LZ4 kernel against the package lz4 and its naive twin, on whole and on damaged frames."""

from __future__ import annotations

import lz4.frame
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tests.naive.lz4 as naive
from edged.data.columns import address
from kernels.cpu.lz4 import unpack
from tests.kernels.test_ipc import guarded
from tests.whole import examples

TEXTS = st.one_of(
    st.binary(max_size=300),
    st.builds(lambda part, n: part * n, st.binary(min_size=1, max_size=40), st.integers(1, 400)),
    st.builds(
        lambda seed, n: np.random.default_rng(seed).integers(0, 3, n, np.uint8).tobytes(),
        st.integers(0, 2**32), st.integers(0, 200_000),
    ),
)  # fmt: skip


def both(data: bytes, room: int) -> tuple[int, bytes]:
    """What the kernel unpacks, after the twin has agreed.  Memory around both is not accessible."""
    want = bytearray(room)
    view = np.frombuffer(want, np.uint8) if room else np.zeros(1, np.uint8)
    with guarded(data, True) as source, guarded(b"\xaa" * room, True) as target:
        size = unpack(source, len(data), target, room)
        assert size == naive.unpack(source, len(data), address(view), room)
        got = naive.ctypes.string_at(target, max(size, 0))
    assert got == bytes(want[: max(size, 0)])
    return size, got


@settings(max_examples=examples(150), deadline=None)
@given(TEXTS, st.booleans(), st.booleans(), st.booleans(), st.booleans(), st.integers(0, 9))
@example(b"", False, False, False, False, 0)
@example(b"\0" * 100_000, True, True, True, True, 0)
def test_frames_are_unpacked_as_the_package_does(
    raw: bytes, linked: bool, checked: bool, blocks_checked: bool, sized: bool, level: int
) -> None:
    packed = lz4.frame.compress(
        raw, compression_level=level, block_linked=linked, content_checksum=checked,
        block_checksum=blocks_checked, store_size=sized, block_size=lz4.frame.BLOCKSIZE_MAX64KB,
    )  # fmt: skip
    assert both(packed, len(raw)) == (len(raw), raw)
    assert both(packed, len(raw) + 40) == (len(raw), raw)
    if raw:
        assert both(packed, len(raw) - 1)[0] == -1


@settings(max_examples=examples(300), deadline=None)
@given(
    TEXTS.map(lambda raw: lz4.frame.compress(raw[:3000])),
    st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), max_size=4),
    st.integers(0, 4000),
)
def test_damaged_frames_touch_no_memory_around_them(
    packed: bytes, changes: list[tuple[int, int]], cut: int
) -> None:
    damaged = bytearray(packed)
    for at, value in changes:
        damaged[at % len(damaged)] = value
    both(bytes(damaged[: max(1, cut)]), 3000)


@pytest.mark.parametrize("distance", range(1, 20))
@pytest.mark.parametrize("length", [4, 7, 8, 9, 15, 16, 17, 31, 200])
def test_overlapping_matches_repeat_their_pattern(distance: int, length: int) -> None:
    literals = bytes(range(65, 65 + distance))
    token = bytes([(min(15, distance) << 4) | min(15, length - 4)])
    block = token + (bytes([distance - 15]) if distance >= 15 else b"") + literals
    block += distance.to_bytes(2, "little")
    block += bytes([length - 4 - 15]) if length >= 19 else b""
    block += b"\x50after"
    frame = b"\x04\x22\x4d\x18\x40\x40\x00" + len(block).to_bytes(4, "little") + block
    frame += b"\0\0\0\0"
    wanted = bytes((literals * 300)[: distance + length]) + b"after"
    for spare in (0, 3, 8, 64):
        assert both(frame, len(wanted) + spare) == (len(wanted), wanted)
