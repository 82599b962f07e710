"""What a board's kernel shows, as one anonymous document (`edged doctor --report`).

    report = board_facts.examine(sysfs, "0.1.0", simulated=False)
    report.encode()                       JSON
    read(data)                            the same, checked; raises ReportError

The Structs are the format; docs/boards.md lists their fields.  Each text has passed
`governors.anonymity`.  Addresses in it are those of chips on the board's own buses.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from governors.errors import ProfileError

REPORT_BYTES_MAX = 1 << 20
"""Of a report that is read."""


class ReportError(ProfileError):
    """A file is no report."""


class BoardFacts(Struct, frozen=True, forbid_unknown_fields=True):
    """Which board it is."""

    name: str
    """As edged detects it, or `unknown`."""
    model: str
    compatible: tuple[str, ...]
    """Names of carrier, module and chip in the device tree."""
    soc: str
    release: str
    """Of the vendor's system: R36.4.3."""
    profile: str | None
    simulated: bool


class SystemFacts(Struct, frozen=True, forbid_unknown_fields=True):
    """What runs on it."""

    kernel: str
    os: str
    """Distribution and version: `ubuntu 22.04`."""
    machine: str
    """aarch64, x86_64; empty where the tree does not say."""
    python: str
    core: str
    """Name of the processor."""
    cores: int
    memory_gib: float | None
    """Rounded to a half."""


class ClockFacts(Struct, frozen=True, forbid_unknown_fields=True):
    """A clock that can be limited, or at least read."""

    name: str
    """cpu.policy0, gpu, emc."""
    kind: str
    driver: str
    governors: tuple[str, ...]
    cores: tuple[int, ...]
    table_hz: tuple[int, ...]
    """Empty where any clock of the range may be set."""
    min_hz: int
    max_hz: int
    floor_hz: int | None
    """Lower limit now: nvpmodel's after boot."""
    change_us: float | None
    """What the driver states for a change."""


class IdleFacts(Struct, frozen=True, forbid_unknown_fields=True):
    """An idle state of core 0."""

    name: str
    exit_us: float | None
    residency_us: float | None
    disabled: bool


class RailFacts(Struct, frozen=True, forbid_unknown_fields=True):
    """A channel of a power sensor."""

    rail: str
    meter: str
    device: str
    """Position on the board: bus and address of the chip, or RAPL's zone."""
    index: int
    volts: float | None
    """Now."""
    shunt_uohm: int | None


class ZoneFacts(Struct, frozen=True, forbid_unknown_fields=True):
    """A thermal zone."""

    name: str
    readable: bool
    trips_celsius: dict[str, float]


class CoolingFacts(Struct, frozen=True, forbid_unknown_fields=True):
    """A cooling device of the kernel."""

    kind: str
    steps: int | None


class SuspendFacts(Struct, frozen=True, forbid_unknown_fields=True):
    """What the kernel offers for sleep between beats."""

    states: tuple[str, ...]
    """`/sys/power/state`."""
    mem_sleep: tuple[str, ...]
    """`/sys/power/mem_sleep`; the chosen one in brackets."""
    clocks: tuple[str, ...]
    """Real-time clocks with an alarm that wakes."""


class MatchFacts(Struct, frozen=True, forbid_unknown_fields=True):
    """A part of the profile beside the board."""

    part: str
    state: Literal["same", "differs", "absent", "new"]
    """`absent`: in the profile only; `new`: on the board only."""
    detail: str


class CheckFacts(Struct, frozen=True, forbid_unknown_fields=True):
    """Outcome of a check of `edged doctor`, without its text, which may hold paths."""

    area: str
    name: str
    state: str


class BoardReport(Struct, frozen=True, forbid_unknown_fields=True):
    """All of it."""

    format: Literal[1]
    edged: str
    """Version."""
    board: BoardFacts
    system: SystemFacts
    clocks: tuple[ClockFacts, ...]
    railgate_delay_ms: int | None
    """Of the integrated GPU."""
    idle_states: tuple[IdleFacts, ...]
    rails: tuple[RailFacts, ...]
    meters: tuple[str, ...]
    """Names of the meters that edged would read."""
    zones: tuple[ZoneFacts, ...]
    cooling: tuple[CoolingFacts, ...]
    suspend: SuspendFacts
    power_mode: str
    """nvpmodel's state."""
    matches: tuple[MatchFacts, ...] = ()
    checks: tuple[CheckFacts, ...] = ()

    def encode(self) -> bytes:
        """As indented JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"


def read(data: bytes, where: str = "report") -> BoardReport:
    """A report from JSON.  Raises ReportError."""
    if len(data) > REPORT_BYTES_MAX:
        raise ReportError(f"{where}: {len(data)} bytes are no report: at most {REPORT_BYTES_MAX}")
    try:
        return msgspec.json.decode(data, type=BoardReport)
    except msgspec.DecodeError as problem:
        raise ReportError(f"{where} is no report of `edged doctor --report`: {problem}") from None
