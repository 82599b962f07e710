"""GPU and memory clocks: what is found on each board, and that a sleeping GPU is left asleep."""

import pytest

from governors.actuators.base import ClockLimits, discover, switches
from governors.actuators.ownership import Ownership
from governors.actuators.writers import Direct
from governors.detect import detect
from tests.governors.trees import BOARDS, Kernel, plant

EXPECTED = {
    "orin-nano-r36": ("bus@0/17000000.gpu/devfreq/17000000.gpu", 306_000_000, 1_020_000_000),
    "orin-nx-r35": ("17000000.ga10b/devfreq/17000000.ga10b", 306_000_000, 918_000_000),
    "agx-orin-r35": ("17000000.ga10b/devfreq/17000000.ga10b", 114_750_000, 1_300_500_000),
    "agx-orin-r39": ("17000000.gpu/devfreq/17000000.gpu", 114_750_000, 1_300_500_000),
    "xavier-nx-r35": ("17000000.gv11b/devfreq/17000000.gv11b", 114_750_000, 1_109_250_000),
    "jetson-nano-r32": ("57000000.gpu/devfreq/57000000.gpu", 76_800_000, 921_600_000),
    "thor-r38": ("devfreq/gpu-gpc-0", 54_000_000, 1_575_000_000),
}
WAKES = ("tpc_fs_mask", "railgate_enable", "gpc_fs_mask")
"""Reading or writing these calls gk20a_busy(): the GPU wakes (hardware.md 1.2)."""


class Watched(Kernel):
    """Notes every file that is touched."""

    def __init__(self, root):
        super().__init__(root)
        self.touched = []

    def read(self, path):
        self.touched.append(path)
        return super().read(path)

    def write(self, path, value):
        self.touched.append(path)
        super().write(path, value)


def knobs(sysfs):
    return {knob.name: knob for knob in discover(sysfs, detect(sysfs))}


class TestDiscovery:
    @pytest.mark.parametrize("board", EXPECTED)
    def test_the_gpu_is_found_where_each_release_puts_it(self, tmp_path, board):
        gpu = knobs(plant(tmp_path, board))["gpu"]
        where, low, high = EXPECTED[board]
        assert gpu.min_path.endswith(f"{where}/min_freq")
        assert (gpu.floor_hz, gpu.ceiling_hz, gpu.unit_hz) == (low, high, 1)

    @pytest.mark.parametrize("board", [b for b in BOARDS if b.startswith(("x86", "rasp", "no"))])
    def test_a_board_without_a_devfreq_gpu_has_no_such_knob(self, tmp_path, board):
        assert "gpu" not in knobs(plant(tmp_path, board))

    def test_other_devfreq_devices_are_no_gpus(self, tmp_path):
        found = knobs(plant(tmp_path, "orin-nano-r36"))
        assert not [k for k in found.values() if ".vic" in k.max_path]

    def test_a_node_without_a_device_tree_name_is_told_by_its_own(self, tmp_path):
        sysfs = plant(tmp_path, "orin-nx-r35")
        (tmp_path / "sys/devices/platform/17000000.ga10b/of_node/name").unlink()
        assert "gpu" in knobs(sysfs)

    def test_a_node_that_appears_late_after_boot_is_found_by_looking_again(self, tmp_path):
        sysfs = plant(tmp_path, "orin-nano-r36")
        link = tmp_path / "sys/class/devfreq/17000000.gpu"
        target = link.readlink()
        link.unlink()
        assert "gpu" not in knobs(sysfs)
        link.symlink_to(target)
        assert "gpu" in knobs(sysfs)

    @pytest.mark.parametrize("content", ["", "garbage", "1.5e9"])
    def test_a_garbled_limit_makes_no_knob(self, tmp_path, content):
        sysfs = plant(tmp_path, "jetson-nano-r32")
        at = tmp_path / "sys/devices/57000000.gpu/devfreq/57000000.gpu"
        (at / "max_freq").write_text(content)
        assert "gpu" not in knobs(sysfs)

    def test_a_node_without_a_table_is_no_knob_since_its_range_is_not_known(self, tmp_path):
        assert "emc" not in knobs(plant(tmp_path, "thor-r38"))

    def test_thors_video_engines_and_memory_clock_are_optional(self, tmp_path):
        sysfs = plant(tmp_path, "thor-r38")
        bwmgr = tmp_path / "sys/class/devfreq/bwmgr"
        (bwmgr / "available_frequencies").write_text("204000000 4266000000\n")
        found = knobs(sysfs)
        assert {name for name, knob in found.items() if knob.optional} == {"gpu.video", "emc"}

    @pytest.mark.parametrize(
        ("board", "path"),
        [
            ("orin-nano-r36", "/sys/kernel/nvpmodel_clk_cap/emc"),
            ("orin-nx-r35", "/sys/kernel/nvpmodel_emc_cap/emc_iso_cap"),
        ],
    )
    def test_the_memory_clocks_cap_is_optional_and_has_no_minimum(self, tmp_path, board, path):
        emc = knobs(plant(tmp_path, board))["emc"]
        assert (emc.files(), emc.optional) == ({"max": path}, True)
        assert emc.permits("0") and emc.permits("2133000000") and not emc.permits("1")

    def test_where_the_rates_are_not_public_there_is_no_cap(self, tmp_path):
        sysfs = plant(tmp_path, "xavier-nx-r35")
        (tmp_path / "sys/kernel/nvpmodel_emc_cap").mkdir(parents=True)
        (tmp_path / "sys/kernel/nvpmodel_emc_cap/emc_iso_cap").write_text("0\n")
        assert "emc" not in knobs(sysfs)


