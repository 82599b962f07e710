"""RAPL: counters that wrap, restart, or are not readable."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governors.detect import detect
from governors.meters import rails
from governors.meters.base import survey
from governors.meters.sampler import Sampler
from governors.sysfs import Sysfs
from tests.governors.faults import nobody, open_tree
from tests.governors.trees import Tree, plant, rapl

SECOND = 1_000_000
RANGE_UJ = 262_143_328_850
PACKAGE = "/sys/class/powercap/intel-rapl:0"


def rapl_of(sysfs):
    return next(m for m in survey(sysfs, detect(sysfs)).meters if m.name == "rapl")


class TestCounting:
    @given(
        start=st.integers(0, RANGE_UJ - 1),
        steps=st.lists(
            st.tuples(st.integers(SECOND, 200 * SECOND), st.floats(1e-3, 999.0)), max_size=20
        ),
    )
    def test_joules_are_those_that_were_used_however_often_the_counter_wraps(self, start, steps):
        class Counter(Sysfs):
            def __init__(self):
                super().__init__("/nowhere")
                self.uj = start

            def list(self, path):
                return ["intel-rapl:0"]

            def read(self, path):
                name = path.rpartition("/")[2]
                if name == "name":
                    return "package-0"
                return str(RANGE_UJ if name == "max_energy_range_uj" else self.uj % RANGE_UJ)

        sysfs = Counter()
        meter = rapl_of(sysfs)
        meter.read(0)
        now_us = used_uj = 0
        for step_us, watts in steps:
            now_us += step_us
            used_uj += int(watts * step_us)
            sysfs.uj = start + used_uj
            (reading,) = meter.read(now_us)
            assert reading.problem == ""
            assert reading.joules == pytest.approx(used_uj / 1e6)

    def test_it_is_due_before_a_wrap_could_be_missed(self, tmp_path):
        tree = Tree()
        rapl(tree, "0", "package-0", 5)
        tree.files["/sys/devices/virtual/powercap/intel-rapl/intel-rapl:0/max_energy_range_uj"] = (
            "900000000\n"  # 0.9 s at 1000 W
        )
        sysfs = tree.plant(tmp_path)
        meter = rapl_of(sysfs)
        assert meter.interval_us <= 450_000
        sampler, now_us, reads = Sampler([meter], cpu_us=lambda: 0.0), 0, []
        while now_us < 60 * SECOND:
            now_us = sampler.due_us(now_us)
            sysfs.write(f"{PACKAGE}/energy_uj", str(5 + now_us))  # a watt
            sampler.sample(now_us)
            reads.append(now_us)
        assert max(b - a for a, b in pairwise(reads)) < 900_000
        assert sampler.totals["rapl", "package-0"].gap_us == 0

    def test_a_counter_that_began_anew_is_no_wrap(self, tmp_path):
        """Suspended to memory: the counter starts at 0, and a wrap would be 250 kJ in a second."""
        sysfs = plant(tmp_path, "x86-amd-pstate")
        sampler = Sampler([rapl_of(sysfs)], cpu_us=lambda: 0.0)
        for second, energy_uj in enumerate((10**9, 10**9 + 10**7, 7, 2 * 10**6 + 7)):
            sysfs.write(f"{PACKAGE}/energy_uj", str(energy_uj))
            sampler.sample(2 * second * SECOND)
        total = sampler.totals["rapl", "package-0"]
        assert (total.joules, total.gap_us) == (12.0, 2 * SECOND)

    def test_a_counter_that_began_anew_is_told_after_a_minute_too(self, tmp_path):
        """A wrap would be 252 kJ: 4.2 kW, which no package draws."""
        sysfs = plant(tmp_path, "x86-amd-pstate")
        sysfs.write(f"{PACKAGE}/energy_uj", str(10**10))
        meter = rapl_of(sysfs)
        meter.read(0)
        sysfs.write(f"{PACKAGE}/energy_uj", "7")
        assert "restarted" in meter.read(60 * SECOND)[0].problem

    def test_a_package_that_stands_still_is_frozen_and_a_part_of_it_may_be_gated(self, tmp_path):
        sysfs = plant(tmp_path, "x86-amd-pstate")
        sampler = Sampler([rapl_of(sysfs)], cpu_us=lambda: 0.0)
        for second, energy_uj in enumerate((10**6, 3 * 10**6, 3 * 10**6, 3 * 10**6, 5 * 10**6)):
            sysfs.write(f"{PACKAGE}/energy_uj", str(energy_uj))
            sampler.sample(2 * second * SECOND)
            if second == 3:
                assert "has not changed for 2.0 s" in sampler.problems()["rapl", "package-0"]
        package, core = (sampler.totals["rapl", n] for n in ("package-0", "package-0/core"))
        assert (package.joules, package.gap_us) == (4.0, 4 * SECOND), "never a zero"
        assert (core.joules, core.gap_us) == (0.0, 0)
        assert not sampler.problems()

    def test_without_its_range_a_counter_that_fell_is_a_gap(self, tmp_path):
        sysfs = plant(tmp_path, "x86-amd-pstate")
        (tmp_path / sysfs.resolve(f"{PACKAGE}/max_energy_range_uj")[1:]).unlink()
        sysfs.write(f"{PACKAGE}/energy_uj", str(RANGE_UJ - 10))
        meter = rapl_of(sysfs)
        meter.read(0)
        sysfs.write(f"{PACKAGE}/energy_uj", "10")
        reading = meter.read(SECOND)[0]
        assert "range is unreadable" in reading.problem


class TestRails:
    def test_parts_are_never_added_to_their_package_nor_that_to_psys(self, tmp_path):
        meter = rapl_of(plant(tmp_path, "x86-intel-pstate"))
        assert {r.name: r.part_of for r in meter.rails} == {
            "package-0": "psys",
            "package-0/core": "package-0",
            "package-0/uncore": "package-0",
            "psys": None,
        }

    def test_a_server_is_the_sum_of_its_packages_and_their_memory(self, tmp_path):
        tree = Tree()
        for package in (0, 1):
            rapl(tree, f"{package}", f"package-{package}", 1_000_000)
            rapl(tree, f"{package}:0", "core", 500_000)
            rapl(tree, f"{package}:1", "dram", 100_000)
        (whole,) = rails.wholes([rapl_of(tree.plant(tmp_path))])
        names = [name for _, name in whole.keys]
        assert names == ["package-0", "package-0/dram", "package-1", "package-1/dram"]

    def test_the_same_package_behind_mmio_is_read_once(self, tmp_path):
        tree = Tree()
        rapl(tree, "0", "package-0", 1_000_000)
        tree.add(
            "/sys/class/powercap/intel-rapl-mmio:0",
            name="package-0", energy_uj=999, max_energy_range_uj=RANGE_UJ,
        )  # fmt: skip
        meter = rapl_of(tree.plant(tmp_path))
        assert [r.name for r in meter.rails] == ["package-0"]


class TestRights:
    def test_without_root_it_says_what_is_missing_and_the_rule_that_gives_it(self):
        with open_tree() as root:
            sysfs = plant(root, "x86-amd-pstate")
            with nobody():
                found = survey(sysfs, detect(sysfs))
        assert not any(m.name == "rapl" for m in found.meters)
        missing = [m for m in found.missing if m.meter == "rapl"]
        assert [m.what.split(":")[0] for m in missing] == ["package-0", "package-0/core"]
        assert 'SUBSYSTEM=="powercap", KERNEL=="intel-rapl*"' in missing[0].remedy
        assert "chmod g+r /sys/%p/energy_uj" in missing[0].remedy
        assert "/etc/udev/rules.d/" in str(missing[0])

    def test_what_may_be_read_is_read(self):
        with open_tree() as root:
            sysfs = plant(root, "x86-intel-pstate")
            (root / sysfs.resolve(f"{PACKAGE}/energy_uj")[1:]).chmod(0o444)
            with nobody():
                found = survey(sysfs, detect(sysfs))
        (meter,) = [m for m in found.meters if m.name == "rapl"]
        assert [(r.name, r.part_of) for r in meter.rails] == [("package-0", None)]
        (whole, *_) = rails.wholes([meter])
        assert whole.name == "package-0"

    def test_rights_that_are_taken_away_while_it_runs_are_a_gap(self):
        with open_tree() as root:
            sysfs = plant(root, "x86-amd-pstate")
            meter = rapl_of(sysfs)
            with nobody():
                readings = meter.read(SECOND)
        assert [r.joules for r in readings] == [None, None]
        assert "Permission denied" in readings[0].problem
