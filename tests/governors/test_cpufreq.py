"""CPU clocks: what is found on each board, and how limits are written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governors.actuators.base import ClockLimits, Knob, discover, ordered
from governors.actuators.cpufreq import cpu_list
from governors.detect import detect
from tests.governors import trees
from tests.governors.trees import BOARDS, CPU, plant

EXPECTED = {
    "orin-nano-r36": {"cpu.policy0": range(4), "cpu.policy4": range(4, 6)},
    "orin-nx-r35": {"cpu.policy0": range(4), "cpu.policy4": range(4, 8)},
    "agx-orin-r35": {f"cpu.policy{n}": range(n, n + 4) for n in (0, 4, 8)},
    "agx-orin-r39": {f"cpu.policy{n}": range(n, n + 4) for n in (0, 4, 8)},
    "xavier-nx-r35": {f"cpu.policy{n}": range(n, n + 2) for n in (0, 2, 4)},
    "xavier-nx-r32": {f"cpu.policy{n}": range(n, n + 2) for n in (0, 2, 4)},
    "jetson-nano-r32": {"cpu.policy0": range(4)},
    "thor-r38": {"cpu.policy0": range(14)},
    "raspberry-pi-5": {"cpu.policy0": range(4)},
    "x86-intel-pstate": {f"cpu.policy{n}": range(n, n + 1) for n in range(4)},
    "x86-amd-pstate": {f"cpu.policy{n}": range(n, n + 1) for n in range(4)},
    "x86-acpi-cpufreq": {f"cpu.policy{n}": range(n, n + 1) for n in range(2)},
    "no-control": {},
}


def knobs(sysfs, kind="cpu"):
    return {knob.name: knob for knob in discover(sysfs, detect(sysfs)) if knob.kind == kind}


class TestDiscovery:
    @pytest.mark.parametrize("board", BOARDS)
    def test_every_board_has_the_clocks_of_its_data_sheet(self, tmp_path, board):
        found = knobs(plant(tmp_path, board))
        assert {name: knob.cores for name, knob in found.items()} == {
            name: tuple(cores) for name, cores in EXPECTED[board].items()
        }

    def test_a_table_is_in_hertz_and_ascends(self, tmp_path):
        knob = knobs(plant(tmp_path, "orin-nano-r36"))["cpu.policy4"]
        assert knob.table_hz == tuple(khz * 1000 for khz in trees.ORIN_NANO_KHZ)
        assert (knob.floor_hz, knob.ceiling_hz) == (115_200_000, 1_728_000_000)

    def test_pstate_drivers_are_continuous_within_the_hardwares_range(self, tmp_path):
        knob = knobs(plant(tmp_path, "x86-intel-pstate"))["cpu.policy1"]
        assert (knob.table_hz, knob.floor_hz, knob.ceiling_hz) == ((), 400_000_000, 4_200_000_000)

    def test_policies_of_one_tegra194_cluster_are_one_knob(self, tmp_path):
        knob = knobs(plant(tmp_path, "xavier-nx-r32"))["cpu.policy2"]
        assert set(knob.files().values()) == {
            f"{CPU}/cpufreq/policy{n}/scaling_{part}_freq"
            for n in (2, 3)
            for part in ("min", "max")
        }

    @pytest.mark.parametrize("name", ["scaling_min_freq", "scaling_max_freq", "cpuinfo_max_freq"])
    @pytest.mark.parametrize("content", [None, "", "<unknown>", "12 34", "\xff\xfe"])
    def test_a_policy_with_a_missing_or_garbled_file_is_left_out(self, tmp_path, name, content):
        sysfs = plant(tmp_path, "orin-nano-r36")
        place = tmp_path / f"{CPU[1:]}/cpufreq/policy4/{name}"
        place.unlink()
        if content is not None:
            place.write_text(content, "latin-1")
        assert list(knobs(sysfs)) == ["cpu.policy0"]

    def test_garbled_entries_of_a_table_are_left_out(self, tmp_path):
        sysfs = plant(tmp_path, "jetson-nano-r32")
        place = tmp_path / f"{CPU[1:]}/cpufreq/policy0/scaling_available_frequencies"
        place.write_text("102000 x 204000 -5 99999999999 1479000\n")
        assert knobs(sysfs)["cpu.policy0"].table_hz == (102_000_000, 204_000_000, 1_479_000_000)

    def test_the_real_clock_is_never_read_since_that_takes_500_us(self, tmp_path):
        sysfs = plant(tmp_path, "xavier-nx-r35")
        assert all("cpuinfo_cur_freq" not in k.current_path for k in knobs(sysfs).values())

    @pytest.mark.parametrize(
        ("text", "cores"),
        [("0-3", (0, 1, 2, 3)), ("4 5", (4, 5)), ("0-1,4", (0, 1, 4)), ("", ()), ("x 2", (2,))],
    )
    def test_core_lists_are_read_in_all_of_the_kernels_ways(self, text, cores):
        assert cpu_list(text) == cores


TABLE = tuple(khz * 1000 for khz in trees.ORIN_NANO_KHZ)


def knob(table=TABLE, unit=1000):
    return Knob("k", "cpu", unit, "/min", "/max", "/cur", table, TABLE[0], TABLE[-1])


@st.composite
def ranges(draw):
    low, high = sorted(draw(st.tuples(*[st.integers(50_000_000, 2_000_000_000)] * 2)))
    return ClockLimits(low, high)


class TestSnapping:
    @given(st.integers(0, 3_000_000_000), ranges())
    def test_the_nearest_entry_inside_of_the_limits_is_taken(self, hz, within):
        inside = [entry for entry in TABLE if within.min_hz <= entry <= within.max_hz]
        got = knob().snap(hz, within)
        if inside:
            target = min(max(hz, within.min_hz), within.max_hz)
            assert got in inside
            assert abs(got - target) == min(abs(entry - target) for entry in inside)

    @given(st.integers(0, 3_000_000_000), ranges())
    def test_without_a_table_it_is_the_clock_itself_in_the_files_unit(self, hz, within):
        got = knob(table=()).snap(hz, within)
        assert got % 1000 == 0
        assert TABLE[0] <= got <= TABLE[-1]

    @given(st.sampled_from(TABLE).map(lambda hz: hz // 1000) | st.integers(0, 3_000_000))
    def test_only_table_values_are_permitted(self, khz):
        assert knob().permits(str(khz)) == (khz * 1000 in TABLE)

    @given(st.text(max_size=14))
    def test_no_other_text_is_permitted(self, text):
        assert not knob().permits(text) or text in {str(hz // 1000) for hz in TABLE}

    @pytest.mark.parametrize(
        "text", ["-1", "+1", " 115200", "115200\n", "1e5", "١٢٣", "", "0x1", "0115200"]
    )
    def test_what_is_no_plain_decimal_is_not_permitted(self, text):
        assert not knob().permits(text)
        assert not knob(table=()).permits(text)


class TestOrder:
    @given(ranges(), ranges())
    def test_the_minimum_is_never_above_the_maximum_at_any_write(self, now, wanted):
        state = {"min": str(now.min_hz), "max": str(now.max_hz)}
        target = {"min": str(wanted.min_hz), "max": str(wanted.max_hz)}
        order = ordered(target, state)
        assert sorted(order) == ["max", "min"]
        for part in order:
            state[part] = target[part]
            assert int(state["min"]) <= int(state["max"])

    def test_all_policies_of_a_clock_keep_the_order(self):
        now = {"min": "1", "max": "2", "min1": "1", "max1": "2"}
        order = ordered({"min": "5", "max": "5", "min1": "5", "max1": "5"}, now)
        assert order.index("max") < order.index("min")
        assert order.index("max1") < order.index("min1")
