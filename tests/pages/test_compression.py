"""A page is compressed where its sampled entropy is at most the threshold and LZ4 saves a tenth."""

from __future__ import annotations

import lz4.block
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edged.pages.format import LAYOUT_DENSE, Header, parse_header, verify
from edged.pages.header import HEADER_BYTES
from edged.pages.seal import COMPRESS_BYTES_MIN, COMPRESSED_SHARE_MAX, ENTROPY_BITS_MAX, seal_page
from tests.naive import entropy as naive
from tests.whole import examples

NAN = np.array([0x7FF8000000000001, 0xFFF0000000000000, 0x7FF0000000000001], np.uint64).tobytes()
EXTREMES = np.array([2**63 - 1, -(2**63), -1, 0], np.int64).tobytes()
RANDOM = np.random.default_rng(1).bytes(1 << 15)
PIECES = st.one_of(
    st.binary(max_size=64),
    st.sampled_from([b"\0", b"\xff", NAN, EXTREMES, RANDOM[:300], bytes(range(256))]),
)
BODIES = st.lists(st.tuples(PIECES, st.integers(1, 300)), max_size=6).map(
    lambda parts: b"".join(piece * times for piece, times in parts)
)


def sealed(body, entropy_max):
    page = np.frombuffer(bytearray(HEADER_BYTES) + body, np.uint8)
    header = Header(
        layout=LAYOUT_DENSE, capacity=1 << 24, stored_bytes=0, raw_bytes=0, tuples=len(body),
        stride=1, checksum=0, epoch=1, seq=1, beat=1, partition=0, version=1, time_min_us=0,
        time_max_us=0, sealed_at_us=0, flags=0, device="d", stream="s",
    )  # fmt: skip
    return seal_page(header, page, entropy_bits_max=entropy_max)


@settings(max_examples=examples(200), deadline=None)
@given(BODIES, st.floats(0, 8))
@example(b"", 8.0)
@example(b"a", 8.0)
@example(b"a" * (COMPRESS_BYTES_MIN - 1), 8.0)
@example(b"a" * COMPRESS_BYTES_MIN, 0.0)
@example(RANDOM, ENTROPY_BITS_MAX)
@example(RANDOM, 8.0)
@example(NAN * 500, ENTROPY_BITS_MAX)
@example(EXTREMES * 500, 8.0)
@example(bytes(range(256)) * 16, ENTROPY_BITS_MAX)
@example(bytes(range(256)) * 16, 8.0)
def test_the_decision_is_the_naive_twins_and_the_rows_stay(body, entropy_max):
    page = sealed(body, entropy_max)
    header = verify(page)
    stored = page[HEADER_BYTES:]
    small = lz4.block.compress(body, store_size=False)
    saves = len(small) <= COMPRESSED_SHARE_MAX * len(body)
    if len(body) < COMPRESS_BYTES_MIN or not saves:
        assert not header.compressed
    elif abs(naive.sampled_bits(body) - entropy_max) > 1e-9:
        assert header.compressed == (naive.sampled_bits(body) < entropy_max)
    if header.compressed:
        assert len(stored) <= COMPRESSED_SHARE_MAX * len(body)
        stored = lz4.block.decompress(stored, uncompressed_size=header.raw_bytes - HEADER_BYTES)
    assert stored == body
    assert header.raw_bytes == HEADER_BYTES + len(body)


@settings(max_examples=examples(40), deadline=None)
@given(BODIES, st.floats(0, 8), st.floats(0, 8))
def test_a_higher_threshold_never_stores_a_page_raw_that_a_lower_one_compresses(body, a, b):
    low, high = (parse_header(sealed(body, most)).compressed for most in sorted((a, b)))
    assert high or not low


@settings(max_examples=examples(60), deadline=None)
@given(BODIES)
@example(b"")
@example(b"\x80")
@example(RANDOM)
@example(NAN * 2000)
@example(EXTREMES * 2000)
def test_the_sample_is_of_the_body_and_its_entropy_is_between_0_and_8(body):
    bits = naive.sampled_bits(body) if body else 0.0
    assert -1e-9 <= bits <= 8 + 1e-9
    if len(set(body)) <= 1:
        assert bits == pytest.approx(0)
    assert 2**bits <= max(1, len(set(body))) + 1e-6
