"""Board profiles: what is known of a board, with its source, and what is not known, as unknown.

A profile is `profiles/<name>.toml`.  The reader is strict: a key that it does not know is an error
that names the nearest one.  Every figure that the power model uses is a `Figure`

    {value = 0.385, error = 0.011, unit = "W/(GHz V2)", source = "where it is published"}

whose error is one standard deviation, or half of the range that is plausible where nothing better
is known.  `unknown` instead of a value becomes None, here as elsewhere: the model leaves the term
out and names it (`governors.power.PowerModel.unpriced`), nothing is filled in.

Frequencies are in Hz here; in the files clusters are in kHz, as cpufreq writes them, the GPU and
memory in Hz, as devfreq does.  A term of the power model belongs to one rail; what a rail draws is
drawn by the rail that it is a part of as well, so that no term is told twice.
"""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from governors.energy import Rail
from governors.errors import ProfileError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

DIRECTORY = Path(__file__).parent / "profiles"
UNKNOWN = "unknown"
TERMS = (
    "idle", "awake", "step", "core_dynamic", "core_busy", "gpu_awake", "gpu_dynamic", "gpu_wake",
    "memory_clock", "memory_traffic", "wake",
)  # fmt: skip
"""Terms of the power model; `governors.power` has the equation."""
FEEDS = ("input", "cpu", "gpu", "cv", "soc", "memory", "system", "radio")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Figure:
    """A published, measured or fitted number."""

    value: float | None
    """None: not known."""
    error: float | None
    """One standard deviation, in the same unit; None where the value is not known."""
    unit: str
    source: str


