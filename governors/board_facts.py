"""Reads what a board's kernel shows into a report (`governors.board_report`).

Nothing is written and no GPU is woken: limits, tables and `railgate_delay` are read as
`governors.actuators.devfreq` does.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from governors.actuators.base import Knob, findings
from governors.actuators.suspend import MEM_SLEEP, POWER_STATE, alarms
from governors.anonymity import Identifiers
from governors.board_report import (
    BoardFacts,
    BoardReport,
    CheckFacts,
    ClockFacts,
    CoolingFacts,
    IdleFacts,
    RailFacts,
    SuspendFacts,
    SystemFacts,
    ZoneFacts,
)
from governors.detect import DetectedBoard, detect
from governors.health import FAKE_ZONES, THERMAL, celsius, trip_points
from governors.meters.base import survey
from governors.meters.ina3221 import HwmonChip, IioChip
from governors.meters.settings import MeterSettings
from governors.profile_match import compared
from governors.sysfs import CPU, CPUFREQ, POWERCAP, Sysfs
from governors.topology import topology

GIB = 1 << 30
_PUBLIC_BUILDS = frozenset((
    "2712", "amd64", "arm64", "aws", "azure", "cloud", "generic", "lowlatency", "oem", "raspi",
    "realtime", "rpi", "rt", "tegra", "v7", "v8",
))  # fmt: skip
"""Words of kernel releases that say which build it is; a builder's own word may be a name."""


def examine(
    sysfs: Sysfs, version: str, simulated: bool, checks: Iterable[tuple[str, str, str]] = (),
    hidden: Iterable[str] = (),
) -> BoardReport:  # fmt: skip
    """The report of a tree; `checks` are area, name and state, `hidden` texts are removed too."""
    board = detect(sysfs)
    found = findings(sysfs, board)
    knobs = [setting for setting in found if isinstance(setting, Knob)]
    report = BoardReport(
        format=1,
        edged=version,
        board=_board(sysfs, board, simulated),
        system=_system(sysfs, board),
        clocks=tuple(_clock(sysfs, knob) for knob in knobs),
        railgate_delay_ms=_delay(sysfs, (s.files().get("value", "") for s in found
                                         if s.name == "gpu.railgate_delay")),
        idle_states=tuple(_idle_states(sysfs)),
        rails=tuple(_rails(sysfs)),
        meters=tuple(m.name for m in survey(sysfs, board, MeterSettings()).meters),
        zones=tuple(_zones(sysfs)),
        cooling=tuple(_cooling(sysfs)),
        suspend=_suspend(sysfs),
        power_mode=(sysfs.get("/var/lib/nvpmodel/status") or "").partition(":")[2],
        checks=tuple(CheckFacts(*row) for row in checks),
    )  # fmt: skip
    if board.profile_name is not None:
        report = msgspec.structs.replace(report, matches=compared(report, board.profile_name))
    return _cleaned(report, Identifiers.of(sysfs, hidden))


def _cleaned(report: BoardReport, hidden: Identifiers) -> BoardReport:
    """The same with each text cleaned.  Keys of mappings are texts of the kernel too."""

    def walk(value: Any, texts: bool) -> Any:
        """The value with its texts cleaned, and the keys of its mapping where they are texts."""
        if isinstance(value, str):
            return hidden.clean(value)
        if isinstance(value, dict):
            return {
                hidden.clean(key) if texts else key: walk(inner, key == "trips_celsius")
                for key, inner in value.items()
            }
        if isinstance(value, list | tuple):
            return [walk(one, False) for one in value]
        return value

    plain = msgspec.to_builtins(report)
    return msgspec.convert(walk(plain, False) | {"edged": report.edged}, BoardReport)


def _board(sysfs: Sysfs, board: DetectedBoard, simulated: bool) -> BoardFacts:
    names = (sysfs.get("/proc/device-tree/compatible") or "").split("\0")
    return BoardFacts(
        board.name, board.model, tuple(filter(None, names)), board.soc, board.release,
        board.profile_name, simulated,
    )  # fmt: skip


def _system(sysfs: Sysfs, board: DetectedBoard) -> SystemFacts:
    cores = topology(sysfs, board)
    memory = re.search(r"^MemTotal:\s*(\d+) kB", sysfs.get("/proc/meminfo") or "", re.M)
    gib = None if memory is None else round(2 * int(memory[1]) * 1024 / GIB) / 2
    here = platform.machine() if str(sysfs.root) == "/" else ""
    return SystemFacts(
        kernel_release(sysfs.get("/proc/sys/kernel/osrelease") or ""),
        _distribution(sysfs.get("/etc/os-release") or ""),
        sysfs.get("/proc/sys/kernel/arch") or here, platform.python_version(),
        cores.model or _core(sysfs), len(cores.online), gib,
    )  # fmt: skip


def _core(sysfs: Sysfs) -> str:
    """The first core's name in the device tree: `arm,cortex-a78`."""
    paths = sysfs.glob("/proc/device-tree/cpus/cpu@*/compatible")
    return next(((sysfs.get(path) or "").split("\0")[0] for path in paths), "")


