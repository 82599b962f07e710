"""CPU clocks: the kernel's cpufreq policies (docs/hardware.md).

Files hold kHz.  intel_pstate and amd-pstate have no table: their range is continuous.
`cpuinfo_cur_freq` is never read: on tegra194 it takes 500 µs and runs work on the core.

Cores of a tegra194 cluster run at the cluster's highest request.  Where the kernel has one policy
per core, the policies of a cluster form one knob and are written alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from governors.actuators.base import Knob, finder
from governors.detect import DetectedBoard
from governors.sysfs import CPU, Sysfs, SysfsError

CLUSTERED = "tegra194"
"""Driver (of Xavier and Orin) whose clocks belong to clusters, for any layout of policies."""


@finder
def policies(sysfs: Sysfs, board: DetectedBoard) -> Iterator[Knob]:
    """One knob per clock.  A policy with missing or garbled files (all of its cores may be offline)
    is skipped."""
    del board
    clocks: dict[object, list[Knob]] = {}
    names = [name for name in sysfs.list(f"{CPU}/cpufreq") if re.fullmatch(r"policy\d+", name)]
    for name in sorted(names, key=lambda name: int(name[6:])):
        try:
            knob = _policy(sysfs, name)
        except SysfsError:
            continue
        clocks.setdefault(_clock(sysfs, knob), []).append(knob)
    for first, *rest in clocks.values():
        yield _joined(first, rest)


def cpu_list(text: str) -> tuple[int, ...]:
    """Cores of a kernel list: `0-3`, `0 1 2`, `0-1,4`. Garbled parts are skipped."""
    found: set[int] = set()
    for part in re.split(r"[\s,]+", text):
        if match := re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", part):
            found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(found))


def _policy(sysfs: Sysfs, name: str) -> Knob:
    at = f"{CPU}/cpufreq/{name}"
    sysfs.read_int(f"{at}/scaling_min_freq")
    sysfs.read_int(f"{at}/scaling_max_freq")
    floor = sysfs.read_int(f"{at}/cpuinfo_min_freq") * 1000
    ceiling = sysfs.read_int(f"{at}/cpuinfo_max_freq") * 1000
    listed = (sysfs.get(f"{at}/scaling_available_frequencies") or "").split()
    table = {int(khz) * 1000 for khz in listed if khz.isdecimal()}
    return Knob(
        name=f"cpu.{name}",
        kind="cpu",
        unit_hz=1000,
        min_path=f"{at}/scaling_min_freq",
        max_path=f"{at}/scaling_max_freq",
        current_path=f"{at}/scaling_cur_freq",
        table_hz=tuple(sorted(hz for hz in table if floor <= hz <= ceiling)),
        floor_hz=floor,
        ceiling_hz=ceiling,
        cores=cpu_list(sysfs.get(f"{at}/related_cpus") or ""),
    )


def _clock(sysfs: Sysfs, knob: Knob) -> object:
    """A key that policies of one clock share."""
    at = knob.min_path.rpartition("/")[0]
    if sysfs.get(f"{at}/scaling_driver") != CLUSTERED or len(knob.cores) != 1:
        return knob.name
    topology = f"{CPU}/cpu{knob.cores[0]}/topology"
    for name in ("cluster_id", "physical_package_id"):  # arm64 before 5.16 has only the latter
        cluster = sysfs.get_int(f"{topology}/{name}")
        if cluster is not None and cluster >= 0:
            return cluster
    return knob.name


def _joined(first: Knob, rest: list[Knob]) -> Knob:
    if not rest:
        return first
    cores = {core for knob in (first, *rest) for core in knob.cores}
    return Knob(
        first.name, first.kind, first.unit_hz, first.min_path, first.max_path, first.current_path,
        first.table_hz, first.floor_hz, first.ceiling_hz, tuple(sorted(cores)),
        also=tuple((knob.min_path, knob.max_path) for knob in rest),
    )  # fmt: skip