@dataclass(frozen=True, slots=True)
class Term:
    """A figure of the power model and the rail that it is drawn from."""

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
    """As the knob is called: cpu.policy0."""
    cores: tuple[int, ...]
    core: str
    """Cortex-A57."""
    opps: tuple[Opp, ...]
    """Ascending.  Two points with `continuous`: the ends of a range without a table."""
    continuous: bool
    floor_hz: int
    """Lower limit after boot (nvpmodel's, or the hardware's)."""
    l1d_bytes: int | None
    l2_bytes: int | None
    """Per core, or of the cluster where the cores share it (`l2_shared`)."""
    l2_shared: bool
    l3_bytes: int | None
    """What a core reaches beyond its L2 on the chip, shared."""
    source: str

    @property
    def table_hz(self) -> tuple[int, ...]:
        """The clocks that can be set; empty where every one can."""
        return () if self.continuous else tuple(opp.hz for opp in self.opps)

    @property
    def choices_hz(self) -> tuple[int, ...]:
        """The table, or 17 clocks that cover a range without one."""
        low, high = self.opps[0].hz, self.opps[-1].hz
        return self.table_hz or tuple(low + (high - low) * i // 16 for i in range(17))


@dataclass(frozen=True, slots=True)
class Gpu:
    """The integrated GPU."""

    name: str
    opps: tuple[Opp, ...]
    railgate_delay_ms: float | None
    """How long it stays powered after its last work."""
    source: str


@dataclass(frozen=True, slots=True)
class Memory:
    """DRAM; the bandwidth is the specified peak at the highest clock."""

    bytes: int | None
    table_hz: tuple[int, ...]
    """Clocks of the memory controller (EMC) that were seen."""
    peak_gbytes_per_s: float | None
    source: str


@dataclass(frozen=True, slots=True)
class IdleState:
    """A cpuidle state, shallow to deep."""

    name: str
    exit_us: float | None
    residency_us: float | None
    """Least stay that is worth it."""
    source: str


@dataclass(frozen=True, slots=True)
class Transition:
    """What changing a clock costs."""

    kind: str
    """cpu, gpu or memory."""
    us: float | None
    joules: float | None
    source: str


@dataclass(frozen=True, slots=True)
class Channel:
    """Where a rail is read on the board."""

    rail: str
    device: str
    """`1-0040` on I2C, `intel-rapl:0`."""
    index: int
    """As the driver counts: hwmon from 1, the older iio driver from 0."""
    volts: float | None
    """Nominal bus voltage."""
    shunt_uohm: int | None


@dataclass(frozen=True, slots=True)
class Sensor:
    """The board's own power sensor."""

    meter: str
    """ina3221 (hwmon), ina3221x (iio), rapl or none."""
    refresh_ms: float | None
    lsb_mw: float | None
    """Smallest step of a power reading."""
    noise_mw: float | None
    """Standard deviation of a reading beside its quantisation."""
    channels: tuple[Channel, ...]
    source: str


@dataclass(frozen=True, slots=True)
class Mode:
    """A power mode of nvpmodel: the limits that choosing it writes."""

    id: int
    name: str
    cores: int
    """Online cores, from 0 on."""
    cpu_min_khz: int
    cpu_max_khz: int
    gpu_min_hz: int
    gpu_max_hz: int
    memory_max_hz: int


@dataclass(frozen=True, slots=True)
class Uplink:
    """The radio's or modem's energy; None where it depends on what is plugged in."""

    fixed_joules: float | None
    """Per upload."""
    joules_per_byte: float | None
    tail_joules: float | None
    """Spent after the last byte, until the link sleeps."""
    source: str


@dataclass(frozen=True, slots=True)
class Volts:
    """Shape of the voltage over the clock where no table is public: an assumption.

    V / V(highest) is `floor` up to `knee` of the highest clock and rises linearly to 1 there.
    """

    knee: float
    floor: float
    source: str


@dataclass(frozen=True, slots=True)
class Profile:
    """A board."""

    name: str
    title: str
    soc: str
    release: str
    """Of the system that the tree of the simulated board is laid out as: R36."""
    notes: tuple[str, ...]
    clusters: tuple[Cluster, ...]
    gpu: Gpu | None
    memory: Memory
    idle_states: tuple[IdleState, ...]
    transitions: tuple[Transition, ...]
    rails: tuple[Rail, ...]
    input: tuple[str, ...]
    """Rails that together are all that the model knows of the input, none part of another."""
    input_is: str
    """What that covers, in words."""
    sensor: Sensor
    terms: tuple[Term, ...]
    step_hz: int | None
    """CPU clock from which on the term `step` is drawn."""
    volts: Volts | None
    residual: Figure
    """What the model is off by beside the errors of its figures, W."""
    uplink: Uplink
    modes: tuple[Mode, ...] = ()
    default_mode: int | None = None

    @property
    def core_count(self) -> int:
        """Cores of all clusters."""
        return sum(len(cluster.cores) for cluster in self.clusters)

    def rail(self, name: str) -> Rail:
        """The rail of that name."""
        return next(rail for rail in self.rails if rail.name == name)

    def figures(self, term: str) -> list[Term]:
        """All terms of that name."""
        return [t for t in self.terms if t.name == term]


def names() -> list[str]:
    """The profiles that there are."""
    return sorted(path.stem for path in DIRECTORY.glob("*.toml"))


@cache
def load(name: str) -> Profile:
    """The profile of that name.  Raises ProfileError."""
    if name not in names():
        near = difflib.get_close_matches(name, names(), 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names())}"
        raise ProfileError(f"no board profile {name!r}: {hint}")
    path = DIRECTORY / f"{name}.toml"
    return parse(path.read_text(), path.name)


