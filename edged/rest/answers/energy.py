"""Answers about the board, the policy that sets its clocks, and energy."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from typing_extensions import Required, TypedDict

from edged.rest.answers.base import Provenance


class Clock(TypedDict, total=False):
    """A clock domain: its frequency and current limits."""

    name: Required[Annotated[str, Field(examples=["cpu.policy0"])]]
    hz: Annotated[int | None, Field(None, examples=[729600000])]
    min_hz: Annotated[int | None, Field(None)]
    max_hz: Annotated[int | None, Field(None)]


class Knob(TypedDict, total=False):
    """A clock domain whose limits may be set."""

    name: Required[Annotated[str, Field(examples=["cpu.policy0"])]]
    kind: Required[Annotated[str, Field(examples=["cpu"])]]
    floor_hz: Required[
        Annotated[int, Field(description="Lowest frequency of the hardware", examples=[115200000])]
    ]
    ceiling_hz: Required[
        Annotated[
            int, Field(description="Highest frequency of the hardware", examples=[1510400000])
        ]
    ]
    steps_hz: Annotated[
        list[int],
        Field(default_factory=list, description="Available frequencies; empty: any in between"),
    ]


class Switch(TypedDict, total=False):
    """A sleep state that `energy.allow` can enable."""

    name: Required[Annotated[str, Field(examples=["core.3"])]]
    kind: Required[Annotated[str, Field(examples=["core"])]]
    values: Required[Annotated[list[str], Field(examples=[["0", "1"]])]]


class Meter(TypedDict, total=False):
    """A sensor."""

    name: Required[Annotated[str, Field(examples=["ina3221"])]]
    interval_us: Annotated[int | None, Field(None)]
    cost_us: Annotated[
        float | None, Field(None, description="CPU time of a reading and its accounting")
    ]
    reads: Annotated[int | None, Field(None)]


class Rail(TypedDict, total=False):
    """A supply rail as measured by a meter; energy since `since_us` of the monotonic clock."""

    meter: Required[Annotated[str, Field(examples=["ina3221"])]]
    rail: Required[Annotated[str, Field(examples=["VDD_IN"])]]
    part_of: Annotated[str | None, Field(None, description="The rail that includes this one")]
    feeds: Annotated[list[str], Field(default_factory=list, examples=[["cpu", "gpu", "cv"]])]
    watts: Annotated[float | None, Field(None)]
    joules: Annotated[float | None, Field(None)]
    provenance: Required[Provenance]
    since_us: Annotated[int | None, Field(None)]
    until_us: Annotated[int | None, Field(None)]
    gap_us: Annotated[int | None, Field(None, description="Part of the time without a reading")]
    problem: Annotated[str, Field("")]


class Writer(TypedDict, total=False):
    """How limits are written, and why that way."""

    name: Annotated[str, Field("")]
    why: Annotated[str, Field("")]


class Temperature(TypedDict, total=False):
    """A thermal zone."""

    zone: Required[Annotated[str, Field(examples=["cpu-thermal"])]]
    celsius: Annotated[
        float | None, Field(None, description="null: cannot be read now", examples=[48.5])
    ]
    trips: Annotated[
        dict[str, float],
        Field(
            default_factory=dict,
            description="Lowest trip point of each kind, °C",
            examples=[{"passive": 99.0}],
        ),
    ]


class Throttling(TypedDict, total=False):
    """A cause of throttling; null where the board does not tell."""

    cause: Required[Annotated[str, Field(examples=["over_current_peak"])]]
    now: Annotated[bool | None, Field(None)]
    since_boot: Annotated[bool | None, Field(None)]
    events: Annotated[int | None, Field(None, description="Since boot")]
    seen_s: Annotated[
        float | None,
        Field(None, description="Time for which it was seen at work since the process began"),
    ]


class Heat(TypedDict, total=False):
    """The limit of the temperature."""

    max_celsius: Annotated[float | None, Field(None, description="null: no limit")]
    headroom_celsius: Annotated[
        float | None,
        Field(None, description="From the hottest zone to the limit, else to its trip point"),
    ]
    ceiling_hz: Annotated[
        int | None, Field(None, description="Highest clock of races; null: not lowered")
    ]
    holds: Annotated[bool, Field(False, description="Whether races are held, so results are late")]
    held_s: Annotated[float, Field(0.0, description="Time for which races were held")]
    lowered_s: Annotated[float, Field(0.0, description="Time with a lowered clock")]


class GpuLoad(TypedDict, total=False):
    """Share of time in which a GPU works."""

    gpu: Required[Annotated[str, Field(examples=["17000000.gpu"])]]
    share: Annotated[float | None, Field(None, examples=[0.37])]


class Board(TypedDict, total=False):
    """The board: detected hardware, meters and controls."""

    present: Required[Annotated[bool, Field(description="false: the daemon watches no board")]]
    name: Annotated[str | None, Field(None, examples=["orin-nano"])]
    model: Annotated[str | None, Field(None)]
    simulated: Annotated[bool | None, Field(None)]
    profile: Annotated[str | None, Field(None)]
    power_model: Annotated[
        str | None,
        Field(
            None,
            description="The profile whose figures model the power: the board's own, or a stand-in;"
            " null: nothing is modelled",
        ),
    ]
    processor: Annotated[str, Field("", description="Its name, as the kernel has it")]
    cores: Annotated[int | None, Field(None, description="Online cores")]
    writer: Annotated[Writer, Field({"name": "", "why": ""})]
    clocks: Annotated[list[Clock], Field(default_factory=list, description="Current state")]
    knobs: Annotated[
        list[Knob], Field(default_factory=list, description="Clock domains that `writer` may limit")
    ]
    switches: Annotated[list[Switch], Field(default_factory=list)]
    meters: Annotated[list[Meter], Field(default_factory=list)]
    temperatures: Annotated[list[Temperature], Field(default_factory=list)]
    throttling: Annotated[list[Throttling], Field(default_factory=list)]
    gpu_load: Annotated[list[GpuLoad], Field(default_factory=list)]
    heat: Annotated[Heat | None, Field(None)]
    missing: Annotated[
        list[str], Field(default_factory=list, description="What cannot be read, with the reason")
    ]


class Opp(TypedDict, total=False):
    """Time at an operating point."""

    hz: Required[int]
    seconds: Required[float]


class Budget(TypedDict, total=False):
    """State of the policy's energy budget."""

    left_j: Required[Annotated[float, Field(description="Energy that may still be spent")]]
    left_us: Required[Annotated[int, Field(description="Time until its end")]]
    forecast_j: Required[
        Annotated[
            float, Field(description="Rest at its end at the mean power; below 0: it does not last")
        ]
    ]
    provenance: Required[Provenance]


