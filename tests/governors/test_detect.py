"""Which board a tree is."""

import pytest

from governors.detect import detect
from governors.sysfs import Sysfs
from tests.governors.trees import BOARDS, Tree, plant

EXPECTED = {
    "orin-nano-r36": ("orin-nano", "tegra234", "R36.4.3", "orin-nano"),
    "orin-nx-r35": ("orin-nx", "tegra234", "R35.4.1", "orin-nx"),
    "agx-orin-r35": ("agx-orin", "tegra234", "R35.4.1", "agx-orin"),
    "agx-orin-r39": ("agx-orin", "tegra234", "R39.2.0", "agx-orin"),
    "xavier-nx-r35": ("xavier-nx", "tegra194", "R35.4.1", None),
    "xavier-nx-r32": ("xavier-nx", "tegra194", "R32.7.1", None),
    "jetson-nano-r32": ("jetson-nano", "tegra210", "R32.7.1", "jetson-nano"),
    "thor-r38": ("thor", "tegra264", "R38.2.0", None),
    "raspberry-pi-5": ("raspberry-pi-5", "bcm2712", "", "raspberry-pi-5"),
    "x86-intel-pstate": ("x86", "", "", None),
    "x86-amd-pstate": ("x86", "", "", None),
    "x86-acpi-cpufreq": ("x86", "", "", None),
    "no-control": ("x86", "", "", None),
}


@pytest.mark.parametrize("board", BOARDS)
def test_every_board_is_told_with_its_release(tmp_path, board):
    found = detect(plant(tmp_path, board))
    assert (found.name, found.soc, found.release, found.profile_name) == EXPECTED[board]
    assert found.tegra == found.soc.startswith("tegra")


def test_the_module_counts_and_not_what_the_carriers_maker_calls_it(tmp_path):
    tree = Tree(
        {
            "/proc/device-tree/model": "Acme Vision Box\0",
            "/proc/device-tree/compatible": "acme,box\0nvidia,p3767-0003\0nvidia,tegra234\0",
        }
    )
    assert detect(tree.plant(tmp_path)).name == "orin-nano"


def test_the_model_helps_where_compatible_cannot_be_read(tmp_path):
    tree = Tree({"/proc/device-tree/model": "NVIDIA Jetson Orin NX Developer Kit\0"})
    assert detect(tree.plant(tmp_path)).name == "orin-nx"


def test_garbled_files_make_an_unknown_board_and_no_error(tmp_path):
    tree = Tree({"/proc/device-tree/compatible": "\xff\xfe,,\0", "/etc/nv_tegra_release": "R"})
    found = detect(tree.plant(tmp_path))
    assert (found.name, found.release, found.profile_name) == ("unknown", "", None)


def test_an_empty_tree_is_an_unknown_board(tmp_path):
    assert detect(Sysfs(tmp_path)).name == "unknown"
