"""The overlay behaves as a disk does, and the files below it stay as they are."""

import errno
import random

import pytest

from edged.platform.disk import SystemDisk
from edged.platform.overlay_disk import OverlayDisk
from edged.store import BeatRecord, Store

NAMES = ("a", "b", "c")


def step(disk, place, dice):
    """One operation with the dice's arguments; what it returns, or its error number."""
    path, other = f"{place}/{dice.choice(NAMES)}", f"{place}/{dice.choice(NAMES)}"
    kind, at, size = dice.randrange(7), dice.randrange(20_000), dice.randrange(9000)
    data = dice.randbytes(size)
    try:
        if kind == 0:
            disk.unlink(path)
        elif kind == 1 and path != other:
            disk.rename(path, other)
        file = disk.open(path, create=kind == 2)
        if kind in (2, 3):
            file.pwritev([data[: size // 2], data[size // 2 :]], at)
        elif kind == 4:
            file.truncate(at)
        elif kind == 5:
            file.allocate(at + 1)
        found = file.pread(size, at), file.size(), disk.listdir(place), disk.exists(other)
        file.close()
    except OSError as problem:
        return problem.errno
    return found


def content(place):
    return {p.name: p.read_bytes() for p in place.iterdir()}


@pytest.mark.parametrize("seed", range(20))
def test_it_answers_as_the_real_disk_does_and_changes_nothing(tmp_path, seed):
    below, real = tmp_path / "below", tmp_path / "real"
    for place in (below, real):
        place.mkdir()
        (place / "a").write_bytes(bytes(range(256)) * 40)
        (place / "b").write_bytes(b"short")
        (place / "a").chmod(0o400 if place == below else 0o600)
    before, over, disk = content(below), OverlayDisk(), SystemDisk()
    for number in range(60):
        given = random.Random(f"{seed} {number}"), random.Random(f"{seed} {number}")
        assert step(over, str(below), given[0]) == step(disk, str(real), given[1])
    assert content(below) == before


def test_a_symbolic_link_is_refused(tmp_path):
    (tmp_path / "link").symlink_to("/etc/hostname")
    with pytest.raises(OSError) as refused:
        OverlayDisk().open(f"{tmp_path}/link")
    assert refused.value.errno == errno.ELOOP


def test_a_store_opens_and_goes_on_over_one_that_is_not_touched(tmp_path):
    with Store.open(tmp_path / "s", segment_bytes=1 << 16) as store:
        for beat in range(1, 4):
            store.commit(BeatRecord(beat, b"facts", [], []))
    before = {p: p.read_bytes() for p in (tmp_path / "s").rglob("*") if p.is_file()}
    with Store.open(tmp_path / "s", OverlayDisk(), segment_bytes=1 << 16) as store:
        assert [r.number for r in store.recover().records] == [1, 2, 3]
        store.commit(BeatRecord(4, b"facts", [], []))
        store.snapshot(4, b"state", {})
    assert before == {p: p.read_bytes() for p in (tmp_path / "s").rglob("*") if p.is_file()}
    assert list((tmp_path / "s/snapshots").iterdir()) == []
