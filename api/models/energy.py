"""The board, who decides on its clocks, and what it all takes."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from api.models.base import Answer, Asked

PROVENANCE = Field(description="measured, modelled or simulated", examples=["measured"])


class Clock(Answer):
    """A clock domain: what it runs at, and the limits that stand."""

    name: str = Field(examples=["cpu.policy0"])
    hz: int | None = Field(None, examples=[729600000])
    min_hz: int | None = None
    max_hz: int | None = None


class Knob(Answer):
    """A clock domain whose limits may be set."""

    name: str = Field(examples=["cpu.policy0"])
    kind: str = Field(examples=["cpu"])
    floor_hz: int = Field(description="The lowest that the hardware has", examples=[115200000])
    ceiling_hz: int = Field(description="The highest", examples=[1510400000])
    steps_hz: list[int] = Field(
        default_factory=list, description="What it can run at; empty: anything between"
    )


class Switch(Answer):
    """A sleep that may be had, where `energy.allow` asks for it."""

    name: str = Field(examples=["core.3"])
    kind: str = Field(examples=["core"])
    values: list[str] = Field(examples=[["0", "1"]])


class Meter(Answer):
    """A sensor that is read."""

    name: str = Field(examples=["ina3221"])
    interval_us: int | None = None
    cost_us: float | None = Field(None, description="CPU time of a read and its booking")
    reads: int | None = None


class Rail(Answer):
    """A supply rail as a meter tells it; energy since `since_us` of the monotonic clock."""

    meter: str = Field(examples=["ina3221"])
    rail: str = Field(examples=["VDD_IN"])
    part_of: str | None = Field(None, description="The rail that includes this one")
    feeds: list[str] = Field(default_factory=list, examples=[["cpu", "gpu", "cv"]])
    watts: float | None = None
    joules: float | None = None
    provenance: str = PROVENANCE
    since_us: int | None = None
    until_us: int | None = None
    gap_us: int | None = Field(None, description="Time within that nobody read")
    problem: str = ""


class Writer(Answer):
    """Who may write limits."""

    name: str = ""
    why: str = ""


class Board(Answer):
    """What was detected, what may be read and what set."""

    present: bool = Field(description="false: the daemon watches no board")
    name: str | None = Field(None, examples=["orin-nano"])
    model: str | None = None
    simulated: bool | None = None
    profile: str | None = None
    writer: Writer = Writer()
    clocks: list[Clock] = Field(default_factory=list, description="As they stand now")
    knobs: list[Knob] = Field(default_factory=list, description="What may be set, by `writer`")
    switches: list[Switch] = Field(default_factory=list)
    meters: list[Meter] = Field(default_factory=list)
    missing: list[str] = Field(default_factory=list, description="What cannot be read, and why")


class Opp(Answer):
    """Time at an operating point."""

    hz: int
    seconds: float


class Residency(Answer):
    """Time of a clock domain at each of its operating points, since the daemon began."""

    name: str = Field(examples=["cpu.policy0"])
    how: str = Field(
        description="counted by the kernel, or seen: a clock stands for the time since the last"
        " look at it", examples=["counted"],
    )  # fmt: skip
    at: list[Opp]


class Choice(Answer):
    """A policy that somebody has chosen for the daemon."""

    policy: str = Field(examples=["race_to_idle"])
    settings: dict[str, Any] = Field(default_factory=dict, examples=[{"watts": 5.0}])
    origin: str = Field(
        description="command (kept over restarts), centre, configuration, or default: nobody's",
        examples=["command"],
    )


class Governor(Answer):
    """Who decides on clocks, and what was decided."""

    policy: str = Field("hands_off", examples=["race_to_idle"])
    settings: dict[str, Any] = Field(default_factory=dict, examples=[{"watts": 5.0}])
    own: Choice | None = Field(
        None, description="The daemon's own, whatever runs; null: no board is watched"
    )
    awaited: str | None = Field(
        None, examples=["race_to_idle"],
        description="What begins as soon as it can: another process owns the board's clocks, or"
        " nobody may set them yet; `problem` says which; null: nothing is in the way",
    )  # fmt: skip
    jobs: dict[str, Any] = Field(default_factory=dict, description="Jobs that chose their own")
    reason: str = Field("", description="Of the last decision")
    forecast: Any = ""
    problem: str = Field("", description="Why it fell back to hands_off")
    owned: list[str] = Field(default_factory=list, description="Clocks whose limits are edged's")
    refused: dict[str, Any] = Field(default_factory=dict)
    restored: list[Any] = Field(default_factory=list)
    changes: list[Any] = Field(default_factory=list, description="Limits that others changed")
    clocks: list[Clock] = Field(default_factory=list)
    raced: list[Opp] = Field(default_factory=list, description="Of races, by the CPU's clock")
    residency: list[Residency] = Field(default_factory=list, description="Of each clock domain")
    idle_states: dict[str, float] | None = Field(None, description="Share of the time in each")
    wakeups_per_s: float | None = None
    overload: bool | None = None


class GovernorChange(Asked):
    """Another policy, with its settings."""

    policy: str = Field(
        pattern=r"^[a-z][a-z0-9_]{0,62}$", examples=["race_to_idle"],
        description="hands_off, race_to_idle, power_cap, energy_budget or fixed; none: what the"
        " centre or the configuration says, or a job's document",
    )  # fmt: skip
    settings: dict[str, str | int | float | bool | list[Any] | dict[str, Any] | None] = Field(
        default_factory=dict, examples=[{}]
    )
    job: str | None = Field(
        None, pattern=r"^[a-z][a-z0-9_-]{0,62}$",
        description="The choice of this job only",
    )  # fmt: skip


class Input(Answer):
    """Energy of the whole input."""

    rail: str
    covers: str = Field("", description="What stands behind this rail")
    joules: float | None = None
    provenance: str = PROVENANCE
    since_us: int | None = None
    until_us: int | None = None
    gap_us: int | None = None


class Watts(Answer):
    """Power of the whole input, as last read."""

    input: float
    rail: str
    provenance: str = PROVENANCE


class Pair(Answer):
    """Joules of a million tuples: above the idle board, and all of it."""

    above_idle: float | None
    input: float
    provenance: str = PROVENANCE


class Figure(Answer):
    """An amount with its standard error."""

    joules: float
    error_j: float


class Entry(Answer):
    """What a phase, job or operator took."""

    phase: str = Field(examples=["race"])
    job: str = ""
    operator: str = ""
    above_idle: Figure
    whole_input: Figure
    modelled_j: float


class Ledger(Answer):
    """Who took what, of the time that a meter covers."""

    provenance: str = PROVENANCE
    measured_s: float
    unmeasured_s: float
    input: Figure
    baseline: Figure
    unattributed: Figure
    entries: list[Entry]


class Energy(Answer):
    """What it all takes.  Without a board everything is null."""

    present: bool = Field(description="false: the daemon watches no board")
    input: Input | None = None
    watts: Watts | None = None
    joules_per_mtuple: Pair | None = None
    rails: list[Rail] = Field(default_factory=list)
    ledger: Ledger | None = None
