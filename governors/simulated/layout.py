"""File tree of a simulated board, as its kernel and release lay it out.

Paths differ between releases; R32 (kernel 4.9) and R36 (5.15), the releases of the profiles, are
covered.  Values are those after boot without load.  A file whose content starts with `!` fails with
that error (`!EAGAIN`), see `governors.simulated.kernel`.

Sources: Linux Documentation/admin-guide/pm/cpufreq.rst, testing/sysfs-class-devfreq,
hwmon/ina3221.rst, power/powercap; OE4T/linux-tegra-4.9 (ina3221x); OE4T/linux-nvgpu (device
attributes); public captures of boards (node names, thermal zones, rails).
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field
from pathlib import Path

from governors.actuators.suspend import DEEP, MEM_SLEEP, POWER_STATE, RTC
from governors.profile import BoardProfile, Channel, Cluster, Gpu
from governors.simulated.throttle import ThermalThrottle
from governors.sysfs import CPU, DEVFREQ, POWERCAP

EMC_CAP = "/sys/kernel/nvpmodel_clk_cap/emc"
EMC_RATE = "/sys/kernel/debug/bpmp/debug/clk/emc"
RAPL_RANGE_UJ = 262_143_328_850
"""Of a package (a public capture)."""
_COOLING = "/sys/class/thermal/cooling_device"
SOCTHERM_THROTTLE = "heavy"
"""Cooling device of soctherm's pulse skipper (drivers/thermal/tegra/soctherm.c)."""
NVPMODEL_STATUS = "/var/lib/nvpmodel/status"

_RELEASE = {"R32": ("32", "7.1"), "R36": ("36", "4.3")}
GPU_DEVICE = {"R32": "/sys/devices/57000000.gpu", "R36": "/sys/devices/platform/bus@0/17000000.gpu"}
_GPU_ALIAS = {"R32": "/sys/devices/gpu.0", "R36": "/sys/devices/platform/gpu.0"}
_I2C = {
    "ina3221": "/sys/devices/platform/bus@0/c240000.i2c/i2c-1",
    "ina3221x": "/sys/devices/7000c400.i2c/i2c-6",
}
FAKE_ZONES = {"PMIC-Die": 100_000}
"""Always reads that."""
TEMPERATURE = 40_000


@dataclass
class Tree:
    """Files and links by their path on a real board."""

    files: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    modes: dict[str, int] = field(default_factory=dict)

    def add(self, directory: str, **files: object) -> None:
        """Files of one directory, each with a newline, as the kernel writes them."""
        self.files.update({f"{directory}/{name}": f"{value}\n" for name, value in files.items()})

    def plant(self, root: Path) -> None:
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


def tree(profile: BoardProfile) -> Tree:
    """The whole tree.  Its firmware is a device tree, or DMI on x86."""
    made = Tree()
    if profile.tree.compatible:
        _device_tree(made, profile)
    else:
        _x86(made, profile)
    _cores(made, profile)
    for cluster in profile.clusters:
        _policy(made, profile, cluster)
    if profile.gpu is not None:
        _gpu(made, profile, profile.gpu)
    if profile.tree.memory_clock:
        made.add(posixpath.dirname(EMC_CAP), emc=0)
        made.add(EMC_RATE, rate=profile.memory.table_hz[0], mrq_rate_locked=0, state=0)
    _sensors(made, profile)
    for number, kind in enumerate(profile.tree.thermal_zones):
        cold = kind.startswith("cv") or (kind == "gpu-thermal" and profile.gpu is not None)
        temperature = "!EAGAIN" if cold else FAKE_ZONES.get(kind, TEMPERATURE)
        at = f"/sys/class/thermal/thermal_zone{number}"
        made.add(at, type=kind, temp=temperature)
        for trip, (name, celsius) in enumerate(profile.tree.trips_celsius.items()):
            made.add(at, **{f"trip_point_{trip}_type": name,
                            f"trip_point_{trip}_hyst": _hyst(profile),
                            f"trip_point_{trip}_temp": round(celsius * 1000)})  # fmt: skip
    _cooling(made, profile)
    if profile.suspend is not None:
        _suspend(made, profile)
    if profile.modes:
        made.add(posixpath.dirname(NVPMODEL_STATUS), status=f"pmode:{profile.default_mode:04d}")
    return made


