"""Board profiles: known figures of a board with their sources, and unknown ones as unknown.

A profile is `profiles/<name>.toml`, read by `governors.profile_reader`. Every figure of the power
model is a `Figure`

    {value = 0.385, error = 0.011, unit = "W/(GHz V2)", source = "where it is published"}

whose error is one standard deviation, or half of the plausible range where nothing better is known.
`unknown` instead of a value becomes None: the model leaves the term out and reports it
(`governors.power.PowerModel.unpriced`); no default is filled in.

Frequencies here are in Hz.  In the files clusters are in kHz, as in cpufreq, GPU and memory in Hz,
as in devfreq.  A term of the power model belongs to one rail.  The rail that includes it draws the
term too, so the file states it once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from msgspec import Struct, field

from governors.documents import NotBlank
from governors.energy import Rail

TERMS = (
    "idle", "awake", "step", "core_dynamic", "core_busy", "gpu_awake", "gpu_dynamic", "gpu_wake",
    "memory_clock", "memory_traffic", "wake",
)  # fmt: skip
"""Terms of the power model; `governors.power` has the equation."""
PARTS = ("clocks", "rails", "gpu", "thermal", "suspend", "package")
"""Parts of a board whose state docs/boards.md lists."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A published, measured or fitted number."""

    value: float | None
    """None: unknown."""
    error: float | None
    """One standard deviation, in the same unit; None where the value is unknown."""
    unit: str
    source: str


@dataclass(frozen=True, slots=True)
class Term:
    """A figure of the power model and its rail."""

    name: str
    rail: str
    figure: Figure


