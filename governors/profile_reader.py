"""Reads board profiles: `profiles/<name>.toml` into `governors.profile.BoardProfile`.

The Structs below are the tables of the file where they differ from `governors.profile`.  The reader
is strict (`governors.documents`).  A value written as `unknown` becomes None.
"""

from __future__ import annotations

import math
import sys
from functools import cache
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, defstruct

from governors.documents import NotBlank, convert
from governors.energy import Feed, Rail
from governors.errors import ProfileError
from governors.profile import (
    TERMS,
    BoardProfile,
    Cluster,
    Dram,
    Figure,
    Gpu,
    IdleState,
    Mode,
    Opp,
    Sensor,
    SuspendFigures,
    Term,
    ThermalFigures,
    Transition,
    TreeFacts,
    UplinkFigures,
    Volts,
)
from governors.suggestions import did_you_mean

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]


DIRECTORY = Path(__file__).parent / "profiles"
UNKNOWN = "unknown"
"""Stands for a value that is not public."""


def names() -> list[str]:
    """Names of all profiles."""
    return sorted(path.stem for path in DIRECTORY.glob("*.toml"))


@cache
def load(name: str) -> BoardProfile:
    """The profile of that name.  Raises ProfileError."""
    if name not in names():
        raise ProfileError(f"no board profile {name!r}: {did_you_mean(name, names())}")
    path = DIRECTORY / f"{name}.toml"
    return parse(path.read_text(), path.name)


