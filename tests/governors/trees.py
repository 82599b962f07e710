"""Boards as fixture trees: path -> content, as `docs/hardware.md` says they are.

    sysfs = plant(tmp_path, "orin-nano-r36")      # plain files below tmp_path
    kernel = Kernel(tmp_path)                     # the same, with the kernel's rules for writes

A tree holds what the energy side may meet there: limits, clocks, idle states, rails, temperatures,
batteries.  Where hardware.md does not say what a file is like, the tree leaves it out, or the
function says that it is a stand-in.  `name in BOARDS` is everything that exists; `CONTROLLED` are
the boards on which a clock can be set.
"""

from collections.abc import Callable
from pathlib import Path

from governors.sysfs import Sysfs
from tests.governors.tree_parts import (  # noqa: F401 - parts that tests take from here
    BATTERY,
    CPU,
    DEVFREQ,
    LIMITS,
    Kernel,
    Tree,
    cores,
    engine,
    gpu,
    ina3221,
    ina3221x,
    policy,
    rapl,
    zones,
)

ORIN_NANO_KHZ = tuple(range(115_200, 1_728_001, 76_800))
ORIN_NX_KHZ = (*range(115_200, 1_958_401, 76_800), 1_984_000)
AGX_ORIN_KHZ = (
    115_200, 268_800, 422_400, 576_000, 729_600, 883_200, 1_036_800, 1_190_400, 1_344_000,
    1_497_600, 1_651_200, 1_804_800, 1_958_400, 2_112_000, 2_201_600,
)  # fmt: skip
XAVIER_NX_KHZ = (*range(115_200, 1_881_601, 76_800), 1_907_200)
NANO_KHZ = (
    102_000, 204_000, 307_200, 403_200, 518_400, 614_400, 710_400, 825_600, 921_600, 1_036_800,
    1_132_800, 1_224_000, 1_326_000, 1_428_000, 1_479_000,
)  # fmt: skip
PI_5_KHZ = tuple(range(1_000_000, 2_400_001, 100_000))
ACPI_KHZ = (1_200_000, 1_800_000, 2_400_000, 3_000_000)

NANO_GPU_HZ = tuple(range(76_800_000, 921_600_001, 76_800_000))
XAVIER_NX_GPU_HZ = (
    114_750_000, 204_000_000, 306_000_000, 408_000_000, 510_000_000, 599_250_000, 701_250_000,
    752_250_000, 803_250_000, 854_250_000, 905_250_000, 956_250_000, 1_007_250_000, 1_058_250_000,
    1_109_250_000,
)  # fmt: skip
ORIN_NANO_GPU_HZ = tuple(range(306_000_000, 1_020_000_001, 102_000_000))
ORIN_NX_GPU_HZ = tuple(range(306_000_000, 918_000_001, 102_000_000))
AGX_ORIN_GPU_HZ = (
    *range(114_750_000, 1_236_750_001, 102_000_000), 1_300_500_000
)  # fmt: skip


def plant(root: Path, board: str) -> Sysfs:
    """The board's tree below `root`."""
    return BOARDS[board]().plant(root)


def _tegra(model: str, compatible: tuple[str, ...], release: str) -> Tree:
    major, revision = release.split(".", 1)
    tree = Tree()
    tree.files["/proc/device-tree/model"] = f"{model}\0"
    tree.files["/proc/device-tree/compatible"] = "".join(f"{name}\0" for name in compatible)
    tree.files["/etc/nv_tegra_release"] = (
        f"# R{major} (release), REVISION: {revision}, GCID: 0, BOARD: generic, EABI: aarch64\n"
    )
    return tree


def _p3767(release: str, model: str, sku: str, khz: tuple[int, ...], max_khz: int) -> Tree:
    """An Orin Nano or NX: policy0 of four cores, policy4 of the rest; nvpmodel's minimum."""
    tree = _tegra(
        model,
        (f"nvidia,p3768-0000+p3767-{sku}", f"nvidia,p3767-{sku}", "nvidia,tegra234"),
        release,
    )
    count = 6 if sku in ("0003", "0004", "0005") else 8
    cores(tree, count, ("WFI", "c7"), clusters=2)
    policy(tree, 0, [0, 1, 2, 3], khz, "tegra194", (729_600, max_khz))
    policy(tree, 4, list(range(4, count)), khz, "tegra194", (729_600, max_khz))
    ina3221(
        tree, "1-0040",
        (("VDD_IN", 5056, 920), ("VDD_CPU_GPU_CV", 5056, 111), ("VDD_SOC", 5056, 294)),
    )  # fmt: skip
    return tree


