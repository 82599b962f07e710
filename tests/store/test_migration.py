"""Migration of a store: a made-up next format, interrupted at every operation, and refusals."""

from __future__ import annotations

import json
import random
import zlib

import numpy as np
import pytest

from edged.errors import StoreError
from edged.pages.sealed import PageKey, SealedPage
from edged.platform.disk import SystemDisk
from edged.store import BeatRecord, Store, StoreFull, identity, migration
from tests.store.simdisk import PowerCut, SimDisk

OLD, NEW = identity.FORMAT, identity.FORMAT + 1
MARK = b"of the next format\n"


def mark(file):
    """The next format begins each file with a line of its own."""
    yield MARK
    size = file.size()
    for at in range(0, size, 1000):
        yield file.pread(1000, at)


STEPS = {
    **migration.STEPS,
    NEW: migration.Step(
        "every file says so", lambda path: None if path.startswith("shelf/") else mark, 1.1
    ),
}
PLACES = ("log", "snapshots", "spool", "shelf")


def made(disk=None, path="/store"):
    """A store with beats, a snapshot, pages in log and spool, and a shelf file."""
    with Store.open(path, disk, segment_bytes=16 << 10) as store:
        list(store.recover().records)
        for n in range(1, 9):
            page = SealedPage(PageKey("curve", 0, n), bytes([n]) * 900)
            store.commit(BeatRecord(n, b"facts %d" % n, [np.full(5000, n, "u1")], [page]))
            if n == 5:
                store.shelve(("job", 5), b"{}", {"x": np.arange(9)})
                store.snapshot(n, b"after", {"n": np.arange(500)})
    return store


def contents(disk, path="/store"):
    """The store's files, without spares and the work of a migration."""
    return {
        f"{place}/{name}": read(disk, f"{path}/{place}/{name}")
        for place in PLACES
        for name in disk.listdir(f"{path}/{place}")
        if not name.endswith((".tmp", ".spare"))
    }


def read(disk, path):
    file = disk.open(path)
    data = file.pread(file.size(), 0)
    file.close()
    return data


def migrate(disk, path="/store", tell=lambda text: None):
    epoch = identity.read_identity(disk, f"{path}/identity")
    return migration.migrate(disk, path, epoch, tell, STEPS, NEW)


@pytest.fixture(autouse=True)
def next_version(monkeypatch):
    """This version also reads the next format; a new store gets the present one."""
    monkeypatch.setattr(identity, "READABLE", range(identity.FORMAT_MIN, NEW + 1))


def wanted(before):
    return {k: v if k.startswith("shelf/") else MARK + v for k, v in before.items()}


def test_a_step_rewrites_the_files_that_it_names_and_says_what_it_does():
    disk, told = SimDisk(), []
    made(disk)
    before = contents(disk)
    assert {path.split("/")[0] for path in before} == set(PLACES)
    assert migrate(disk, tell=told.append) == (OLD, NEW)
    assert contents(disk) == wanted(before)
    assert identity.read_format(disk, "/store/identity") == NEW
    assert "every file says so" in told[0] and f"file 1 of {len(before) - 1}" in told[1]
    assert disk.listdir("/store/migration") == [], "no work is left"
    assert migrate(disk, tell=told.append) is None


@pytest.mark.parametrize("power", [False, True], ids=["kill", "power cut"])
def test_a_start_that_dies_at_any_operation_leaves_the_old_or_the_new_store(power):
    disk = SimDisk()
    made(disk)
    for path in disk.names:  # the kernel has written all of it back
        disk.put(path, bytes(disk.content(path)))
    before, epoch = contents(disk), identity.read_identity(disk, "/store/identity")
    whole = disk.after_kill()
    whole.operations = 0
    migrate(whole)
    assert whole.operations > 60
    rng, resumed = random.Random(27), 0
    for cut in range(1, whole.operations + 1):
        dying = disk.after_kill()
        dying.operations, dying.cut_at = 0, cut
        with pytest.raises(PowerCut):
            migrate(dying)
        after = dying.after_power_cut(rng) if power else dying.after_kill()
        if identity.read_format(after, "/store/identity") == OLD:
            assert contents(after) == before, "the version before can go on"
            twin = after.after_kill()
            store = Store.open("/store", twin, segment_bytes=16 << 10)
            assert [r.number for r in store.recover().records] == [6, 7, 8]
            store.close()
        after.operations = 0
        migrate(after)
        resumed += after.operations < whole.operations
        assert contents(after) == wanted(before)
        assert identity.read_identity(after, "/store/identity") == epoch
        assert migrate(after) is None
    assert resumed > whole.operations // 2, "what is whole is not rewritten"


def test_work_of_before_a_downgrade_is_thrown_away():
    disk = SimDisk()
    made(disk)
    whole = disk.after_kill()
    whole.operations = 0
    migrate(whole)
    dying = disk.after_kill()
    dying.operations, dying.cut_at = 0, whole.operations // 2
    with pytest.raises(PowerCut):
        migrate(dying)
    after = dying.after_kill()
    assert any(name.startswith("log/") for name in after.listdir("/store/migration"))
    with Store.open("/store", after, segment_bytes=16 << 10) as store:
        list(store.recover().records)
        store.commit(BeatRecord(9, b"of the old version"))
    before = contents(after)
    migrate(after)
    assert contents(after) == wanted(before)


def test_room_is_checked_before_anything_is_written_and_the_store_stays_usable():
    disk = SimDisk()
    made(disk)
    used = disk.capacity - disk.free("/")
    disk.capacity = used + (1 << 20) + 10_000
    before = contents(disk)
    with pytest.raises(StoreFull, match=r"needs \d+ bytes beside the old files, \d+ are free"):
        migrate(disk)
    assert contents(disk) == before
    assert identity.read_format(disk, "/store/identity") == OLD
    needs = migration.pending(disk, "/store", OLD, STEPS, NEW)
    assert needs.bytes > needs.free and len(needs.files) == len(before) - 1
    disk.capacity += needs.bytes
    assert migrate(disk) == (OLD, NEW)


def test_the_first_format_becomes_this_one_and_goes_on(tmp_path):
    made(path=tmp_path)
    disk, file = SystemDisk(), tmp_path / "identity"
    epoch = identity.read_identity(disk, str(file))
    identity.write_identity(disk, str(file), epoch, 1)
    told = []
    with Store.open(tmp_path, tell=told.append) as store:
        assert store.migrated == (1, identity.FORMAT)
        assert store.device_epoch == epoch
        assert [r.number for r in store.recover().records] == [6, 7, 8]
    assert told and json.loads(file.read_text())["format"] == identity.FORMAT
    with Store.open(tmp_path) as store:
        assert store.migrated is None


@pytest.mark.parametrize(
    "version, says",
    [(99, r"written by edged 9.9; .* install the edged that wrote it.*edged stop --drain"),
     (0, "start a version in between first"), ("x", "has format x")],
)  # fmt: skip
def test_another_format_is_refused_with_what_to_do(tmp_path, version, says):
    made(path=tmp_path)
    file = tmp_path / "identity"
    document = json.loads(file.read_text())
    crc = zlib.crc32(f"{version} {document['epoch']}".encode())
    file.write_text(json.dumps({**document, "format": version, "crc": crc, "edged": "9.9"}))
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(StoreError, match=says):
        Store.open(tmp_path)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
