"""The parts of fixture trees: cpufreq policies, cores, GPUs, power monitors, zones, RAPL."""

import errno
import os
import posixpath
from dataclasses import dataclass, field
from pathlib import Path

from governors.sysfs import Sysfs, error

CPU = "/sys/devices/system/cpu"


DEVFREQ = "/sys/class/devfreq"


BATTERY = "/sys/class/power_supply/BAT0"


@dataclass
class Tree:
    """A table of files, links (path -> path, both absolute) and modes other than 0644."""

    files: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    modes: dict[str, int] = field(default_factory=dict)

    def add(self, directory: str, **files: object) -> None:
        """Files of one directory; a newline is added, as the kernel does."""
        self.files.update({f"{directory}/{name}": f"{value}\n" for name, value in files.items()})

    def plant(self, root: Path) -> Sysfs:
        """Write it below `root`; links become relative."""
        for path, content in self.files.items():
            place = root / path.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(content)
            place.chmod(self.modes.get(path, 0o644))
        for path, target in self.links.items():
            place = root / path.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(posixpath.relpath(target, posixpath.dirname(path)))
        return Sysfs(root)


class Kernel(Sysfs):
    """Plain files with the rules of cpufreq and devfreq (hardware.md 1.1, 1.2): a minimum above
    the maximum is refused, devfreq snaps down to its table, the clock follows the limits."""

    def write(self, path: str, value: str) -> None:
        """Write as a store of the kernel would, or refuse."""
        directory, name = posixpath.split(path)
        least, most, current = LIMITS.get(name, ("", "", ""))
        if not least or ("cpufreq/" not in path and "/devfreq/" not in path):
            super().write(path, value)
            return
        if not value.strip().isdigit():
            raise error(path, OSError(errno.EINVAL, os.strerror(errno.EINVAL)))
        wanted = int(value)
        table = [int(v) for v in (self.get(f"{directory}/available_frequencies") or "").split()]
        if table:
            wanted = max([hz for hz in table if hz <= wanted], default=min(table))
        low = wanted if name == least else self.read_int(f"{directory}/{least}")
        high = wanted if name == most else self.read_int(f"{directory}/{most}")
        if low > high:
            raise error(path, OSError(errno.EINVAL, os.strerror(errno.EINVAL)))
        super().write(path, f"{wanted}\n")
        clock = self.get_int(f"{directory}/{current}")
        if clock:  # a suspended GPU reads 0 and stays so
            super().write(f"{directory}/{current}", f"{min(max(clock, low), high)}\n")


_CPU_LIMITS = ("scaling_min_freq", "scaling_max_freq", "scaling_cur_freq")


_DEV_LIMITS = ("min_freq", "max_freq", "cur_freq")


LIMITS = {limits[i]: limits for limits in (_CPU_LIMITS, _DEV_LIMITS) for i in (0, 1)}


def policy(
    tree: Tree,
    number: int,
    cores: list[int],
    table_khz: tuple[int, ...],
    driver: str,
    limits_khz: tuple[int, int] | None = None,
    governors: str = "conservative ondemand userspace powersave performance schedutil",
    governor: str = "schedutil",
    continuous: bool = False,
) -> str:
    """A cpufreq policy; returns its directory."""
    low, high = limits_khz or (table_khz[0], table_khz[-1])
    at = f"{CPU}/cpufreq/policy{number}"
    listed = " ".join(map(str, cores))
    tree.add(
        at,
        affected_cpus=listed, related_cpus=listed, scaling_driver=driver,
        cpuinfo_min_freq=table_khz[0], cpuinfo_max_freq=table_khz[-1],
        cpuinfo_transition_latency=300_000 if driver == "tegra194" else 0,
        scaling_min_freq=low, scaling_max_freq=high, scaling_cur_freq=low,
        scaling_governor=governor, scaling_available_governors=f"{governors} ",
    )  # fmt: skip
    if not continuous:
        tree.add(at, scaling_available_frequencies="".join(f"{khz} " for khz in table_khz))
    if "userspace" in governors:
        tree.add(at, scaling_setspeed="<unsupported>")
    for core in cores:
        tree.links[f"{CPU}/cpu{core}/cpufreq"] = at
    return at