def _cooling(made: Tree, profile: BoardProfile) -> None:
    """Cooling devices at rest, and counters of throttling events at zero.  The names of cooling
    devices are those of cpufreq_cooling.c and devfreq_cooling.c of the release's kernel."""
    names = []
    for index, cluster in enumerate(profile.clusters):
        old = profile.release == "R32"
        name = f"thermal-cpufreq-{index}" if old else f"cpufreq-cpu{cluster.cores[0]}"
        names += [(name, len(cluster.table_hz) - 1)] if cluster.table_hz else []
    if profile.release == "R36" and profile.gpu is not None:
        node = posixpath.basename(gpu_paths(profile)[1])
        names.append((f"devfreq-{node}", len(profile.gpu.opps) - 1))
        made.add(
            "/sys/devices/platform/soctherm-oc-event/hwmon/hwmon1", name="soctherm_oc",
            oc1_event_cnt=0, oc2_event_cnt=0, oc3_event_cnt=0,
        )  # fmt: skip
    if profile.thermal is not None and profile.thermal.throttle.kind == "pulse_skipping":
        names.append((SOCTHERM_THROTTLE, 1))
    for number, (name, most) in enumerate(names):
        at = f"{_COOLING}{number}"
        made.add(at, type=name, cur_state=0, max_state=most)
    for core in range(0 if profile.tree.compatible else profile.core_count):
        at = f"{CPU}/cpu{core}/thermal_throttle"
        made.add(at, core_throttle_count=0, package_throttle_count=0)


def _suspend(made: Tree, profile: BoardProfile) -> None:
    """The states of suspend, and a clock that can end it."""
    made.add(posixpath.dirname(POWER_STATE), state="freeze mem")
    if profile.release != "R32":  # Linux 4.9 has no such file
        made.add(posixpath.dirname(MEM_SLEEP), mem_sleep=f"s2idle [{DEEP}]")
    made.add(f"{RTC}/rtc0", name="rtc0", since_epoch=0, wakealarm="")


def throttling_files(profile: BoardProfile, throttle: ThermalThrottle) -> dict[str, int]:
    """What the board's files show of throttling: states of cooling devices, counters of events."""
    if not profile.tree.compatible:
        return {
            f"{CPU}/cpu{core}/thermal_throttle/{part}_throttle_count": throttle.events
            for core in range(profile.core_count) for part in ("core", "package")
        }  # fmt: skip
    tables = [cluster for cluster in profile.clusters if cluster.table_hz]
    soctherm = throttle.kind == "pulse_skipping"
    last = len(tables) + (profile.release == "R36" and profile.gpu is not None)
    numbers = [last] if soctherm else range(len(tables))
    return {f"{_COOLING}{number}/cur_state": throttle.state for number in numbers}


def _hyst(profile: BoardProfile) -> int:
    thermal = profile.thermal
    return 0 if thermal is None else round(1e3 * thermal.throttle.hysteresis_celsius)


def policy_path(cluster: Cluster) -> str:
    """The cpufreq directory of a cluster."""
    return f"{CPU}/cpufreq/{cluster.name.removeprefix('cpu.')}"


def gpu_paths(profile: BoardProfile) -> tuple[str, str]:
    """The GPU's device directory and its devfreq node."""
    device = GPU_DEVICE[profile.release]
    return device, f"{device}/devfreq/{posixpath.basename(device)}"


