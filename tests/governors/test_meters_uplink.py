"""The radio: fixed, per byte, and a tail after each burst."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governors.detect import detect
from governors.energy import Provenance
from governors.meters.base import survey
from governors.meters.sampler import Sampler
from governors.meters.settings import MeterSettings, RadioSettings
from governors.meters.uplink import RadioModel
from governors.sysfs import Sysfs
from tests.governors.trees import Tree

SECOND = 1_000_000
LTE = RadioSettings("wwan0", watts_up=0.4, joules_per_byte=2e-6, tail_joules=6.0, tail_s=4.0)
NET = "/sys/class/net/wwan0"


def naive_joules(radio, seconds):
    """Second by second in steps of 10 ms, traffic in the middle of its second."""
    awake_until, joules = -1.0, 0.0
    for at, moved in enumerate(seconds):
        for step in range(100):
            now = at + step / 100
            if moved and step == 50:
                awake_until = now + radio.tail_s
            joules += 0.01 * radio.watts_up
            joules += 0.01 * (radio.tail_joules / radio.tail_s if now < awake_until - 1e-9 else 0)
        joules += moved * radio.joules_per_byte
    return joules


class TestModel:
    @given(st.lists(st.sampled_from([0, 0, 0, 1, 1500, 10**6]), max_size=60))
    def test_joules_are_those_of_a_naive_twin_in_small_steps(self, seconds):
        model = RadioModel(LTE)
        for at, moved in enumerate(seconds):
            model.passed(at * SECOND, (at + 1) * SECOND, moved, up=True)
        assert model.joules == pytest.approx(naive_joules(LTE, seconds), abs=0.02)

    def test_one_burst_costs_one_tail_and_ten_in_a_row_cost_little_more(self):
        one, row, apart = RadioModel(LTE), RadioModel(LTE), RadioModel(LTE)
        for at in range(200):
            for model, sent in ((one, at == 0), (row, at < 10), (apart, at % 20 == 0)):
                model.passed(at * SECOND, (at + 1) * SECOND, 100 if sent else 0, up=False)
        assert one.joules == pytest.approx(6.0, rel=1e-3)
        assert row.joules == pytest.approx(6.0 + 9 * 1.5, rel=1e-3)
        assert apart.joules == pytest.approx(60.0, rel=1e-3)


class TestMeter:
    def tree(self, root):
        tree = Tree()
        tree.add(NET, operstate="up")
        tree.add(f"{NET}/statistics", rx_bytes=500, tx_bytes=1000)
        return tree.plant(root)

    def test_it_counts_what_the_interface_counts_and_is_modelled(self, tmp_path):
        sysfs = self.tree(tmp_path)
        (meter,) = survey(
            sysfs, detect(sysfs), MeterSettings(radio=RadioSettings("wwan0", 0.4, 2e-6))
        ).meters
        assert meter.provenance is Provenance.MODELLED
        sampler = Sampler([meter], cpu_us=lambda: 0.0)
        sampler.sample(0)
        sysfs.write(f"{NET}/statistics/tx_bytes", str(1000 + 5_000_000))
        sampler.sample(10 * SECOND)
        sysfs.write(f"{NET}/operstate", "down")
        sampler.sample(20 * SECOND)
        total = sampler.totals["uplink", "radio-wwan0"]
        assert total.joules == pytest.approx(10.0 + 4.0)
        assert total.gap_us == 0

    def test_an_interface_that_was_unplugged_is_a_gap(self, tmp_path):
        sysfs = self.tree(tmp_path)
        (meter,) = survey(sysfs, detect(sysfs), MeterSettings(radio=LTE)).meters
        sampler = Sampler([meter], cpu_us=lambda: 0.0)
        sampler.sample(0)
        sysfs.write(f"{NET}/statistics/tx_bytes", "0")  # plugged in again: it counts from 0
        sampler.sample(10 * SECOND)
        assert sampler.totals["uplink", "radio-wwan0"].gap_us == 10 * SECOND

    def test_without_a_description_it_says_what_is_missing(self, tmp_path):
        sysfs = Sysfs(tmp_path)
        found = survey(sysfs, detect(sysfs))
        assert any(m.meter == "uplink" and "[meters.radio]" in m.remedy for m in found.missing)
