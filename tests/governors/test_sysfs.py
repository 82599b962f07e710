"""Integers of a tree: what a kernel may write, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governors.sysfs import KernelRefused, Sysfs

PATH = "/value"


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return Sysfs(tmp_path_factory.mktemp("tree"))


def held(tree, content):
    (tree.root / "value").write_bytes(content)
    return tree.get_int(PATH)


@given(value=st.integers(-(1 << 70), 1 << 70))
def test_integers_of_64_bits_are_read_and_no_others(tree, value):
    fits = -(1 << 63) <= value < 1 << 64
    assert held(tree, b"%d\n" % value) == (value if fits else None)


@pytest.mark.parametrize("text", ["1_000", "١٢", "0x10", "1 2", "1e3", "--1", "", "9" * 60_000])
def test_what_only_python_or_nobody_takes_for_a_decimal_is_garbled(tree, text):
    assert held(tree, text.encode()) is None
    with pytest.raises(KernelRefused, match="no integer of 64 bits"):
        tree.read_int(PATH)


@given(content=st.binary(max_size=64))
def test_no_content_raises_anything_else(tree, content):
    value = held(tree, content)
    assert value is None or abs(value) < 1 << 64


def test_what_is_mounted_read_only_is_what_the_kernels_table_of_mounts_says():
    fields = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    last = {place: options.split(",") for _, place, _, options, *_ in fields}  # the topmost of each
    for place, options in last.items():
        if Path(place).is_dir() and os.access(place, os.R_OK):
            assert Sysfs().read_only(place) == ("ro" in options), place
    assert not Sysfs().read_only("/nowhere")
