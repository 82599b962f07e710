"""Probes of states whose files are not in memory: same matches, only the pages that are needed."""

import mmap
import os
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from edged.platform.mapped import ASKED_BYTES
from edged.tables import _cold
from edged.tables.compaction import RunDebt, after_probe
from kernels.cpu.tables import pages
from tests.naive.tables import asked_pages, marked_pages
from tests.tables import support
from tests.tables.test_files import KEYS, filled
from tests.tables.test_members import ORDINARY, changes_of

BITS = mmap.PAGESIZE.bit_length() - 1


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=40),
    st.lists(st.integers(0, 2**64 - 1), max_size=30),
    st.integers(1, 5),
)
def test_pages_of_keys_are_marked_and_asked_for_with_small_gaps(words, hashes, gap):
    """A directory of 2^6 entries over records of 256 words each step, that lie in a map."""
    directory = np.zeros(65, np.uint32)
    directory[1 : len(words) + 1] = np.cumsum(np.array(words) * 256)
    directory[len(words) + 1 :] = directory[len(words)]
    size = 8 * int(directory[-1])
    with mmap.mmap(-1, size + mmap.PAGESIZE) as mapped:
        records = np.frombuffer(mapped, np.uint8)
        places = np.array([[records.ctypes.data, directory.ctypes.data, 58]], np.int64)
        marks = np.zeros((size >> BITS) + 1, np.uint8)
        given = np.array(hashes, np.uint64)
        pages.mark(places, 0, given, 0, given.size, BITS, marks)
        entries = [h >> 58 for h in hashes]
        ends = [(8 * int(directory[e]), 8 * int(directory[e + 1])) for e in entries]
        wanted = marked_pages([end for end in ends if end[0] < end[1]], mmap.PAGESIZE)
        assert set(np.flatnonzero(marks).tolist()) == wanted
        assert pages.ask(places, 0, BITS, marks, gap, ASKED_BYTES) == asked_pages(wanted, gap)
        assert not marks.any()
        del records


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 99)), max_size=6),
    st.integers(0, 5),
    st.booleans(),
)
def test_runs_pay_for_the_pages_of_those_behind_them(runs, keys, cold):
    debts = [RunDebt(rows, float(rows)) for rows, _ in runs]
    read_ns = [float(ns) if cold else 0.0 for _, ns in runs]
    got = after_probe(debts, keys, 2.0, read_ns if cold else [])
    for i, debt in enumerate(got):
        behind = sum(2.0 * keys + ns for ns in read_ns[i + 1 :])
        assert (debt.rows, debt.paid_ns) == (runs[i][0], runs[i][0] + behind)


def test_a_cold_state_finds_what_a_warm_one_does(tmp_path):
    """Also with more keys than a part has, with a few pages of memory, and with several threads."""
    many = support.batch(KEYS.schema, [(n % 90 - 10,) for n in range(3000)])
    for threads in (1, 3):
        state, wanted = filled(None, tmp_path, beats=60, threads=threads)
        warm = support.content(state, many)
        state._reads.cold = True
        assert support.content(state, many) == warm
        state._reads.cold = True
        assert support.content(state, KEYS) == wanted


@pytest.mark.parametrize(("warm_ns", "costs"), [(0.0, True), (1e12, False)])
def test_a_page_costs_what_a_probe_takes_beside_its_time_in_memory(warm_ns, costs):
    """A long probe that asks for one page among many runs in memory is not cold for it."""
    reads = _cold.ColdReads(1 << 20)
    reads.cold = True
    ahead = reads.begin([], np.empty((0, 3), np.int64), np.empty(0, np.uint64), 1)
    ahead[0].asked = np.array([0, 1])
    cost_ns = reads.end(10_000, ahead, warm_ns)
    assert (cost_ns[0], cost_ns[1] > 0) == (0, costs)
    assert reads.cold is costs


def test_a_probe_of_a_few_keys_reads_a_few_pages(tmp_path):
    """By default a missing page is read with all around it: 20 MB here instead of 40 pages."""
    state = support.make(tmp_path, ORDINARY, ("k",), memory=1 << 22, compact="never")
    rng = np.random.default_rng(3)
    for _ in range(8):
        state.apply(*changes_of(rng, 100_000, 400_000))
    saved = state.save()
    state.sync()
    files = sorted(Path(state.context.directory).glob("*.run"))
    for path in files:
        with path.open("rb") as file:
            os.fdatasync(file.fileno())
    state = type(state)(state.schema, state.key, state.context)
    state.load(saved)
    for path in files:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    size, before = sum(path.stat().st_size for path in files), read_bytes()
    assert size > 10 << 20
    found = state.probe(support.batch(KEYS.schema, [(1000,), (200_000,)]))
    assert found.weights.size
    assert read_bytes() - before <= (2 * len(files) * 2 * (_cold.GAP_BYTES >> BITS)) << BITS


def read_bytes():
    """Bytes that this process has read from disks."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("read_bytes")).split()[1])
