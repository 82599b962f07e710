"""Durations and sizes: exact, and refused where they could mean two things."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.documents.units import (
    DURATION_UNITS_US,
    SIZE_UNITS,
    duration_us,
    show_duration,
    show_size,
    size_bytes,
)
from edged.errors import JobError


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("250ms", 250_000), ("1s", 1_000_000), ("5min", 300_000_000), ("1h", 3_600_000_000),
        ("1d", 86_400_000_000), ("1h30min", 5_400_000_000), ("1h 30min", 5_400_000_000),
        ("1.5s", 1_500_000), ("0.000001s", 1), ("7us", 7), ("7µs", 7), ("0s", 0),
        (" 1s ", 1_000_000), (12, 12), (0, 0),
    ],
)  # fmt: skip
def test_durations_are_whole_microseconds(text, us):
    assert duration_us("x", text) == us


@pytest.mark.parametrize(
    "text",
    ["", "5", "s", "1m", "1S", "1s1s", "1s,", "one second", "-", "1e3s", "0.1us", "-1s", -1, 1.5,
     True, None, [1], "200000d", "1 000s", "1..5s", "٣s"],
)  # fmt: skip
def test_durations_that_are_not_clear_are_refused(text):
    with pytest.raises(JobError, match=r"^a\.b: "):
        duration_us("a.b", text)


def test_a_bound_may_be_negative_where_that_means_something():
    assert duration_us("x", "-1min30s", negative=True) == -90_000_000
    assert duration_us("x", -5, negative=True) == -5


def test_the_least_duration_is_named():
    with pytest.raises(JobError, match=r"too short.*at least 1us"):
        duration_us("x", "0s", least=1)


@pytest.mark.parametrize(
    ("text", "size"),
    [("512MiB", 512 << 20), ("1GiB", 1 << 30), ("1.5KiB", 1536), ("64B", 64), (4096, 4096)],
)
def test_sizes_are_whole_bytes(text, size):
    assert size_bytes("x", text) == size


@pytest.mark.parametrize(
    "text", ["512MB", "512", "1k", "", "0.3B", -1, "-1KiB", 1.0, False, "1PiB"]
)
def test_sizes_that_are_not_clear_are_refused(text):
    with pytest.raises(JobError, match=r"^x: "):
        size_bytes("x", text)


@given(st.integers(0, 3_000_000_000_000_000))
def test_a_shown_duration_reads_back_the_same(us):
    assert duration_us("x", show_duration(us)) == us
    assert duration_us("x", show_duration(-us), negative=True) == -us


@given(st.integers(0, 1 << 50))
def test_a_shown_size_reads_back_the_same(size):
    assert size_bytes("x", show_size(size)) == size


@given(st.integers(0, 10_000), st.sampled_from(sorted(DURATION_UNITS_US)))
def test_every_unit_counts_as_its_length(count, unit):
    assert duration_us("x", f"{count}{unit}") == count * DURATION_UNITS_US[unit]


@given(st.integers(0, 10_000), st.sampled_from(sorted(SIZE_UNITS)))
def test_every_size_unit_counts_as_its_bytes(count, unit):
    assert size_bytes("x", f"{count}{unit}") == count * SIZE_UNITS[unit]
