"""Runs loaded into files at once: a population past the log."""

import errno

import numpy as np
import pytest

from edged.tables.compaction import RUNS_MAX
from tests.naive.tables import Twin
from tests.store.simdisk import SimDisk
from tests.tables import support
from tests.tables.test_members import ORDINARY, changes_of

KEYS = support.batch(support.key_schema(ORDINARY, ("k",)), [(k,) for k in range(-2, 60)])
STRINGS, STRING_KEY = support.SHAPES["string"]


def loaded(state, rows, weights):
    """Load changes; what the state says of them before it takes them."""
    state.load_run(rows, weights, whole=True)
    found, found_weights = state.loaded()
    found = list(zip(support.python_rows(found), found_weights.tolist(), strict=True))
    state.end_load()
    return found


def test_loaded_changes_are_found_as_applied_ones_whatever_merges_go_on(tmp_path):
    state = support.make(tmp_path, ORDINARY, ("k",), memory=4_000, compact="always")
    twin, rng = Twin(ORDINARY, ("k",)), np.random.default_rng(1)
    for beat in range(40):
        rows, weights = changes_of(rng, 120, 60)
        twin.apply(support.python_rows(rows), weights.tolist())
        if beat % 3:
            loaded(state, rows, weights)
        else:
            state.apply(rows, weights)
        state.work(50)
        assert support.matches(state, KEYS) == twin.probe([(k,) for k in range(-2, 60)])
    assert state.counters()["merges"] > 1
    twin_state = support.reopened(state)
    assert support.content(twin_state, KEYS)
    twin_state.close()


def test_changes_come_out_in_the_order_of_their_run_those_without_a_key_last(tmp_path):
    state = support.make(tmp_path, STRINGS, STRING_KEY)
    rows = support.batch(STRINGS, [(1, "b"), (2, None), (1, "b"), (3, "a"), (4, "c"), (4, "c")])
    weights = np.array([1, 1, 2, 1, 1, -1], np.int32)
    state.load_run(rows, weights, whole=True)
    named = state.loading()
    assert [run["apart"] for run in named] == [False, True]
    first = loaded_rows(state)
    assert sorted(first[:2]) == [((1, "b"), 3), ((3, "a"), 1)]
    assert first[2:] == [((2, None), 1)]
    state.end_load()
    assert state.counters()["rows"] == 2
    twin = support.make(tmp_path, STRINGS, STRING_KEY)
    object.__setattr__(twin.context, "directory", state.context.directory)
    twin.reload(named)
    assert loaded_rows(twin) == first
    twin.end_load()
    keys = support.batch(support.key_schema(STRINGS, STRING_KEY), [("a",), ("b",), ("c",)])
    assert support.content(twin, keys) == support.content(state, keys)


def loaded_rows(state):
    """The changes being loaded."""
    rows, weights = state.loaded()
    return list(zip(support.python_rows(rows), weights.tolist(), strict=True))


def test_a_full_disk_refuses_a_load_and_leaves_no_file_and_no_change():
    disk = SimDisk()
    state = support.make("/t", ORDINARY, ("k",), disk=disk)
    state.apply(*changes_of(np.random.default_rng(1), 100, 60))
    before, files = support.content(state, KEYS), set(disk.names)
    disk.fail_kinds, disk.fail_errno = {"pwritev"}, errno.ENOSPC
    disk.fail_at, disk.fail_for_good = disk.operations + 1, True
    rows, weights = changes_of(np.random.default_rng(2), 100, 60)
    with pytest.raises(OSError, match="simulated"):
        state.load_run(rows, weights, whole=False)
    assert not state.loading()
    assert set(disk.names) == files
    assert support.content(state, KEYS) == before
    disk.fail_at = None
    state.load_run(rows, weights, whole=False)
    state.end_load()
    assert support.content(state, KEYS) != before


def test_a_replay_of_many_loads_keeps_its_runs_within_the_limit(tmp_path):
    state = support.make(tmp_path, ORDINARY, ("k",))
    loads = []
    for beat in range(2 * RUNS_MAX + 9):
        rows, weights = changes_of(np.random.default_rng(beat), 8, 60)
        state.load_run(rows, weights, whole=False)
        loads.append(state.loading())
        state.end_load()
    twin = support.make(tmp_path, ORDINARY, ("k",))
    object.__setattr__(twin.context, "directory", state.context.directory)
    twin._next = state._next
    for named in loads:
        twin.reload(named)
        twin.end_load()
        assert twin.counters()["runs"] <= 2 * RUNS_MAX + 1
    assert support.content(twin, KEYS) == support.content(state, KEYS)