class Residency(TypedDict, total=False):
    """Time of a clock domain at each operating point since the daemon's start."""

    name: Required[Annotated[str, Field(examples=["cpu.policy0"])]]
    how: Required[
        Annotated[
            str,
            Field(
                description="counted by the kernel, or seen: each reading of the clock counts for"
                " the time since the previous one",
                examples=["counted"],
            ),
        ]
    ]
    at: Required[list[Opp]]


class Choice(TypedDict, total=False):
    """A policy chosen for the daemon, and its origin."""

    policy: Required[Annotated[str, Field(examples=["race_to_idle"])]]
    settings: Annotated[dict[str, Any], Field(default_factory=dict, examples=[{"watts": 5.0}])]
    origin: Required[
        Annotated[
            str,
            Field(
                description="command (kept over restarts), centre, configuration, or default",
                examples=["command"],
            ),
        ]
    ]


class Governor(TypedDict, total=False):
    """The policy that sets the clocks, and its last decision."""

    policy: Annotated[str, Field("hands_off", examples=["race_to_idle"])]
    simulated: Annotated[
        bool | None,
        Field(None, description="Whether clocks, times and budget are a simulated board's"),
    ]
    settings: Annotated[dict[str, Any], Field(default_factory=dict, examples=[{"watts": 5.0}])]
    own: Annotated[
        Choice | None,
        Field(
            None,
            description="The policy chosen for the daemon, running or not; null: no board",
        ),
    ]
    awaited: Annotated[
        str | None,
        Field(
            None,
            examples=["race_to_idle"],
            description="The policy that starts as soon as it can: another process owns the board's"
            " clocks, or they may not be set yet; `problem` says which.  Null: none waits",
        ),
    ]
    jobs: Annotated[
        dict[str, Any], Field(default_factory=dict, description="Jobs with a policy of their own")
    ]
    cap_watts: Annotated[
        float | None, Field(None, description="Lowest power cap of the running policies")
    ]
    reason: Annotated[str, Field("", description="Reason of the last decision")]
    forecast: Annotated[Any, Field("")]
    budget: Annotated[Budget | None, Field(None)]
    problem: Annotated[str, Field("", description="Why the policy fell back to hands_off")]
    owned: Annotated[
        list[str], Field(default_factory=list, description="Clocks whose limits edged sets")
    ]
    refused: Annotated[dict[str, Any], Field(default_factory=dict)]
    restored: Annotated[list[Any], Field(default_factory=list)]
    changes: Annotated[
        list[Any], Field(default_factory=list, description="Limits changed by other processes")
    ]
    clocks: Annotated[list[Clock], Field(default_factory=list)]
    raced: Annotated[
        list[Opp], Field(default_factory=list, description="Time of races, by the CPU's clock")
    ]
    residency: Annotated[
        list[Residency],
        Field(default_factory=list, description="Time at each clock, by clock domain"),
    ]
    idle_states: Annotated[
        dict[str, float] | None, Field(None, description="Share of time in each idle state")
    ]
    wakeups_per_s: Annotated[float | None, Field(None)]
    saturated: Annotated[
        bool | None,
        Field(None, description="A simulated board cannot carry its load; null: no board"),
    ]