def kernel_release(text: str) -> str:
    """A kernel's release without what its builder added: `5.15.148-tegra`.  A word that is no
    number and not public becomes `local`."""
    numbers = re.match(r"\d+(?:\.\d+)*", text)
    if numbers is None:
        return ""
    rest = [word for word in re.split(r"[-+_~.]", text[numbers.end() :]) if word]
    known = [w if _public(w) else "local" for w in rest]
    return "-".join([numbers[0], *dict.fromkeys(known)])


def _public(word: str) -> bool:
    return word in _PUBLIC_BUILDS or (word.isdecimal() and len(word) < 6)


def _distribution(text: str) -> str:
    found = dict(re.findall(r'^(ID|VERSION_ID)="?([a-z0-9._-]*)"?$', text, re.M))
    return f"{found.get('ID', '')} {found.get('VERSION_ID', '')}".strip()


def _clock(sysfs: Sysfs, knob: Knob) -> ClockFacts:
    policy = f"{CPUFREQ}/{knob.name.removeprefix('cpu.')}" if knob.kind == "cpu" else ""
    directory = policy or knob.max_path.rpartition("/")[0]
    governors = sysfs.get(f"{directory}/scaling_available_governors" if policy
                          else f"{directory}/available_governors")  # fmt: skip
    floor = sysfs.get_int(knob.min_path) if knob.min_path else None
    change_ns = sysfs.get_int(f"{directory}/cpuinfo_transition_latency") if policy else None
    return ClockFacts(
        knob.name, knob.kind, sysfs.get(f"{directory}/scaling_driver") or "" if policy else "",
        tuple(sorted((governors or "").split())), knob.cores, knob.table_hz, knob.floor_hz,
        knob.ceiling_hz, None if floor is None else floor * knob.unit_hz,
        change_ns / 1000 if change_ns else None,
    )  # fmt: skip


def _delay(sysfs: Sysfs, paths: Iterable[str]) -> int | None:
    return next((sysfs.get_int(path) for path in paths), None)


def _idle_states(sysfs: Sysfs) -> Iterator[IdleFacts]:
    at = f"{CPU}/cpu0/cpuidle"
    for state in sorted(sysfs.list(at), key=lambda name: (len(name), name)):
        name = sysfs.get(f"{at}/{state}/name")
        if name:
            exit_us, residency_us = (
                sysfs.get_int(f"{at}/{state}/{part}") for part in ("latency", "residency")
            )
            yield IdleFacts(name, exit_us, residency_us, sysfs.get(f"{at}/{state}/disable") == "1")


def _rails(sysfs: Sysfs) -> Iterator[RailFacts]:
    for kind, meter in ((HwmonChip, "ina3221"), (IioChip, "ina3221x")):
        for device in sysfs.list(kind.DRIVER):
            if not re.fullmatch(r"\d+-[0-9a-f]{4}", device):
                continue
            chip = kind(sysfs, device)
            for index, label in chip.labels().items():
                if label not in ("", "NC"):
                    voltage = "in{}_input" if kind is HwmonChip else "in_voltage{}_input"
                    mv = sysfs.get_int(f"{chip.place}/{voltage.format(index)}")
                    shunt = sysfs.get_int(f"{chip.place}/shunt{index}_resistor")
                    volts = None if mv is None else mv / 1000
                    yield RailFacts(label, meter, device, index, volts, shunt)
    for zone in sysfs.list(POWERCAP):
        if (name := sysfs.get(f"{POWERCAP}/{zone}/name")) and re.search(r":\d+$", zone):
            above = sysfs.get(f"{POWERCAP}/{zone.rpartition(':')[0]}/name")
            rail = f"{above}/{name}" if above else name
            yield RailFacts(rail, "rapl", zone, 0, None, None)


def _zones(sysfs: Sysfs) -> Iterator[ZoneFacts]:
    for zone in _numbered(sysfs, "thermal_zone"):
        kind = sysfs.get(f"{zone}/type")
        if kind and kind not in FAKE_ZONES:
            yield ZoneFacts(kind, celsius(sysfs, zone) is not None, dict(trip_points(sysfs, zone)))


def _cooling(sysfs: Sysfs) -> Iterator[CoolingFacts]:
    for device in _numbered(sysfs, "cooling_device"):
        yield CoolingFacts(sysfs.get(f"{device}/type") or "", sysfs.get_int(f"{device}/max_state"))


def _numbered(sysfs: Sysfs, stem: str) -> Iterator[str]:
    names = [n for n in sysfs.list(THERMAL) if re.fullmatch(rf"{stem}\d+", n)]
    yield from (f"{THERMAL}/{name}" for name in sorted(names, key=lambda n: int(n[len(stem) :])))


def _suspend(sysfs: Sysfs) -> SuspendFacts:
    states, mem = (tuple((sysfs.get(path) or "").split()) for path in (POWER_STATE, MEM_SLEEP))
    return SuspendFacts(states, mem, tuple(at.rpartition("/")[2] for at in alarms(sysfs)))
