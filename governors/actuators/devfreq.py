"""GPU clocks by devfreq (nvgpu, and Thor's driver), and Thor's memory clock (docs/hardware.md).

Files hold Hz.  A node belongs to a GPU if its device-tree name is a known one or contains "gpu".
Nodes move between releases, so they are searched for in `/sys/class/devfreq`.

A suspended GPU stays suspended: only limits and tables are read, which the devfreq core keeps.
`tpc_fs_mask` is never read and `railgate_enable` never written, since both would wake it.

A node without a table has no known range (its limits may be another process's), so it gives no
knob.
"""

from __future__ import annotations

from collections.abc import Iterator

from governors.actuators.base import Knob, Setting, Switch, finder
from governors.detect import DetectedBoard
from governors.sysfs import DEVFREQ, Sysfs, SysfsError

GPUS = frozenset(("gv11b", "gp10b", "ga10b", "gb10b", "gpu"))
VIDEO = "gpu-nvd"
"""Node of Thor's video engines."""
RAILGATE_DELAYS_MS = ("50", "100", "200", "500", "1000", "2000")
"""A selection; the driver accepts any number (its default is 500)."""


@finder
def nodes(sysfs: Sysfs, board: DetectedBoard) -> Iterator[Setting]:
    """`gpu`, `gpu.video`, `emc`, and the switches of the GPU's power management."""
    del board
    for node in sysfs.list(DEVFREQ):
        at = f"{DEVFREQ}/{node}"
        try:
            if node == "bwmgr":
                yield from _knob(sysfs, at, "emc", "memory", optional=True)
            elif _is_gpu(sysfs, at, node):
                video = node.startswith(VIDEO)
                yield from _knob(sysfs, at, "gpu.video" if video else "gpu", "gpu", optional=video)
                yield from _power(sysfs, sysfs.resolve(f"{at}/device"))
        except SysfsError:
            continue


def _is_gpu(sysfs: Sysfs, at: str, node: str) -> bool:
    name = sysfs.get(f"{at}/device/of_node/name") or node.partition(".")[2] or node
    return name in GPUS or "gpu" in name


def _knob(sysfs: Sysfs, at: str, name: str, kind: str, optional: bool) -> Iterator[Knob]:
    at = sysfs.resolve(at)
    sysfs.read_int(f"{at}/min_freq")
    sysfs.read_int(f"{at}/max_freq")
    listed = (sysfs.get(f"{at}/available_frequencies") or "").split()
    table = tuple(sorted({int(hz) for hz in listed if hz.isdecimal()}))
    if not table:
        return
    yield Knob(
        name=name,
        kind=kind,
        unit_hz=1,
        min_path=f"{at}/min_freq",
        max_path=f"{at}/max_freq",
        current_path=f"{at}/cur_freq",
        table_hz=table,
        floor_hz=table[0],
        ceiling_hz=table[-1],
        optional=optional,
    )


def _power(sysfs: Sysfs, device: str) -> Iterator[Switch]:
    if sysfs.exists(f"{device}/power/control"):
        yield Switch("gpu.power", "gpu-power", f"{device}/power/control", ("auto", "on"))
    if sysfs.exists(f"{device}/railgate_delay"):
        yield Switch(
            "gpu.railgate_delay", "gpu-power", f"{device}/railgate_delay", RAILGATE_DELAYS_MS
        )