def parse(text: str, where: str) -> Profile:
    """Read a profile's text.  Raises ProfileError that names `where` and the key."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise ProfileError(f"{where} is not TOML: {problem}") from problem
    profile = _profile(_Table(document, where))
    _check(profile, where)
    return profile


@dataclass
class _Table:
    """A table that is taken apart key by key; what is left over is an error."""

    content: Mapping[str, Any]
    where: str
    asked: set[str] = field(default_factory=set)

    def fail(self, key: str, problem: str) -> ProfileError:
        return ProfileError(f"{self.where}: {key} {problem}")

    def take(self, key: str, kind: type[T], default: T | None = None) -> T:
        self.asked.add(key)
        value = self.content.get(key, default)
        if value is None:
            left = [other for other in self.content if other not in self.asked]
            near = difflib.get_close_matches(key, left, 1, cutoff=0.85)
            if near:
                raise self.fail(near[0], f"is not known; did you mean {key}?")
            raise self.fail(key, "is missing")
        if kind is float and type(value) is int:
            value = float(value)
        if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
            raise self.fail(key, f"is {value!r}, not {_KINDS.get(kind, kind.__name__)}")
        return value

    def maybe(self, key: str, kind: type[T]) -> T | None:
        """None where it is written as unknown."""
        self.asked.add(key)
        return None if self.content.get(key) == UNKNOWN else self.take(key, kind)

    def many(self, key: str, kind: type[T]) -> tuple[T, ...]:
        values: list[Any] = self.take(key, list)
        one = _Table({str(i): v for i, v in enumerate(values)}, f"{self.where}: {key}")
        return tuple(one.take(str(i), kind) for i in range(len(values)))

    def table(self, key: str) -> _Table:
        return _Table(self.take(key, dict), f"{self.where}: {key}")

    def each(self, key: str, read: Callable[[_Table], T]) -> tuple[T, ...]:
        """An array of tables, which may be left out."""
        found = []
        for i, content in enumerate(self.take(key, list, [])):
            if not isinstance(content, dict):
                raise self.fail(key, f"[{i}] is {content!r}, not a table")
            found.append(_Table(content, f"{self.where}: {key}[{i}]").read(read))
        return tuple(found)

    def read(self, read: Callable[[_Table], T]) -> T:
        """Take it apart, and refuse what nobody asked for."""
        result = read(self)
        for key in self.content:
            if key not in self.asked:
                near = difflib.get_close_matches(key, sorted(self.asked), 1)
                hint = f"did you mean {near[0]}?" if near else f"known: {sorted(self.asked)}"
                raise self.fail(key, f"is not known; {hint}")
        return result


_KINDS = {float: "a number", int: "an integer", str: "a text", dict: "a table", list: "a list"}


def _profile(top: _Table) -> Profile:
    def whole(t: _Table) -> Profile:
        fixed = t.take("format", int)
        if fixed != 1:
            raise t.fail("format", f"is {fixed}; this version of edged reads 1")
        power = t.table("power")
        modes = t.table("modes").read(_modes) if "modes" in t.content else ((), None)
        t.asked.add("modes")
        step_hz, volts, residual, terms = power.read(_power)
        gpu = t.table("gpu").read(_gpu) if "gpu" in t.content else None
        t.asked.add("gpu")
        return Profile(
            name=t.take("name", str),
            title=t.take("title", str),
            soc=t.take("soc", str),
            release=t.take("release", str),
            notes=t.many("notes", str),
            clusters=t.each("cluster", _cluster),
            gpu=gpu,
            memory=t.table("memory").read(_memory),
            idle_states=t.each("idle_state", _idle_state),
            transitions=t.each("transition", _transition),
            rails=t.each("rail", _rail),
            input=t.many("input", str),
            input_is=t.take("input_is", str),
            sensor=t.table("sensor").read(_sensor),
            terms=terms,
            step_hz=step_hz,
            volts=volts,
            residual=residual,
            uplink=t.table("uplink").read(_uplink),
            modes=modes[0],
            default_mode=modes[1],
        )

    return top.read(whole)


def _figure(t: _Table) -> Figure:
    value = t.maybe("value", float)
    error = t.maybe("error", float)
    if (value is None) != (error is None):
        raise t.fail("error", "and value: both are known or neither is")
    if value is not None and error is not None and not (math.isfinite(value) and error >= 0):
        raise t.fail("value", f"{value} with error {error} is no figure")
    source = t.take("source", str)
    if not source:
        raise t.fail("source", "is empty: say where the figure is from, or why it is unknown")
    return Figure(value, error, t.take("unit", str), source)


def _power(
    t: _Table,
) -> tuple[int | None, Volts | None, Figure, tuple[Term, ...]]:
    def term(name: str) -> Callable[[_Table], Term]:
        return lambda one: Term(name, one.take("rail", str), _figure(one))

    terms = tuple(found for name in TERMS for found in t.each(name, term(name)))
    step = t.take("step_khz", int) * 1000 if "step_khz" in t.content else None
    volts = t.table("volts").read(_volts) if "volts" in t.content else None
    t.asked |= {"step_khz", "volts"}
    return step, volts, t.table("residual").read(_figure), terms


def _volts(t: _Table) -> Volts:
    return Volts(t.take("knee", float), t.take("floor", float), t.take("source", str))


def _opps(t: _Table, hz_per_unit: int, key: str) -> tuple[Opp, ...]:
    clocks = t.many(key, int)
    if not clocks or list(clocks) != sorted({*clocks}):
        raise t.fail(key, "is empty or does not rise")
    known = t.maybe("volts", list)
    if known is not None and len(known) != len(clocks):
        raise t.fail("volts", f"has {len(known)} entries for {len(clocks)} clocks")
    volts = t.many("volts", float) if known is not None else (None,) * len(clocks)
    return tuple(Opp(hz * hz_per_unit, v) for hz, v in zip(clocks, volts, strict=True))


def _cluster(t: _Table) -> Cluster:
    opps = _opps(t, 1000, "opps_khz")
    return Cluster(
        name=t.take("name", str),
        cores=t.many("cores", int),
        core=t.take("core", str),
        opps=opps,
        continuous=t.take("continuous", bool, False),
        floor_hz=t.take("floor_khz", int, opps[0].hz // 1000) * 1000,
        l1d_bytes=t.maybe("l1d_bytes", int),
        l2_bytes=t.maybe("l2_bytes", int),
        l2_shared=t.take("l2_shared", bool, False),
        l3_bytes=t.maybe("l3_bytes", int),
        source=t.take("source", str),
    )


def _gpu(t: _Table) -> Gpu:
    opps = _opps(t, 1, "opps_hz")
    return Gpu(
        t.take("name", str), opps, t.maybe("railgate_delay_ms", float), t.take("source", str)
    )


def _memory(t: _Table) -> Memory:
    return Memory(
        t.maybe("bytes", int),
        t.many("table_hz", int) if t.maybe("table_hz", list) else (),
        t.maybe("peak_gbytes_per_s", float),
        t.take("source", str),
    )


def _idle_state(t: _Table) -> IdleState:
    exit_us, residency_us = t.maybe("exit_us", float), t.maybe("residency_us", float)
    return IdleState(t.take("name", str), exit_us, residency_us, t.take("source", str))


def _transition(t: _Table) -> Transition:
    us, joules = t.maybe("us", float), t.maybe("joules", float)
    return Transition(t.take("kind", str), us, joules, t.take("source", str))


def _rail(t: _Table) -> Rail:
    part_of = t.take("part_of", str) if "part_of" in t.content else None
    t.asked.add("part_of")
    return Rail(t.take("name", str), t.many("feeds", str), part_of)


def _sensor(t: _Table) -> Sensor:
    return Sensor(
        t.take("meter", str),
        t.maybe("refresh_ms", float),
        t.maybe("lsb_mw", float),
        t.maybe("noise_mw", float),
        t.each("channel", _channel),
        t.take("source", str),
    )


def _channel(t: _Table) -> Channel:
    return Channel(
        t.take("rail", str),
        t.take("device", str),
        t.take("index", int),
        t.maybe("volts", float),
        t.maybe("shunt_uohm", int),
    )


def _uplink(t: _Table) -> Uplink:
    return Uplink(
        t.maybe("fixed_joules", float),
        t.maybe("joules_per_byte", float),
        t.maybe("tail_joules", float),
        t.take("source", str),
    )


def _modes(t: _Table) -> tuple[tuple[Mode, ...], int | None]:
    def mode(one: _Table) -> Mode:
        numbers = (
            "cores", "cpu_min_khz", "cpu_max_khz", "gpu_min_hz", "gpu_max_hz", "memory_max_hz",
        )  # fmt: skip
        values = [one.take(key, int) for key in numbers]
        return Mode(one.take("id", int), one.take("name", str), *values)

    modes = t.each("mode", mode)
    t.take("source", str)
    return modes, t.take("default", int)


def _check(profile: Profile, where: str) -> None:
    """What the reader cannot see in one table alone."""
    rails = [rail.name for rail in profile.rails]
    named = [("input", name) for name in profile.input]
    named += [("rail: part_of", r.part_of) for r in profile.rails if r.part_of is not None]
    named += [(f"power: {t.name}: rail", t.rail) for t in profile.terms]
    named += [("sensor: channel: rail", c.rail) for c in profile.sensor.channels]
    for key, name in named:
        if name not in rails:
            raise ProfileError(f"{where}: {key} is {name!r}; the rails are {', '.join(rails)}")
    for rail in profile.rails:
        for part in rail.feeds:
            if part not in FEEDS:
                raise ProfileError(f"{where}: rail {rail.name} feeds {part!r}, not one of {FEEDS}")
        if rail.part_of is not None and rail.name in profile.input:
            raise ProfileError(f"{where}: input counts {rail.name} and {rail.part_of}, its whole")
    if profile.step_hz is None and profile.figures("step"):
        raise ProfileError(f"{where}: power: step needs step_khz, the clock that it begins at")
    if profile.figures("core_dynamic") and profile.volts is None:
        for cluster in profile.clusters:
            if any(opp.volts is None for opp in cluster.opps):
                raise ProfileError(f"{where}: {cluster.name} has no voltages and power no volts")
