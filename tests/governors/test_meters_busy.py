"""Busy cores from /proc/stat."""

import os
import time

import pytest

from governors.meters.busy import BusyCores
from governors.sysfs import Sysfs

SECOND = 1_000_000


def stat(root, *ticks):
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc/stat").write_text(f"cpu  {' '.join(map(str, ticks))}\ncpu0 1 2 3\n")


def test_all_but_idle_and_iowait_is_busy_and_guests_are_not_counted_twice(tmp_path):
    stat(tmp_path, 100, 0, 50, 9000, 10, 1, 2, 3, 70, 0)
    busy = BusyCores(Sysfs(tmp_path), ticks_per_s=100)
    assert busy.since_last(0) is None
    stat(tmp_path, 300, 10, 90, 9900, 500, 2, 4, 6, 170, 0)
    # 200 user + 10 nice + 40 system + 1 irq + 2 softirq + 3 steal = 256 ticks in 2 s
    assert busy.since_last(2 * SECOND) == pytest.approx(1.28)


@pytest.mark.parametrize(
    "text", ["", "cpu", "cpu 1 2 3", "cpu a b c d e f g h", "intr 1 2 3 4 5 6 7 8"]
)
def test_what_is_garbled_or_missing_is_not_known(tmp_path, text):
    busy = BusyCores(Sysfs(tmp_path))
    assert busy.since_last(0) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text(text)
    assert busy.since_last(SECOND) is None
    stat(tmp_path, 1, 0, 0, 0, 0, 0, 0, 0)
    assert busy.since_last(2 * SECOND) is None


def test_this_machine_is_at_least_as_busy_as_this_test():
    busy = BusyCores(Sysfs())
    began_us, began_cpu = time.monotonic_ns() // 1000, time.process_time()
    busy.since_last(began_us)
    while time.process_time() < began_cpu + 0.1:
        pass
    now_us = time.monotonic_ns() // 1000
    cores = busy.since_last(now_us)
    assert cores >= 0.1 / ((now_us - began_us) / 1e6) - 0.25
    assert cores <= os.cpu_count() + 0.25