@dataclass(frozen=True, slots=True)
class Opp:
    """An operating point."""

    hz: int
    volts: float | None
    """None: not public."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Cores that share a clock: one cpufreq policy."""

    name: str
    """Name of its knob: cpu.policy0."""
    cores: tuple[int, ...]
    core: str
    """Cortex-A57."""
    opps: tuple[Opp, ...]
    """Ascending.  With `continuous`, two points: the ends of a range without a table."""
    continuous: bool
    floor_hz: int
    """Lower limit after boot (nvpmodel's, or the hardware's)."""
    l1d_bytes: int | None
    l2_bytes: int | None
    """Per core, or of the cluster where the cores share it (`l2_shared`)."""
    l2_shared: bool
    l3_bytes: int | None
    """Shared cache beyond the L2, on the chip."""
    source: str

    @property
    def table_hz(self) -> tuple[int, ...]:
        """Clocks that can be set; empty where the range is continuous."""
        return () if self.continuous else tuple(opp.hz for opp in self.opps)

    @property
    def choices_hz(self) -> tuple[int, ...]:
        """The table, or 17 clocks across a range without one."""
        low, high = self.opps[0].hz, self.opps[-1].hz
        return self.table_hz or tuple(low + (high - low) * i // 16 for i in range(17))


@dataclass(frozen=True, slots=True)
class Gpu:
    """The integrated GPU."""

    name: str
    opps: tuple[Opp, ...]
    multiprocessors: int | None
    """Units that run threads in parallel; None: unknown."""
    railgate_delay_ms: float | None
    """Time that it stays powered after its last work."""
    source: str


@dataclass(frozen=True, slots=True)
class Dram:
    """Memory; the bandwidth is the specified peak at the highest clock."""

    bytes: int | None
    table_hz: tuple[int, ...]
    """Observed clocks of the memory controller (EMC)."""
    peak_gbytes_per_s: float | None
    source: str


class IdleState(Struct, frozen=True, forbid_unknown_fields=True):
    """A cpuidle state; profiles list them from shallow to deep."""

    name: str
    exit_us: float | None
    residency_us: float | None
    """Shortest stay that saves energy."""
    source: NotBlank


class Transition(Struct, frozen=True, forbid_unknown_fields=True):
    """Cost of changing a clock."""

    kind: str
    """cpu, gpu or memory."""
    us: float | None
    joules: float | None
    source: NotBlank


class Channel(Struct, frozen=True, forbid_unknown_fields=True):
    """Position of a rail's sensor on the board."""

    rail: str
    device: str
    """`1-0040` on I2C, `intel-rapl:0`."""
    index: int
    """As the driver counts: hwmon from 1, the older iio driver from 0."""
    volts: float | None
    """Nominal bus voltage."""
    shunt_uohm: int | None


class Sensor(Struct, frozen=True, forbid_unknown_fields=True):
    """The board's own power sensor."""

    meter: str
    """ina3221 (hwmon), ina3221x (iio), rapl or none."""
    refresh_ms: float | None
    lsb_mw: float | None
    """Smallest step of a power reading."""
    noise_mw: float | None
    """Standard deviation of a reading, without its quantisation."""
    source: NotBlank
    channels: tuple[Channel, ...] = field(name="channel", default=())


class Mode(Struct, frozen=True, forbid_unknown_fields=True):
    """A power mode of nvpmodel: the limits that it writes."""

    id: int
    name: str
    cores: int
    """Online cores, from core 0."""
    cpu_min_khz: int
    cpu_max_khz: int
    gpu_min_hz: int
    gpu_max_hz: int
    memory_max_hz: int


class UplinkFigures(Struct, frozen=True, forbid_unknown_fields=True):
    """Energy of the radio or modem; None where it depends on the device."""

    fixed_joules: float | None
    """Per upload."""
    joules_per_byte: float | None
    tail_joules: float | None
    """After the last byte, until the link sleeps."""
    source: NotBlank


@dataclass(frozen=True, slots=True)
class SuspendFigures:
    """What a suspend to memory draws and takes."""

    watts: Figure
    """Of the input, suspended."""
    enter_s: Figure
    leave_s: Figure
    """From the alarm until processes run again."""


class TreeFacts(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Contents of the board's kernel files, for the tree of a simulated board."""

    model: str
    """`/proc/device-tree/model`; without a device tree the product name of DMI."""
    compatible: tuple[str, ...]
    """`/proc/device-tree/compatible`; empty: the board has no device tree."""
    cpufreq_driver: str
    thermal_zones: tuple[str, ...]
    trips_celsius: dict[str, float] = field(default_factory=dict)
    """Trip points of every zone, by kind (passive, critical); empty where none is public."""
    memory_clock: bool = False
    """Whether the kernel shows the memory's clock (BPMP debugfs) and its cap."""


class ThermalNode(Struct, frozen=True, forbid_unknown_fields=True):
    """A node of the thermal ladder (`governors.thermal`), from the chip outwards."""

    name: str
    kelvin_per_watt: float
    """To the next node; of the last one to the air."""
    joules_per_kelvin: float
    source: NotBlank

    def __post_init__(self) -> None:
        if not (0 < self.kelvin_per_watt < math.inf and 0 < self.joules_per_kelvin < math.inf):
            raise ValueError(f"node {self.name}: resistance and capacity are above 0")


class ThrottleFigures(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What kernel, firmware or hardware does to the CPU's clocks when the chip is hot."""

    kind: Literal["step_wise", "pulse_skipping", "progressive"]
    """step_wise: Linux' governor, one clock lower or higher at each look; pulse_skipping: NVIDIA's
    soctherm, a share of all pulses at once; progressive: from the highest clock at `celsius` to the
    lowest at `full_celsius`."""
    celsius: float
    hysteresis_celsius: float = 0.0
    """How far below `celsius` pulses are passed again."""
    look_ms: float
    """Interval of looking at the temperature."""
    clock_share: float = 1.0
    """pulse_skipping: share of the pulses that is left."""
    full_celsius: float = 0.0
    """progressive: temperature from which on the clock is the lowest."""
    source: NotBlank


class ThermalFigures(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Thermal model of the board in its box."""

    throttle: ThrottleFigures
    nodes: tuple[ThermalNode, ...] = field(name="node")

    def __post_init__(self) -> None:
        if not self.nodes:
            raise ValueError("there is no node")


class Volts(Struct, frozen=True, forbid_unknown_fields=True):
    """Assumed shape of the voltage over the clock, where no table is public.

    V / V(highest) is `floor` up to `knee` of the highest clock and rises linearly to 1 there.
    """

    knee: float
    floor: float
    source: NotBlank


@dataclass(frozen=True, slots=True)
class BoardProfile:
    """Profile of a board."""

    name: str
    title: str
    soc: str
    release: str
    """Release whose file layout the simulated board has: R36."""
    notes: tuple[str, ...]
    clusters: tuple[Cluster, ...]
    gpu: Gpu | None
    memory: Dram
    idle_states: tuple[IdleState, ...]
    transitions: tuple[Transition, ...]
    rails: tuple[Rail, ...]
    input: tuple[str, ...]
    """Rails that together are the known input; none is part of another."""
    input_is: str
    """What the input covers, in words."""
    sensor: Sensor
    terms: tuple[Term, ...]
    step_hz: int | None
    """CPU clock from which on the term `step` applies."""
    volts: Volts | None
    residual: Figure
    """Error of the model besides the errors of its figures, W."""
    uplink: UplinkFigures
    tree: TreeFacts
    thermal: ThermalFigures | None = None
    """None: nothing is known or assumed of its heat."""
    modes: tuple[Mode, ...] = ()
    default_mode: int | None = None
    measured: tuple[tuple[str, str], ...] = ()
    """Part (PARTS), and the source that has seen it on a real board."""
    suspend: SuspendFigures | None = None
    """None: it is not known whether the board can suspend."""

    @property
    def core_count(self) -> int:
        """Cores of all clusters."""
        return sum(len(cluster.cores) for cluster in self.clusters)

    @property
    def gpu_top_hz(self) -> int:
        """The GPU's highest clock; 0 without a GPU."""
        return self.gpu.opps[-1].hz if self.gpu is not None else 0

    def rail(self, name: str) -> Rail:
        """The rail of that name."""
        return next(rail for rail in self.rails if rail.name == name)

    def figures(self, term: str) -> list[Term]:
        """All terms of that name."""
        return [t for t in self.terms if t.name == term]
