"""Time at each clock: the kernel's own tables, garbage in them, and what is only seen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governors.actuators.base import Knob
from governors.actuators.residency import Residency, parse_time_in_state, parse_trans_stat
from governors.sysfs import Sysfs

TRANS_STAT = """\
     From  :   To
           : 306000000 408000000 624750000   time(ms)
* 306000000:         0         0         3     43420
  408000000:         2         0         0       150
  624750000:         1         2         0      1010
Total transition : 8
"""
"""As of Documentation/ABI/testing/sysfs-class-devfreq, with the clocks of an Orin's GPU."""
STATES = "115200 25\n729600 100\n1344000 3\n"


def knob(path, unit_hz=1000, current=""):
    return Knob("clock", "cpu", unit_hz, "", f"{path}/max_freq", current, (), 1, 10**10)


def tree(path, **files):
    for name, text in files.items():
        place = path / "node" / name.replace("__", "/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return Sysfs(path)


def test_the_kernels_tables_are_read_as_it_documents_them():
    assert parse_trans_stat(TRANS_STAT) == {
        306_000_000: 43_420_000, 408_000_000: 150_000, 624_750_000: 1_010_000
    }  # fmt: skip
    assert parse_time_in_state(STATES) == {
        115_200_000: 250_000, 729_600_000: 1_000_000, 1_344_000_000: 30_000
    }  # fmt: skip


@given(text=st.text(st.sampled_from("0123456789 *:\n-x"), max_size=80))
def test_garbage_in_a_table_neither_raises_nor_counts_backwards(text):
    for parse in (parse_time_in_state, parse_trans_stat):
        assert all(hz >= 0 and us >= 0 for hz, us in parse(text).items())


@pytest.mark.parametrize("name", ["stats__time_in_state", "trans_stat"])
def test_only_what_came_since_it_was_made_counts_and_a_restart_of_the_counters_loses_nothing_else(
    tmp_path, name
):
    def text(low, high):
        if name == "trans_stat":
            return f": to\n 1000000: 0 {10 * low}\n*2000000: 0 {10 * high}\nTotal : 1\n"
        return f"1000 {low}\n2000 {high}\n"

    sysfs = tree(tmp_path, max_freq="2000", **{name: text(700, 50)})
    times = Residency(sysfs, [knob("/node")], 0)
    times.read(1)
    assert times.times() == {"clock": ("counted", {})}
    tree(tmp_path, **{name: text(703, 150)})
    times.read(2)
    tree(tmp_path, **{name: text(1, 0)})
    times.read(3)
    tree(tmp_path, **{name: text(2, 8)})
    times.read(4)
    assert times.times()["clock"] == ("counted", {1_000_000: 40_000, 2_000_000: 1_080_000})


def test_without_a_table_a_clock_stands_for_the_time_since_it_was_last_looked_at(tmp_path):
    sysfs = tree(tmp_path, max_freq="2000", cur_freq="1000")
    times = Residency(sysfs, [knob("/node", current="/node/cur_freq")], 0)
    times.read(2_000)
    tree(tmp_path, cur_freq="2000")
    times.read(5_000)
    tree(tmp_path, cur_freq="garbled")
    times.read(9_000)
    assert times.times()["clock"] == ("seen", {1_000_000: 2_000, 2_000_000: 3_000})