def channel_path(profile: BoardProfile, channel: Channel) -> str:
    """Directory of a channel's files."""
    if profile.sensor.meter == "rapl":
        return f"{POWERCAP}/{channel.device}"
    bus = f"{_I2C[profile.sensor.meter]}/{channel.device}"
    if profile.sensor.meter == "ina3221x":
        return f"{bus}/iio:device0"
    chips = sorted({c.device for c in profile.sensor.channels})
    return f"{bus}/hwmon/hwmon{chips.index(channel.device) + 3}"


def _device_tree(made: Tree, profile: BoardProfile) -> None:
    made.files["/proc/device-tree/model"] = f"{profile.tree.model}\0"
    names = profile.tree.compatible
    made.files["/proc/device-tree/compatible"] = "".join(f"{name}\0" for name in names)
    if profile.release in _RELEASE:
        major, revision = _RELEASE[profile.release]
        made.files["/etc/nv_tegra_release"] = (
            f"# R{major} (release), REVISION: {revision}, GCID: 0, BOARD: generic, EABI: aarch64\n"
        )


def _x86(made: Tree, profile: BoardProfile) -> None:
    made.files["/proc/cpuinfo"] = "processor\t: 0\nvendor_id\t: GenuineIntel\n"
    made.add("/sys/class/dmi/id", sys_vendor="edged", product_name=profile.tree.model)
    made.add(f"{CPU}/intel_pstate", status="active", no_turbo=0, max_perf_pct=100)


def _cores(made: Tree, profile: BoardProfile) -> None:
    last = profile.core_count - 1
    made.add(CPU, online=f"0-{last}", present=f"0-{last}", possible=f"0-{last}")
    for index, cluster in enumerate(profile.clusters):
        for core in cluster.cores:
            at = f"{CPU}/cpu{core}"
            package = index if profile.tree.compatible else 0
            made.add(f"{at}/topology", physical_package_id=package, core_id=core)
            if core:
                made.add(at, online=1)
            for number, state in enumerate(profile.idle_states):
                made.add(f"{at}/cpuidle/state{number}", name=state.name, disable=0, time=0, usage=0)
            made.links[f"{at}/cpufreq"] = policy_path(cluster)