class Input(TypedDict, total=False):
    """Energy of the whole input."""

    rail: Required[str]
    covers: Annotated[str, Field("", description="Components that this rail supplies")]
    joules: Annotated[float | None, Field(None)]
    provenance: Required[Provenance]
    since_us: Annotated[int | None, Field(None)]
    until_us: Annotated[int | None, Field(None)]
    gap_us: Annotated[int | None, Field(None)]


class Watts(TypedDict, total=False):
    """Power of the whole input, as last read."""

    input: Required[float]
    rail: Required[str]
    provenance: Required[Provenance]


class Pair(TypedDict, total=False):
    """Joules per million tuples: above the idle board, and in total."""

    above_idle: Required[float | None]
    input: Required[float]
    provenance: Required[Provenance]


class Figure(TypedDict, total=False):
    """An amount with its standard error."""

    joules: Required[float]
    error_j: Required[float]


class Entry(TypedDict, total=False):
    """Energy of a phase, job or operator."""

    phase: Required[Annotated[str, Field(examples=["race"])]]
    job: Annotated[str, Field("")]
    operator: Annotated[str, Field("")]
    above_idle: Required[Figure]
    whole_input: Required[Figure]
    modelled_j: Required[float]


class Ledger(TypedDict, total=False):
    """Energy by phase, job and operator, for the time that a meter covers."""

    provenance: Required[Provenance]
    measured_s: Required[float]
    unmeasured_s: Required[float]
    input: Required[Figure]
    baseline: Required[Figure]
    unattributed: Required[Figure]
    entries: Required[list[Entry]]


class Energy(TypedDict, total=False):
    """Power and energy.  Without a board every field is null."""

    present: Required[Annotated[bool, Field(description="false: the daemon watches no board")]]
    input: Annotated[Input | None, Field(None)]
    watts: Annotated[Watts | None, Field(None)]
    joules_per_mtuple: Annotated[Pair | None, Field(None)]
    rails: Annotated[list[Rail], Field(default_factory=list)]
    ledger: Annotated[Ledger | None, Field(None)]