def orin_nano_r36() -> Tree:
    """Orin Nano 8GB devkit, JetPack 6, Super firmware in its 25 W mode."""
    name = "NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super"
    tree = _p3767("36.4.3", name, "0005", ORIN_NANO_KHZ, 1_344_000)
    device = "/sys/devices/platform/bus@0/17000000.gpu"
    gpu(tree, device, "17000000.gpu", ORIN_NANO_GPU_HZ, "gpu", max_hz=918_000_000)
    engine(tree, "/sys/devices/platform/bus@0/13e00000.host1x/15340000.vic", "15340000.vic")
    tree.links["/sys/devices/platform/gpu.0"] = device
    tree.add("/sys/kernel/nvpmodel_clk_cap", emc=3_199_000_000)
    zones(
        tree,
        ("cpu-thermal", 48_000), ("gpu-thermal", 47_500), ("cv0-thermal", 0), ("cv1-thermal", 0),
        ("cv2-thermal", 0), ("soc0-thermal", 46_000), ("soc1-thermal", 46_500),
        ("soc2-thermal", 46_000), ("tj-thermal", 48_000),
    )  # fmt: skip
    return tree


def orin_nx_r35() -> Tree:
    """Orin NX 16GB, JetPack 5."""
    name = "NVIDIA Orin NX Developer Kit"
    tree = _p3767("35.4.1", name, "0000", ORIN_NX_KHZ, 1_984_000)
    device = "/sys/devices/platform/17000000.ga10b"
    gpu(tree, device, "17000000.ga10b", ORIN_NX_GPU_HZ, "ga10b")
    tree.links["/sys/devices/gpu.0"] = device
    tree.add("/sys/kernel/nvpmodel_emc_cap", emc_iso_cap=0)
    zones(tree, ("CPU", 45_000), ("GPU", 44_000), ("Tboard", 40_000), ("Tdiode", 41_000))
    return tree


def agx_orin_r39() -> Tree:
    """AGX Orin 64GB, JetPack 7: three clusters, no input rail, two channels not connected."""
    tree = _tegra(
        "NVIDIA Jetson AGX Orin Developer Kit",
        ("nvidia,p3737-0000+p3701-0005", "nvidia,p3701-0005", "nvidia,tegra234"),
        "39.2.0",
    )
    cores(tree, 12, ("WFI", "c7"), clusters=3)
    for first in (0, 4, 8):
        policy(tree, first, list(range(first, first + 4)), AGX_ORIN_KHZ, "tegra194")
    device = "/sys/devices/platform/bus@0/17000000.gpu"
    gpu(tree, device, "17000000.gpu", AGX_ORIN_GPU_HZ, "gpu", governors="performance nvhost_podgov")
    tree.add("/sys/kernel/nvpmodel_clk_cap", emc=0)
    ina3221(
        tree, "1-0040",
        (("VDD_GPU_SOC", 19_000, 166), ("VDD_CPU_CV", 19_000, 80), ("VIN_SYS_5V0", 5000, 990)),
    )  # fmt: skip
    ina3221(tree, "1-0041", (("NC", 0, 0), ("VDDQ_VDD2_1V8AO", 5000, 218), ("NC", 0, 0)), hwmon=4)
    zones(tree, ("cpu-thermal", 45_000), ("gpu-thermal", 44_000), ("tj-thermal", 45_000))
    return tree


def agx_orin_r35() -> Tree:
    """AGX Orin, JetPack 5: as R39 but for the GPU's node and the cap's."""
    tree = agx_orin_r39()
    for table in (tree.files, tree.links):
        for path in [p for p in table if "17000000.gpu" in p or "nvpmodel_clk_cap" in p]:
            del table[path]
    tree.files["/etc/nv_tegra_release"] = "# R35 (release), REVISION: 4.1, GCID: 0\n"
    device = "/sys/devices/platform/17000000.ga10b"
    gpu(tree, device, "17000000.ga10b", AGX_ORIN_GPU_HZ, "ga10b")
    tree.links["/sys/devices/gpu.0"] = device
    tree.add("/sys/kernel/nvpmodel_emc_cap", emc_iso_cap=0)
    return tree