def _policy(made: Tree, profile: BoardProfile, cluster: Cluster) -> None:
    low, high = cluster.opps[0].hz // 1000, cluster.opps[-1].hz // 1000
    listed = " ".join(map(str, cluster.cores))
    at = policy_path(cluster)
    mode = next((m for m in profile.modes if m.id == profile.default_mode), None)
    most = min(high, mode.cpu_max_khz) if mode else high
    least = cluster.floor_hz // 1000
    latency = next((t.us for t in profile.transitions if t.kind == "cpu"), None)
    made.add(
        at,
        affected_cpus=listed, related_cpus=listed, cpuinfo_min_freq=low, cpuinfo_max_freq=high,
        cpuinfo_transition_latency=int((latency or 0) * 1000),
        scaling_min_freq=least, scaling_max_freq=most, scaling_cur_freq=least,
    )  # fmt: skip
    if cluster.continuous:
        made.add(
            at,
            scaling_driver=profile.tree.cpufreq_driver, scaling_governor="powersave",
            scaling_available_governors="performance powersave",
        )  # fmt: skip
        return
    old = "interactive " if profile.release == "R32" else ""
    made.add(
        at,
        scaling_driver=profile.tree.cpufreq_driver, scaling_governor="schedutil",
        scaling_available_governors=(
            f"{old}conservative ondemand userspace powersave performance schedutil"
        ),
        scaling_available_frequencies=" ".join(str(hz // 1000) for hz in cluster.table_hz),
        scaling_setspeed="<unsupported>",
    )  # fmt: skip
    made.add(
        f"{at}/stats",
        time_in_state="\n".join(f"{hz // 1000} {0:12d}" for hz in cluster.table_hz),
    )


def _gpu(made: Tree, profile: BoardProfile, gpu: Gpu) -> None:
    device, at = gpu_paths(profile)
    table = [opp.hz for opp in gpu.opps]
    mode = next((m for m in profile.modes if m.id == profile.default_mode), None)
    most = min(table[-1], mode.gpu_max_hz) if mode else table[-1]
    made.add(
        at,
        cur_freq=table[0], target_freq=table[0], min_freq=table[0], max_freq=most,
        available_frequencies=" ".join(map(str, table)), governor="nvhost_podgov",
        available_governors="userspace nvhost_podgov performance", polling_interval=25,
    )  # fmt: skip
    made.files[f"{device}/of_node/name"] = "gpu\0"
    made.add(
        device,
        load=0, gpu_powered_on=0, is_railgated="yes", railgate_enable=1,
        railgate_delay=int(gpu.railgate_delay_ms or 500), tpc_pg_mask=0,
    )  # fmt: skip
    made.add(f"{device}/power", control="auto", runtime_status="suspended")
    made.links[f"{at}/device"] = device
    made.links[f"{device}/devfreq_dev"] = at
    made.links[f"{DEVFREQ}/{posixpath.basename(at)}"] = at
    made.links[_GPU_ALIAS[profile.release]] = device


def _sensors(made: Tree, profile: BoardProfile) -> None:
    meter, channels = profile.sensor.meter, profile.sensor.channels
    for channel in channels:
        at = channel_path(profile, channel)
        if meter == "rapl":
            _rapl(made, channel)
            continue
        device = f"{_I2C[meter]}/{channel.device}"
        made.links[f"/sys/bus/i2c/drivers/{meter}/{channel.device}"] = device
        made.links[f"/sys/bus/i2c/devices/{channel.device}"] = device
        made.add(device, name=meter)
        n, volts, shunt = channel.index, channel.volts or 5.0, channel.shunt_uohm or 5000
        if meter == "ina3221x":
            made.add(at, **{
                "name": "ina3221x", "running_mode": 0, f"rail_name_{n}": channel.rail,
                f"in_current{n}_trigger_input": 0, f"in_power{n}_trigger_input": 0,
                f"crit_current_limit_{n}": "4000 ma", f"warn_current_limit_{n}": "3000 ma",
                f"in_voltage{n}_input": int(volts * 1000), f"in_current{n}_input": 0,
                f"in_power{n}_input": 0, f"ui_input_{n}": f"{int(volts * 1000)} 0",
            })  # fmt: skip
            continue
        made.links[f"/sys/class/hwmon/{posixpath.basename(at)}"] = at
        made.add(
            at, name="ina3221", samples=64,
            update_interval=int(profile.sensor.refresh_ms or 0),
            in7_label="sum of shunt voltages", in7_input=0,
        )  # fmt: skip
        made.add(at, **{
            f"in{n}_label": channel.rail, f"in{n}_enable": 1, f"in{n}_input": int(volts * 1000),
            f"curr{n}_input": 0, f"in{n + 3}_input": 0, f"shunt{n}_resistor": shunt,
            f"curr{n}_max": 8000, f"curr{n}_crit": 10_000,
        })  # fmt: skip
    if meter == "ina3221":
        _not_connected(made, profile)


def _not_connected(made: Tree, profile: BoardProfile) -> None:
    """Unconnected channels of a chip: named NC, and they fail with EIO."""
    for channel in profile.sensor.channels:
        at = channel_path(profile, channel)
        for n in (1, 2, 3):
            if f"{at}/in{n}_label" not in made.files:
                made.add(at, **{
                    f"in{n}_label": "NC", f"in{n}_enable": 1, f"in{n}_input": "!EIO",
                    f"curr{n}_input": "!EIO", f"in{n + 3}_input": "!EIO",
                })  # fmt: skip


def _rapl(made: Tree, channel: Channel) -> None:
    real = f"/sys/devices/virtual/powercap/intel-rapl/{channel.device}"
    made.add(
        real, name=channel.rail.rpartition("/")[2], energy_uj=0, max_energy_range_uj=RAPL_RANGE_UJ
    )
    made.modes[f"{real}/energy_uj"] = 0o400
    made.links[f"{POWERCAP}/{channel.device}"] = real
