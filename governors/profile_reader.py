"""Reads board profiles: `profiles/<name>.toml` into `governors.profile.BoardProfile`.

The reader is strict (`governors.tables`): a key that it does not know is an error that names the
nearest one.  `unknown` instead of a value becomes None.
"""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

from governors.energy import Rail
from governors.errors import ProfileError
from governors.profile import (
    FEEDS,
    TERMS,
    BoardProfile,
    Channel,
    Cluster,
    Dram,
    Figure,
    Gpu,
    IdleState,
    Mode,
    Opp,
    Sensor,
    Term,
    Transition,
    UplinkFigures,
    Volts,
)
from governors.tables import Table

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]


DIRECTORY = Path(__file__).parent / "profiles"


def names() -> list[str]:
    """The profiles that there are."""
    return sorted(path.stem for path in DIRECTORY.glob("*.toml"))


@cache
def load(name: str) -> BoardProfile:
    """The profile of that name.  Raises ProfileError."""
    if name not in names():
        near = difflib.get_close_matches(name, names(), 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names())}"
        raise ProfileError(f"no board profile {name!r}: {hint}")
    path = DIRECTORY / f"{name}.toml"
    return parse(path.read_text(), path.name)


def parse(text: str, where: str) -> BoardProfile:
    """Read a profile's text.  Raises ProfileError that names `where` and the key."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise ProfileError(f"{where} is not TOML: {problem}") from problem
    profile = Table(document, where).read(_profile)
    _check(profile, where)
    return profile


def _profile(t: Table) -> BoardProfile:
    fixed = t.take("format", int)
    if fixed != 1:
        raise t.fail("format", f"is {fixed}; this version of edged reads 1")
    power = t.table("power")
    modes = t.table("modes").read(_modes) if "modes" in t.content else ((), None)
    t.asked.add("modes")
    step_hz, volts, residual, terms = power.read(_power)
    gpu = t.table("gpu").read(_gpu) if "gpu" in t.content else None
    t.asked.add("gpu")
    return BoardProfile(
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


def _figure(t: Table) -> Figure:
    value = t.maybe("value", float)
    error = t.maybe("error", float)
    if (value is None) != (error is None):
        raise t.fail("error", "and value: both are known or neither is")
    if value is not None and error is not None and not (math.isfinite(value) and error >= 0):
        raise t.fail("value", f"{value} with error {error} is no figure")
    return Figure(value, error, t.take("unit", str), t.source())


def _power(
    t: Table,
) -> tuple[int | None, Volts | None, Figure, tuple[Term, ...]]:
    def term(name: str) -> Callable[[Table], Term]:
        return lambda one: Term(name, one.take("rail", str), _figure(one))

    terms = tuple(found for name in TERMS for found in t.each(name, term(name)))
    step = t.take("step_khz", int) * 1000 if "step_khz" in t.content else None
    volts = t.table("volts").read(_volts) if "volts" in t.content else None
    t.asked |= {"step_khz", "volts"}
    return step, volts, t.table("residual").read(_figure), terms


def _volts(t: Table) -> Volts:
    return Volts(t.take("knee", float), t.take("floor", float), t.source())


def _opps(t: Table, hz_per_unit: int, key: str) -> tuple[Opp, ...]:
    clocks = t.many(key, int)
    if not clocks or list(clocks) != sorted({*clocks}):
        raise t.fail(key, "is empty or does not rise")
    known = t.maybe("volts", list)
    if known is not None and len(known) != len(clocks):
        raise t.fail("volts", f"has {len(known)} entries for {len(clocks)} clocks")
    volts = t.many("volts", float) if known is not None else (None,) * len(clocks)
    return tuple(Opp(hz * hz_per_unit, v) for hz, v in zip(clocks, volts, strict=True))


def _cluster(t: Table) -> Cluster:
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
        source=t.source(),
    )


def _gpu(t: Table) -> Gpu:
    opps = _opps(t, 1, "opps_hz")
    return Gpu(
        t.take("name", str), opps, t.maybe("multiprocessors", int),
        t.maybe("railgate_delay_ms", float), t.source(),
    )  # fmt: skip


def _memory(t: Table) -> Dram:
    return Dram(
        t.maybe("bytes", int),
        t.many("table_hz", int) if t.maybe("table_hz", list) else (),
        t.maybe("peak_gbytes_per_s", float),
        t.source(),
    )


def _idle_state(t: Table) -> IdleState:
    exit_us, residency_us = t.maybe("exit_us", float), t.maybe("residency_us", float)
    return IdleState(t.take("name", str), exit_us, residency_us, t.source())


def _transition(t: Table) -> Transition:
    us, joules = t.maybe("us", float), t.maybe("joules", float)
    return Transition(t.take("kind", str), us, joules, t.source())


def _rail(t: Table) -> Rail:
    part_of = t.take("part_of", str) if "part_of" in t.content else None
    t.asked.add("part_of")
    return Rail(t.take("name", str), t.many("feeds", str), part_of)


def _sensor(t: Table) -> Sensor:
    return Sensor(
        t.take("meter", str),
        t.maybe("refresh_ms", float),
        t.maybe("lsb_mw", float),
        t.maybe("noise_mw", float),
        t.each("channel", _channel),
        t.source(),
    )


def _channel(t: Table) -> Channel:
    return Channel(
        t.take("rail", str),
        t.take("device", str),
        t.take("index", int),
        t.maybe("volts", float),
        t.maybe("shunt_uohm", int),
    )


def _uplink(t: Table) -> UplinkFigures:
    return UplinkFigures(
        t.maybe("fixed_joules", float),
        t.maybe("joules_per_byte", float),
        t.maybe("tail_joules", float),
        t.source(),
    )


def _modes(t: Table) -> tuple[tuple[Mode, ...], int | None]:
    def mode(one: Table) -> Mode:
        numbers = (
            "cores", "cpu_min_khz", "cpu_max_khz", "gpu_min_hz", "gpu_max_hz", "memory_max_hz",
        )  # fmt: skip
        values = [one.take(key, int) for key in numbers]
        return Mode(one.take("id", int), one.take("name", str), *values)

    modes = t.each("mode", mode)
    t.source()
    return modes, t.take("default", int)


def _check(profile: BoardProfile, where: str) -> None:
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