def xavier_nx_r35() -> Tree:
    """Xavier NX, JetPack 5: clusters of two cores with a policy each."""
    tree = _tegra(
        "NVIDIA Jetson Xavier NX Developer Kit",
        ("nvidia,p3509-0000+p3668-0000", "nvidia,p3668-0000", "nvidia,tegra194"),
        "35.4.1",
    )
    cores(tree, 6, ("C1", "c6"), clusters=3)
    for first in (0, 2, 4):
        policy(tree, first, [first, first + 1], XAVIER_NX_KHZ, "tegra194", (1_190_400, 1_420_800))
    device = "/sys/devices/17000000.gv11b"
    gpu(tree, device, "17000000.gv11b", XAVIER_NX_GPU_HZ, "gv11b")
    tree.links["/sys/devices/gpu.0"] = device
    ina3221(
        tree, "7-0040",
        (("VDD_IN", 5048, 800), ("VDD_CPU_GPU_CV", 5048, 150), ("VDD_SOC", 5048, 278)),
    )  # fmt: skip
    zones(tree, ("CPU-therm", 41_000), ("GPU-therm", 40_000), ("PMIC-Die", 100_000))
    return tree


def xavier_nx_r32() -> Tree:
    """Xavier NX with the old kernel's policies: one a core, though the clock is one a cluster."""
    tree = xavier_nx_r35()
    for table in (tree.files, tree.links):
        for path in [p for p in table if "cpufreq" in p]:
            del table[path]
    tree.files["/etc/nv_tegra_release"] = "# R32 (release), REVISION: 7.1, GCID: 0\n"
    for core in range(6):
        policy(tree, core, [core], XAVIER_NX_KHZ, "tegra194", (1_190_400, 1_420_800))
    return tree


def jetson_nano_r32() -> Tree:
    """Jetson Nano, JetPack 4: one policy, IIO meters, rails of which IN must be the largest."""
    tree = _tegra(
        "NVIDIA Jetson Nano Developer Kit",
        ("nvidia,p3449-0000-b00+p3448-0000-b00", "nvidia,jetson-nano", "nvidia,tegra210"),
        "32.7.1",
    )
    cores(tree, 4, ("WFI", "c7"))
    policy(
        tree, 0, [0, 1, 2, 3], NANO_KHZ, "tegra210",
        governors="interactive conservative ondemand userspace powersave performance schedutil",
    )  # fmt: skip
    device = "/sys/devices/57000000.gpu"
    gpu(tree, device, "57000000.gpu", NANO_GPU_HZ, "gpu")
    tree.links["/sys/devices/gpu.0"] = device
    ina3221x(
        tree, "6-0040",
        (("POM_5V_IN", 4920, 433), ("POM_5V_GPU", 4920, 8), ("POM_5V_CPU", 4920, 64)),
    )  # fmt: skip
    zones(
        tree,
        ("AO-therm", 40_000), ("CPU-therm", 33_000), ("GPU-therm", 32_500), ("PLL-therm", 31_000),
        ("PMIC-Die", 100_000), ("thermal-fan-est", 33_000),
    )  # fmt: skip
    return tree


def thor_r38() -> Tree:
    """AGX Thor: a PCI-style GPU with two devfreq nodes, EMC as a devfreq node, VIN by an INA238.

    The cpufreq files are a stand-in (hardware.md has none): one continuous policy.
    """
    tree = _tegra(
        "NVIDIA Jetson AGX Thor Developer Kit",
        ("nvidia,p4071-0000+p3834-0008", "nvidia,p3834-0008", "nvidia,tegra264"),
        "38.2.0",
    )
    cores(tree, 14, ("WFI", "c7"))
    policy(tree, 0, list(range(14)), (54_000, 2_601_000), "cppc_cpufreq", continuous=True)
    device = "/sys/devices/platform/bus@0/pcie/0000:01:00.0"
    for node, high in (("gpu-gpc-0", 1_575_000_000), ("gpu-nvd-0", 1_692_000_000)):
        at = f"{device}/devfreq/{node}"
        tree.add(
            at,
            cur_freq=0, target_freq=0, min_freq=315_000_000, max_freq=high,
            available_frequencies=" ".join(map(str, range(54_000_000, high + 1, 9_000_000))),
            governor="nvhost_podgov", available_governors="performance nvhost_podgov",
        )  # fmt: skip
        tree.links[f"{at}/device"] = device
        tree.links[f"{DEVFREQ}/{node}"] = at
    tree.add(f"{device}/power", control="auto", runtime_status="suspended")
    tree.links["/sys/bus/pci/devices/0000:01:00.0"] = device
    tree.add(
        f"{DEVFREQ}/bwmgr",
        cur_freq=665_600_000,
        min_freq=204_000_000,
        max_freq=4_266_000_000,
        governor="performance",
    )
    ina3221(
        tree, "2-0040",
        (("VDD_GPU", 20_000, 60), ("VDD_CPU_SOC_MSS", 20_000, 325), ("VIN_SYS_5V0", 5000, 1300)),
    )  # fmt: skip
    ina238 = "/sys/devices/platform/bus@0/c600000.i2c/i2c-2/2-0044"
    tree.add(f"{ina238}/hwmon/hwmon5", name="ina238", power1_input=23_000_000)
    tree.links["/sys/class/hwmon/hwmon5"] = f"{ina238}/hwmon/hwmon5"
    tree.links["/sys/bus/i2c/devices/2-0044"] = ina238
    return tree


