"""Files of runs: damage is named, a full disk stops a merge and nothing else, orphans go."""

import errno

import numpy as np
import pytest

from edged.data.columns import Batch, Column
from edged.errors import StoreCorrupt
from edged.platform.disk import SystemDisk
from edged.platform.mapped import let_go, mapped_bytes
from tests.store.simdisk import SimDisk
from tests.tables import support
from tests.tables.test_members import ORDINARY, changes_of

KEYS = support.batch(support.key_schema(ORDINARY, ("k",)), [(k,) for k in range(-2, 60)])


def filled(disk, folder, beats=6, memory=20_000, compact="auto", threads=1):
    """A state with files, and what a probe of it finds."""
    state = support.make(folder, ORDINARY, ("k",), "runs", disk, threads, memory, compact)
    rng = np.random.default_rng(3)
    for _ in range(beats):
        state.apply(*changes_of(rng, 500, 400))
    return state, support.content(state, KEYS)


def names(disk, state):
    return disk.listdir(state.context.directory)


@pytest.mark.parametrize("way", ["a bit", "cut", "gone", "unreadable"])
def test_a_damaged_run_is_named_with_what_it_takes_along(way):
    disk = SimDisk()
    state, _ = filled(disk, "/t")
    saved = state.save()
    state.sync()
    name = names(disk, state)[0]
    path = f"{state.context.directory}/{name}"
    content = disk.names[path].current
    if way == "a bit":
        content[len(content) // 2] ^= 4
    elif way == "cut":
        del content[-8:]
    elif way == "gone":
        disk.unlink(path)
    else:
        disk.bad_blocks.add((path, 0))
    fresh = type(state)(state.schema, state.key, state.context)
    with pytest.raises(StoreCorrupt, match=rf"{path}: .*; \d+ rows of the table go with it"):
        fresh.load(saved)


def test_a_merge_without_room_does_not_start_and_goes_on_when_there_is_room():
    disk = SimDisk()
    state, wanted = filled(disk, "/t", compact="never")
    before = names(disk, state)
    disk.capacity = sum(len(i.current) for i in disk.names.values()) + 100
    twin = support.make("/t", ORDINARY, ("k",), disk=disk, memory=20_000, compact="always")
    object.__setattr__(twin.context, "directory", state.context.directory)
    twin.load(state.save())
    assert not twin.work(1 << 30)
    assert twin.counters()["merges_without_room"] > 0
    assert names(disk, twin) == before
    assert support.content(twin, KEYS) == wanted
    disk.capacity = 1 << 40
    while twin.work(1 << 30):
        pass
    assert twin.counters()["merges"] > 0
    assert support.content(twin, KEYS) == wanted


def test_a_disk_that_fills_up_within_a_merge_leaves_the_inputs_and_no_file():
    disk = SimDisk()
    state, wanted = filled(disk, "/t")
    before = names(disk, state)
    for _ in range(20):
        support.content(state, KEYS)
    assert state.work(300)
    disk.fail_kinds, disk.fail_errno = {"pwritev"}, errno.ENOSPC
    disk.fail_at, disk.fail_for_good = disk.operations + 1, True
    while state.work(300):
        pass
    assert state.counters()["merges_without_room"] == 1
    assert names(disk, state) == before
    disk.fail_at = None
    assert support.content(state, KEYS) == wanted
    while state.work(300):
        pass
    assert support.content(state, KEYS) == wanted


def test_changes_are_refused_while_memory_is_full_and_the_disk_too_and_taken_after():
    disk = SimDisk()
    state, wanted = filled(disk, "/t", memory=1 << 16)
    disk.fail_kinds, disk.fail_errno = {"pwritev"}, errno.ENOSPC
    disk.fail_at, disk.fail_for_good = 1, True
    rng = np.random.default_rng(9)
    rows, weights = changes_of(rng, 3_000, 10_000)
    with pytest.raises(OSError, match="simulated"):
        for _ in range(9):
            before = support.content(state, KEYS)
            state.apply(rows, weights)
    assert support.content(state, KEYS) == before
    disk.fail_at = None
    state.apply(rows, weights)
    assert support.content(state, KEYS) != wanted


def test_files_that_no_state_names_are_deleted_and_those_of_a_saved_state_stay():
    disk = SimDisk()
    state, wanted = filled(disk, "/t", compact="always")
    saved = state.save()
    state.sync()
    first = names(disk, state)
    disk.open(f"{state.context.directory}/{7:016d}.run", create=True).close()
    state.keep([saved])
    assert names(disk, state) == first
    rng = np.random.default_rng(5)
    for _ in range(8):
        state.apply(*changes_of(rng, 500, 400))
        support.content(state, KEYS)
        while state.work(1 << 30):
            pass
    state.keep([saved])
    assert set(first) < set(names(disk, state))
    twin = type(state)(state.schema, state.key, state.context)
    twin.load(saved)
    assert support.content(twin, KEYS) == wanted
    state.keep([])
    assert not set(first) & set(names(disk, state))


def test_equal_hashes_of_different_keys_differ_by_their_values(tmp_path, monkeypatch):
    from edged.tables import runs

    def coarse(*args, **more):
        hashes = real(*args, **more)
        hashes &= np.uint64(1 << 63)
        return hashes

    real = runs.hash_columns
    monkeypatch.setattr(runs, "hash_columns", coarse)
    schema, key = support.SHAPES["string"]
    state = support.make(tmp_path, schema, key, memory=3_000)
    words = ["", "a", "b", "ab", "abcdefghi", "abcdefghj", "a\0"]
    for start in range(20):
        rows = [(start * 7 + i, word) for i, word in enumerate(words)]
        state.apply(support.batch(schema, rows), np.ones(len(rows), np.int32))
    keys = support.batch(support.key_schema(schema, key), [(word,) for word in words])
    found = state.probe(keys)
    assert np.bincount(found.probe).tolist() == [20] * len(words)
    assert (found.rows["v"].values % 7 == found.probe).all()


def test_a_state_of_no_rows_is_saved_and_loaded(tmp_path):
    state = support.make(tmp_path, ORDINARY, ("k",))
    state.apply(Batch(ORDINARY, 0, (Column(np.empty(0, np.int64)), Column(np.empty(0)))),
                np.empty(0, np.int32))  # fmt: skip
    state = support.reopened(state)
    assert support.content(state, KEYS)[0] == b""
    assert state.disk_bytes() == state.memory_bytes() == 0


def test_pages_of_mapped_files_go_where_they_are_more_than_the_memory_allowed(tmp_path):
    state, wanted = filled(None, tmp_path, beats=300, memory=100_000, compact="never")
    assert state.counters()["files"] > 0
    state._mapped_before = -(1 << 40)
    assert support.content(state, KEYS) == wanted
    state._mapped_before = mapped_bytes() + (1 << 40)
    assert support.content(state, KEYS) == wanted


def test_a_map_is_let_go_and_read_again(tmp_path):
    file = SystemDisk().open(f"{tmp_path}/f", create=True)
    file.pwritev([np.arange(1 << 20)], 0)
    mapped = file.map(8 << 20)
    file.close()
    before = mapped_bytes()
    assert mapped.view(np.int64).sum() == (1 << 20) * ((1 << 20) - 1) // 2
    assert mapped_bytes() - before > 4 << 20
    let_go(mapped.view(np.int64)[5:])
    assert mapped_bytes() - before < 1 << 20
    assert mapped.view(np.int64)[-1] == (1 << 20) - 1