def cores(tree: Tree, count: int, states: tuple[str, ...], clusters: int = 1) -> None:
    """cpuN/online (not of cpu0), topology and idle states that were never entered."""
    tree.add(CPU, online=f"0-{count - 1}", present=f"0-{count - 1}", possible=f"0-{count - 1}")
    for core in range(count):
        at = f"{CPU}/cpu{core}"
        tree.add(f"{at}/topology", physical_package_id=core * clusters // count, core_id=core)
        if core:
            tree.add(at, online=1)
        for number, name in enumerate(states):
            tree.add(f"{at}/cpuidle/state{number}", name=name, disable=0, time=0, usage=0)


def gpu(
    tree: Tree,
    device: str,
    node: str,
    table_hz: tuple[int, ...],
    of_name: str,
    max_hz: int | None = None,
    current_hz: int | None = None,
    governors: str = "userspace nvhost_podgov performance",
) -> str:
    """An nvgpu below `device`; returns its devfreq directory."""
    at = f"{device}/devfreq/{node}"
    now = table_hz[0] if current_hz is None else current_hz
    tree.add(
        at,
        cur_freq=now, target_freq=now, min_freq=table_hz[0], max_freq=max_hz or table_hz[-1],
        available_frequencies=" ".join(map(str, table_hz)), governor="nvhost_podgov",
        available_governors=governors, polling_interval=25,
    )  # fmt: skip
    tree.files[f"{device}/of_node/name"] = f"{of_name}\0"
    tree.add(
        device,
        load=0, gpu_powered_on=0, is_railgated="yes", railgate_enable=1, railgate_delay=500,
        tpc_fs_mask=0xF, tpc_pg_mask=0,
    )  # fmt: skip
    tree.add(f"{device}/power", control="auto", runtime_status="suspended")
    tree.links[f"{at}/device"] = device
    tree.links[f"{device}/devfreq_dev"] = at
    tree.links[f"{DEVFREQ}/{node}"] = at
    return at


def engine(tree: Tree, device: str, node: str) -> None:
    """A devfreq device that is no GPU (the video compositor of every Tegra)."""
    at = f"{device}/devfreq/{node}"
    tree.add(at, cur_freq=0, min_freq=115_200_000, max_freq=729_600_000, governor="wmark_active")
    tree.files[f"{device}/of_node/name"] = "vic\0"
    tree.links[f"{at}/device"] = device
    tree.links[f"{DEVFREQ}/{node}"] = at


def ina3221(tree: Tree, where: str, rails: tuple[tuple[str, int, int], ...], hwmon: int = 3) -> str:
    """The hwmon driver; rails are (label, mV, mA), label NC for what is not connected."""
    device = f"/sys/devices/platform/c240000.i2c/i2c-{where.split('-', maxsplit=1)[0]}/{where}"
    at = f"{device}/hwmon/hwmon{hwmon}"
    tree.add(at, name="ina3221", samples=1, update_interval=3)
    tree.add(device, name="ina3221")
    for channel, (label, mv, ma) in enumerate(rails, 1):
        tree.add(at, **{
            f"in{channel}_label": label, f"in{channel}_enable": int(label != "NC"),
            f"in{channel}_input": mv, f"curr{channel}_input": ma,
            f"in{channel + 3}_input": ma * 5, f"shunt{channel}_resistor": 5000,
            f"curr{channel}_max": 8000, f"curr{channel}_crit": 10_000,
        })  # fmt: skip
    tree.add(at, in7_label="sum of shunt voltages", in7_input=sum(r[2] for r in rails) * 5)
    tree.links[f"/sys/bus/i2c/drivers/ina3221/{where}"] = device
    tree.links[f"/sys/bus/i2c/devices/{where}"] = device
    tree.links[f"/sys/class/hwmon/hwmon{hwmon}"] = at
    return at


def ina3221x(tree: Tree, where: str, rails: tuple[tuple[str, int, int], ...]) -> str:
    """The IIO driver of JetPack 4: channels from 0, ready-made mW, limits with a suffix."""
    device = f"/sys/devices/7000c400.i2c/i2c-{where.split('-', maxsplit=1)[0]}/{where}"
    at = f"{device}/iio:device0"
    tree.add(at, name="ina3221x", running_mode=0)
    for n, (label, mv, ma) in enumerate(rails):
        tree.add(at, **{
            f"rail_name_{n}": label, f"in_voltage{n}_input": mv, f"in_current{n}_input": ma,
            f"in_power{n}_input": mv * ma // 1000, f"in_power{n}_trigger_input": 0,
            f"in_current{n}_trigger_input": 0, f"ui_input_{n}": f"{mv} {ma}",
            f"crit_current_limit_{n}": "4000 ma", f"warn_current_limit_{n}": "3000 ma",
        })  # fmt: skip
    tree.links[f"/sys/bus/i2c/drivers/ina3221x/{where}"] = device
    return at


def zones(tree: Tree, *temperatures: tuple[str, int]) -> None:
    """Thermal zones, in thousandths of a degree."""
    for number, (kind, temp) in enumerate(temperatures):
        tree.add(f"/sys/class/thermal/thermal_zone{number}", type=kind, temp=temp)


def rapl(tree: Tree, number: str, name: str, energy_uj: int) -> None:
    """A powercap zone, readable by root only."""
    at = f"/sys/devices/virtual/powercap/intel-rapl/intel-rapl:{number}"
    tree.add(at, name=name, energy_uj=energy_uj, max_energy_range_uj=262_143_328_850)
    tree.modes[f"{at}/energy_uj"] = 0o400
    tree.links[f"/sys/class/powercap/intel-rapl:{number}"] = at