class TestASleepingGpu:
    @pytest.mark.parametrize("board", EXPECTED)
    def test_nothing_that_wakes_it_is_touched_from_discovery_to_release(self, tmp_path, board):
        plant(tmp_path, board)
        sysfs = Watched(tmp_path)
        gpu = knobs(sysfs)["gpu"]
        found = switches(sysfs, detect(sysfs))
        with Ownership(sysfs, Direct(sysfs), tmp_path / "journal", [gpu, *found]) as ours:
            ours.measure(gpu)
            ours.pin(gpu, ours.allowed(gpu).max_hz)
            ours.watch()
        assert sysfs.touched
        assert not [path for path in sysfs.touched if path.endswith(WAKES)]

    def test_it_can_be_pinned_while_its_clock_reads_zero(self, tmp_path):
        plant(tmp_path, "thor-r38")
        sysfs = Kernel(tmp_path)
        gpu = knobs(sysfs)["gpu"]
        with Ownership(sysfs, Direct(sysfs), tmp_path / "journal", [gpu]) as ours:
            assert ours.pin(gpu, 1_100_000_000) == 1_098_000_000
            assert sysfs.read(gpu.current_path) == "0"


class TestPinning:
    def test_what_the_driver_made_of_it_is_what_is_reported(self, tmp_path):
        """The 5 W mode asks for 640 MHz and gets 614.4 (hardware.md 1.2)."""
        plant(tmp_path, "jetson-nano-r32")
        sysfs = Kernel(tmp_path)
        gpu = knobs(sysfs)["gpu"]
        sysfs.write(gpu.max_path, "640000000")
        assert sysfs.read_int(gpu.max_path) == 614_400_000
        with Ownership(sysfs, Direct(sysfs), tmp_path / "journal", [gpu]) as ours:
            assert ours.allowed(gpu) == ClockLimits(76_800_000, 614_400_000)
            assert ours.pin(gpu, 640_000_000) == 614_400_000

    def test_the_memory_clock_is_capped_and_given_back(self, tmp_path):
        plant(tmp_path, "agx-orin-r39")
        sysfs = Kernel(tmp_path)
        emc = knobs(sysfs)["emc"]
        with Ownership(sysfs, Direct(sysfs), tmp_path / "journal", [emc]) as ours:
            assert ours.pin(emc, 2_000_000_000) == 2_133_000_000
            assert sysfs.read(emc.max_path) == "2133000000"
        assert sysfs.read(emc.max_path) == "0"

    def test_a_cap_that_nvpmodel_set_is_not_widened(self, tmp_path):
        plant(tmp_path, "orin-nano-r36")
        (tmp_path / "sys/kernel/nvpmodel_clk_cap/emc").write_text("2133000000\n")
        sysfs = Kernel(tmp_path)
        emc = knobs(sysfs)["emc"]
        with Ownership(sysfs, Direct(sysfs), tmp_path / "journal", [emc]) as ours:
            assert ours.pin(emc, 3_199_000_000) == 2_133_000_000
