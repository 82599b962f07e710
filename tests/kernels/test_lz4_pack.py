"""Buffers compressed by the kernel: equal to its naive twin, and read back by the package lz4."""

import struct

import lz4.frame
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edged.data.columns import address
from kernels.cpu.lz4_pack import HASH_BITS, ROOM_A_BUFFER, pack_buffers
from tests.naive import lz4_pack as naive

pieces = st.one_of(
    st.binary(max_size=40),
    st.builds(lambda part, times: part * times, st.binary(max_size=9), st.integers(0, 400)),
    st.builds(
        lambda step, n: np.arange(0, step * n, max(1, step), dtype=np.int64).tobytes(),
        st.integers(0, 5), st.integers(0, 300),
    ),
    st.builds(lambda seed, n: np.random.default_rng(seed).bytes(n), st.integers(0, 9),
              st.integers(0, 2000)),
)  # fmt: skip
buffers = st.lists(st.lists(pieces, max_size=5).map(b"".join), max_size=6)


def layout(parts):
    """A body without gaps, and its entries."""
    ends = np.cumsum([0, *map(len, parts)]).tolist()
    return b"".join(parts), [(at, len(part)) for at, part in zip(ends, parts, strict=False)]


def pack(body, entries):
    source = np.frombuffer(body, np.uint8) if body else np.zeros(1, np.uint8)
    places = np.array(entries, np.int64).reshape(-1, 2)
    made = np.full_like(places, 7)
    guard = 64
    target = np.full(len(body) + ROOM_A_BUFFER * len(entries) + guard, 0xAB, np.uint8)
    table = np.full(1 << HASH_BITS, 99, np.int32)
    size = pack_buffers(
        address(source), address(places), len(entries), address(target), address(made), table
    )
    assert (target[-guard:] == 0xAB).all()
    return target[:size].tobytes(), [tuple(one) for one in made.tolist()]


def read(packed, made):
    for start, size in made:
        length = struct.unpack_from("<q", packed, start)[0] if size else 0
        data = packed[start + 8 : start + size]
        yield data if length < 0 or not size else lz4.frame.decompress(data)


@given(buffers)
def test_packed_buffers_are_those_of_the_twin_and_the_package_reads_them(parts):
    body, entries = layout(parts)
    packed, made = pack(body, entries)
    assert (packed, made) == naive.buffers(body, entries)
    assert list(read(packed, made)) == parts


def test_large_buffers_have_larger_blocks_and_distances_stay_short():
    dice = np.random.default_rng(3)
    words = dice.integers(0, 50, 1 << 20).astype(np.int64).tobytes()
    far = dice.bytes(70_000) * 2
    parts = [words[:n] for n in (65_536, 65_537, 1 << 18, (1 << 20) + 1, 8 << 20)]
    parts += [far, dice.bytes(9 << 20)]
    packed, made = pack(*layout(parts))
    assert list(read(packed, made)) == parts
    sizes = [size for _, size in made]
    assert all(size < 0.6 * len(part) for size, part in zip(sizes[:5], parts[:5], strict=True))
    assert sizes[5:] == [len(part) + 8 for part in parts[5:]], "they do not shrink"


def test_it_compresses_about_as_well_as_the_package():
    rows = np.arange(8192, dtype=np.int64)
    columns = [1_700_000_000_000_000 + 1000 * rows, rows % 17, rows // 100, np.sin(rows / 50) * 50]
    for column in columns:
        data = column.astype(np.float32 if column.dtype == float else np.int64).tobytes()
        ((_, size),) = pack(data, [(0, len(data))])[1]
        assert size <= 1.1 * len(lz4.frame.compress(data, store_size=False)) + 8