def parse(text: str, where: str) -> BoardProfile:
    """Read a profile's text.  Raises ProfileError that names `where` and the key."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise ProfileError(f"{where} is not TOML: {problem}") from problem
    version = document.get("format")
    if version != 1:
        raise ProfileError(f"{where}: format is {version}; this version of edged reads 1")
    profile = _profile(convert(_known(document), _Document, f"{where}: ", ProfileError))
    _check(profile, where)
    return profile


class _Figure(Struct, frozen=True, forbid_unknown_fields=True):
    value: float | None
    error: float | None
    unit: str
    source: NotBlank

    def __post_init__(self) -> None:
        if (self.value is None) != (self.error is None):
            raise ValueError("error and value: both are known or neither is")
        if self.value is None or self.error is None:
            return
        if not (math.isfinite(self.value) and self.error >= 0):
            raise ValueError(f"value {self.value} with error {self.error} is no figure")

    @property
    def figure(self) -> Figure:
        return Figure(self.value, self.error, self.unit, self.source)


class _Term(_Figure, frozen=True, kw_only=True):
    rail: str


class _Cluster(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: str
    cores: tuple[int, ...]
    core: str
    opps_khz: tuple[int, ...]
    volts: tuple[float, ...] | None
    continuous: bool = False
    floor_khz: int | None = None
    l1d_bytes: int | None
    l2_bytes: int | None
    l2_shared: bool = False
    l3_bytes: int | None
    source: NotBlank

    def __post_init__(self) -> None:
        _check_opps(self.opps_khz, self.volts)

    @property
    def cluster(self) -> Cluster:
        floor_khz = self.opps_khz[0] if self.floor_khz is None else self.floor_khz
        return Cluster(
            self.name, self.cores, self.core, _opps(self.opps_khz, self.volts, 1000),
            self.continuous, floor_khz * 1000, self.l1d_bytes, self.l2_bytes, self.l2_shared,
            self.l3_bytes, self.source,
        )  # fmt: skip


class _Gpu(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    opps_hz: tuple[int, ...]
    volts: tuple[float, ...] | None
    multiprocessors: int | None
    railgate_delay_ms: float | None
    source: NotBlank

    def __post_init__(self) -> None:
        _check_opps(self.opps_hz, self.volts)

    @property
    def gpu(self) -> Gpu:
        opps = _opps(self.opps_hz, self.volts, 1)
        return Gpu(self.name, opps, self.multiprocessors, self.railgate_delay_ms, self.source)


class _Dram(Struct, frozen=True, forbid_unknown_fields=True):
    bytes: int | None
    table_hz: tuple[int, ...] | None
    peak_gbytes_per_s: float | None
    source: NotBlank


class _Rail(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    feeds: tuple[Feed, ...]
    part_of: str | None = None


class _Suspend(Struct, frozen=True, forbid_unknown_fields=True):
    watts: _Figure
    enter: _Figure
    leave: _Figure

    @property
    def figures(self) -> SuspendFigures:
        return SuspendFigures(self.watts.figure, self.enter.figure, self.leave.figure)


class _Modes(Struct, frozen=True, forbid_unknown_fields=True):
    source: NotBlank
    default: int
    mode: tuple[Mode, ...] = ()


_Power: Any = defstruct(
    "_Power",
    [
        ("residual", _Figure),
        ("step_khz", int | None, None),
        ("volts", Volts | None, None),
        *((term, tuple[_Term, ...], ()) for term in TERMS),
    ],
    frozen=True,
    forbid_unknown_fields=True,
)


_Part = Literal["clocks", "rails", "gpu", "thermal", "suspend", "package"]
"""`governors.profile.PARTS`."""


class _Document(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    format: Literal[1]
    name: str
    title: str
    soc: str
    release: str
    notes: tuple[str, ...]
    cluster: tuple[_Cluster, ...] = ()
    gpu: _Gpu | None = None
    memory: _Dram
    idle_state: tuple[IdleState, ...] = ()
    transition: tuple[Transition, ...] = ()
    rail: tuple[_Rail, ...] = ()
    input: tuple[str, ...]
    input_is: str
    sensor: Sensor
    power: _Power
    uplink: UplinkFigures
    tree: TreeFacts
    thermal: ThermalFigures | None = None
    modes: _Modes | None = None
    measured: dict[
        Literal["clocks", "rails", "gpu", "thermal", "suspend", "package"], NotBlank
    ] = {}
    suspend: _Suspend | None = None


def _known(value: Any) -> Any:
    """A copy of a document with None for each `unknown`."""
    if isinstance(value, dict):
        return {key: _known(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_known(inner) for inner in value]
    return None if value == UNKNOWN else value


def _check_opps(clocks: tuple[int, ...], volts: tuple[float, ...] | None) -> None:
    if not clocks or list(clocks) != sorted({*clocks}):
        raise ValueError("the list of clocks is empty or does not rise")
    if volts is not None and len(volts) != len(clocks):
        raise ValueError(f"volts has {len(volts)} entries for {len(clocks)} clocks")


def _opps(
    clocks: tuple[int, ...], volts: tuple[float, ...] | None, hz_per_unit: int
) -> tuple[Opp, ...]:
    pairs = zip(clocks, volts or (None,) * len(clocks), strict=True)
    return tuple(Opp(clock * hz_per_unit, v) for clock, v in pairs)


def _profile(d: _Document) -> BoardProfile:
    terms = ((term, one) for term in TERMS for one in getattr(d.power, term))
    step_khz = d.power.step_khz
    memory = d.memory
    return BoardProfile(
        name=d.name,
        title=d.title,
        soc=d.soc,
        release=d.release,
        notes=d.notes,
        clusters=tuple(one.cluster for one in d.cluster),
        gpu=None if d.gpu is None else d.gpu.gpu,
        memory=Dram(memory.bytes, memory.table_hz or (), memory.peak_gbytes_per_s, memory.source),
        idle_states=d.idle_state,
        transitions=d.transition,
        rails=tuple(Rail(r.name, r.feeds, r.part_of) for r in d.rail),
        input=d.input,
        input_is=d.input_is,
        sensor=d.sensor,
        terms=tuple(Term(term, one.rail, one.figure) for term, one in terms),
        step_hz=None if step_khz is None else step_khz * 1000,
        volts=d.power.volts,
        residual=d.power.residual.figure,
        uplink=d.uplink,
        tree=d.tree,
        thermal=d.thermal,
        modes=() if d.modes is None else d.modes.mode,
        default_mode=None if d.modes is None else d.modes.default,
        measured=tuple(d.measured.items()),
        suspend=None if d.suspend is None else d.suspend.figures,
    )


def _check(profile: BoardProfile, where: str) -> None:
    """Raise ProfileError where two tables contradict each other."""
    rails = [rail.name for rail in profile.rails]
    named = [("input", name) for name in profile.input]
    named += [("rail: part_of", r.part_of) for r in profile.rails if r.part_of is not None]
    named += [(f"power: {t.name}: rail", t.rail) for t in profile.terms]
    named += [("sensor: channel: rail", c.rail) for c in profile.sensor.channels]
    for key, name in named:
        if name not in rails:
            raise ProfileError(f"{where}: {key} is {name!r}; the rails are {', '.join(rails)}")
    for rail in profile.rails:
        if rail.part_of is not None and rail.name in profile.input:
            raise ProfileError(f"{where}: input counts {rail.name} and {rail.part_of}, its whole")
    for kind in ("passive", "hot"):
        trip = profile.tree.trips_celsius.get(kind)
        if trip is not None and profile.thermal and trip != profile.thermal.throttle.celsius:
            throttles = profile.thermal.throttle.celsius
            raise ProfileError(
                f"{where}: thermal: throttle: celsius is {throttles:g}, trip point {kind} {trip:g}"
            )
    if profile.step_hz is None and profile.figures("step"):
        raise ProfileError(f"{where}: power: step needs step_khz, the clock that it begins at")
    if profile.figures("core_dynamic") and profile.volts is None:
        for cluster in profile.clusters:
            if any(opp.volts is None for opp in cluster.opps):
                raise ProfileError(f"{where}: {cluster.name} has no voltages and power no volts")