def raspberry_pi_5() -> Tree:
    """Raspberry Pi 5: one policy of four A76; its power is told by vcgencmd only, not by sysfs."""
    tree = Tree()
    tree.files["/proc/device-tree/model"] = "Raspberry Pi 5 Model B Rev 1.0\0"
    tree.files["/proc/device-tree/compatible"] = "raspberrypi,5-model-b\0brcm,bcm2712\0"
    cores(tree, 4, ())
    policy(tree, 0, [0, 1, 2, 3], PI_5_KHZ, "cpufreq-dt", governor="ondemand")
    zones(tree, ("cpu-thermal", 51_000))
    return tree


def _x86(vendor: str, product: str, count: int) -> Tree:
    tree = Tree()
    tree.add("/sys/class/dmi/id", sys_vendor=vendor, product_name=product)
    maker = "AuthenticAMD" if vendor == "ASUS" else "GenuineIntel"
    tree.files["/proc/cpuinfo"] = f"processor\t: 0\nvendor_id\t: {maker}\n"
    cores(tree, count, ("POLL", "C1", "C6"))
    return tree


def x86_intel_pstate() -> Tree:
    """A laptop with intel_pstate in active mode: two governors, no table; RAPL; a battery."""
    tree = _x86("LENOVO", "20XW0012", 4)
    for core in range(4):
        policy(
            tree, core, [core], (400_000, 4_200_000), "intel_pstate",
            governors="performance powersave", governor="powersave", continuous=True,
        )  # fmt: skip
    tree.add(f"{CPU}/intel_pstate", status="active", no_turbo=0, max_perf_pct=100, min_perf_pct=9)
    rapl(tree, "0", "package-0", 262_143_000_000)
    rapl(tree, "0:0", "core", 81_000_000_000)
    rapl(tree, "0:1", "uncore", 3_000_000_000)
    rapl(tree, "1", "psys", 120_000_000_000)
    tree.add(
        BATTERY,
        type="Battery", status="Discharging", capacity=76, voltage_now=11_900_000,
        current_now=640_000, charge_now=3_300_000, charge_full=4_300_000,
    )  # fmt: skip
    tree.add("/sys/class/power_supply/AC", type="Mains", online=0)
    zones(tree, ("x86_pkg_temp", 44_000))
    return tree


def x86_amd_pstate() -> Tree:
    """A desktop with amd-pstate-epp: no table; package and core by RAPL."""
    tree = _x86("ASUS", "PN53", 4)
    for core in range(4):
        policy(
            tree, core, [core], (400_000, 4_785_000), "amd-pstate-epp",
            governors="performance powersave", governor="powersave", continuous=True,
        )  # fmt: skip
    rapl(tree, "0", "package-0", 1_000_000)
    rapl(tree, "0:0", "core", 300_000)
    zones(tree, ("acpitz", 39_000))
    return tree


def x86_acpi_cpufreq() -> Tree:
    """An older box with acpi-cpufreq: a table a core, `userspace`, boost."""
    tree = _x86("Supermicro", "X10", 2)
    for core in range(2):
        policy(tree, core, [core], ACPI_KHZ, "acpi-cpufreq", governor="ondemand")
    tree.add(f"{CPU}/cpufreq", boost=1)
    return tree


def no_control() -> Tree:
    """A virtual machine: cores, and nothing that could be set."""
    tree = _x86("QEMU", "Standard PC (Q35 + ICH9, 2009)", 2)
    tree.add(f"{CPU}/cpuidle", current_driver="none", current_governor="menu")
    return tree


BOARDS: dict[str, Callable[[], Tree]] = {
    "orin-nano-r36": orin_nano_r36,
    "orin-nx-r35": orin_nx_r35,
    "agx-orin-r35": agx_orin_r35,
    "agx-orin-r39": agx_orin_r39,
    "xavier-nx-r35": xavier_nx_r35,
    "xavier-nx-r32": xavier_nx_r32,
    "jetson-nano-r32": jetson_nano_r32,
    "thor-r38": thor_r38,
    "raspberry-pi-5": raspberry_pi_5,
    "x86-intel-pstate": x86_intel_pstate,
    "x86-amd-pstate": x86_amd_pstate,
    "x86-acpi-cpufreq": x86_acpi_cpufreq,
    "no-control": no_control,
}
CONTROLLED = tuple(name for name in BOARDS if name != "no-control")
