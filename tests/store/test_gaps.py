"""Gaps are durable, merged, heard once, and survive damage of their file as an empty list."""

from edged.store import Store
from edged.store.gaps import DAMAGED, DROPPED, GAPS_KEPT, Gap, GapLog
from tests.store.simdisk import SimDisk


def log_of(disk: SimDisk) -> GapLog:
    return GapLog(disk, "/store/gaps", 7)


def test_a_recorded_gap_survives_a_power_cut_and_is_not_recorded_twice():
    disk = SimDisk()
    disk.mkdir("/store")
    gap = Gap(DAMAGED, "curve", 5, 7, partition=2, first_us=10, last_us=20, rows=3, detail="x")
    assert log_of(disk).add([gap]) == [gap]
    again = log_of(disk.after_kill())
    assert again.newest == [gap] and (again.count, again.pages, again.rows) == (1, 3, 3)
    assert again.add([gap]) == [] and again.status()["newest"] == [gap.to_json()]


def test_neighbouring_ranges_of_one_origin_become_one_and_others_stay_apart():
    disk = SimDisk()
    disk.mkdir("/store")
    log = log_of(disk)
    for first in (1, 2, 3, 9):
        log.add([Gap(DROPPED, "curve", first, first, partition=0, rows=10)])
    log.add([Gap(DROPPED, "curve", 2, 2, partition=1), Gap(DAMAGED, "curve", 4, 4, partition=0)])
    found = {(g.reason, g.partition, g.first, g.last) for g in log.newest}
    assert found == {
        (DROPPED, 0, 1, 3), (DROPPED, 0, 9, 9), (DROPPED, 1, 2, 2), (DAMAGED, 0, 4, 4),
    }  # fmt: skip
    assert (log.count, log.pages, log.rows) == (4, 6, 40)


def test_what_was_found_before_a_listener_came_is_told_to_it_and_only_once():
    disk = SimDisk()
    disk.mkdir("/store")
    log, heard = log_of(disk), list[Gap]()
    first = Gap(DAMAGED, "power", 1, 4, job="j", producer="p7")
    log.add([first])
    log.listen(heard.append)
    log.add([first, Gap(DAMAGED, "power", 9, 9, job="j", producer="p7")])
    assert [(g.first, g.last) for g in heard] == [(1, 4), (9, 9)]
    assert "power of job j from p7: batches 1 to 4 damaged" in heard[0].text()


def test_the_newest_are_kept_and_all_are_counted():
    disk = SimDisk()
    disk.mkdir("/store")
    log = log_of(disk)
    log.add([Gap(DROPPED, "s", 2 * i, 2 * i, partition=0) for i in range(GAPS_KEPT + 10)])
    assert log.count == log_of(disk).count == GAPS_KEPT + 10
    assert len(log_of(disk).newest) == GAPS_KEPT


def test_a_damaged_file_of_gaps_stops_nothing():
    disk = SimDisk()
    with Store.open("/store", disk) as store:
        store.gaps.add([Gap(DAMAGED, "curve", 1, 1, partition=0)])
    whole = bytes(disk.content("/store/gaps"))
    for at in range(0, len(whole), 7):
        twin = disk.after_kill()
        twin.content("/store/gaps")[at] ^= 4
        with Store.open("/store", twin) as store:
            assert [found.kind for found in store.salvaged] == ["gaps"]
            assert store.gaps.count == 0
