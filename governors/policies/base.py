"""Policies: from what is seen to what is done with clocks, wait, intake, sleep and uplink.

A policy is asked twice a beat, before the race and after it.  It is told an `Observation` and
answers with a `Decision`; it has no clock, opens no file and starts no thread, so that the daemon,
the simulator and the tests drive the same code.  Who asks is `governors.policies.running.Running`,
which holds what is set, keeps decisions inside the limits, and switches policies.

The unit of work is whatever the caller counts (the daemon: rows).  Clocks are in Hz, times in
monotonic µs, energy in joules of the whole input.

A policy is one file of this package that registers itself:

    @policy
    class HandsOff(Policy):
        name = "hands_off"
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from governors.energy import Provenance
from governors.errors import GovernorError
from governors.registry import Registry

if TYPE_CHECKING:
    from governors.cost import CostModel
    from governors.operating_points import Way
    from governors.policies.account import Account
    from governors.schedutil import Utilisation

NUMBER_MAX = 1e12
"""Largest setting: what is made of it, hertz or microseconds, is a number of 64 bits."""
BATTERY, VOLTS = "a battery that tells what it holds", "a battery that tells its voltage"
STEPS = 9
"""Choices of a dial without a table, evenly spaced."""
Settings = Mapping[str, Any]
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class PolicyError(GovernorError):
    """A policy or a setting of one does not exist or makes no sense."""


@lru_cache(maxsize=64)
def _choices(table_hz: tuple[int, ...], min_hz: int, max_hz: int) -> tuple[int, ...]:
    if table_hz:
        return tuple(hz for hz in table_hz if min_hz <= hz <= max_hz)
    step = (max_hz - min_hz) / (STEPS - 1)
    return tuple(sorted({round(min_hz + i * step) for i in range(STEPS)}))


@dataclass(frozen=True, slots=True)
class Dial:
    """A clock that could be set, as far as a policy needs to know it."""

    name: str
    """As the actuator calls it: cpu.policy0."""
    kind: str
    """cpu, gpu or memory."""
    table_hz: tuple[int, ...]
    """Ascending; empty where the range is continuous."""
    min_hz: int
    max_hz: int
    """What the limits that others set allow now."""
    writable: bool = True
    write_us: float | None = None
    """Measured, of setting it and letting it go again; None: of a CPU's clock it is in
    `Observation.write_us`, and another's is taken to be as dear, but for a memory cap, which is set
    along."""

    def choices_hz(self) -> tuple[int, ...]:
        """What may be set now, ascending; none where nothing may."""
        if not self.writable or self.min_hz > self.max_hz:
            return ()
        return _choices(self.table_hz, self.min_hz, self.max_hz)

    def nearest(self, hz: int) -> int | None:
        """The lowest choice at or above `hz`, else the highest; None where there is none."""
        choices = self.choices_hz()
        return next((c for c in choices if c >= hz), choices[-1] if choices else None)


@dataclass(frozen=True, slots=True)
class Cost:
    """What work takes on one device: `cycles / f + stall`, with a part per race and one per unit.

    Cycles are those of the longest thread; `stall` is time that no clock of ours shortens: memory,
    and all of the work on a device whose clock is left alone.
    """

    cycles: float
    cycles_per_unit: float
    stall_us: float = 0.0
    stall_us_per_unit: float = 0.0
    cores: float = 1.0
    """Busy on average while it runs."""
    bytes_per_unit: float = 0.0
    """Memory traffic."""
    beside_cycles: float = 0.0
    """Of one CPU core, per race, beside the wait: commits and acks."""
    commit_cycles: float = 0.0
    """Of a beat that only commits."""
    host: Cost | None = None
    """Of work on a GPU: what the CPU does before and after it, at a clock of its own; `cycles`,
    `stall_us` and `cores` are then of the time in which the GPU works.  None: nothing."""

    def us(self, units: float, hz: int) -> float:
        """How long a race of `units` takes at a clock."""
        cycles = self.cycles + self.cycles_per_unit * units
        return 1e6 * cycles / hz + self.stall_us + self.stall_us_per_unit * units


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be done, now and from here on."""

    units: float
    """Waiting for the next race."""
    units_per_s: float
    """Arriving."""
    costs: Mapping[str, Cost]
    """By device, where a race could run: `cpu` or `gpu`.  A running join has one at a time, which
    placement chooses by the plans that it would come to (`governors.placement_prices`)."""
    latency_us: int
    """The tolerance: from arrival to sealed."""
    commit_us: float = 0.0
    """Of the tolerance, what the commit and the margins take beside the race."""
    upload_bytes_per_s: float = 0.0
    upload_within_us: int = 0
    """How long results may wait for an upload window; 0: they are sent with every beat."""
    period_us_max: float = math.inf
    """From one race to the next, what buffers leave: the batcher's `fill_us`, and a race."""
    commit_every_us: float = 0.0
    """How often what waits is committed without a race, so that senders have their acks; 0: only
    with races."""


@dataclass(frozen=True, slots=True)
class Battery:
    """What a battery has left."""

    joules: float
    volts: float | None = None
    charging: bool = False


@dataclass(frozen=True, slots=True)
class Observation:
    """What a policy is told."""

    at_us: int
    work: Work
    deadline_us: int
    """By which the next race must be over, for what waits now: the commit comes after it."""
    joules: float
    """Of the whole input since some time that stays the same; never falls."""
    provenance: Provenance
    """Of the joules."""
    dials: tuple[Dial, ...] = ()
    others_cores: float = 0.0
    """Cores that other processes keep busy."""
    battery: Battery | None = None
    day_us: int = 0
    """Local time of day."""
    write_us: float = 0.0
    write_j: float = 0.0
    """Measured, of setting all clocks and letting them go again."""
    used: Utilisation | None = None
    """What the kernel's governor remembers of the races so far, before a race; None: not known."""
    raced: float | None = None
    """After a race: units that it took; None: those that were to be expected."""


class Act(Enum):
    """What to do with a dial that a decision names; one that it does not name stays as it is."""

    PIN = "pin"
    CAP = "cap"
    """Lower the maximum only."""
    RELEASE = "release"
    """Back to the saved limits."""


@dataclass(frozen=True, slots=True)
class Setting:
    """An act and its clock (0 for a release)."""

    act: Act
    hz: int = 0


RELEASE = Setting(Act.RELEASE)


@dataclass(frozen=True, slots=True)
class Decision:
    """What a policy answers."""

    reason: str
    clocks: Mapping[str, Setting] = field(default_factory=dict)
    wait_share: float = 1.0
    """Of the latency tolerance, what the batcher may spend (0 to 1)."""
    race_us: float = 0.0
    """What the planned race will take, where it is known: the wait must leave time for it, though
    the last races were faster."""
    admit_share: float = 1.0
    """Of the waiting units, what the race may take; the rest waits, and its senders with it."""
    units_max: float = math.inf
    """What it may take though more should wait than was expected."""
    not_before_us: int = 0
    """No race before this time; what arrives waits, and its senders with it."""
    sleep: tuple[str, ...] = ()
    """Opt-in sleeps to enter until the next wake."""
    upload: bool = True
    """Whether the uplink may send now."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What a policy that keeps a budget has to spend."""

    left_j: float
    """From now to its end, idling included; what is held in reserve is not in it."""
    left_us: int
    """Until its end."""
    forecast_j: float
    """What will be left then at the present mean power; below 0 it does not last."""


class Policy(ABC):
    """Base of all policies."""

    name: ClassVar[str]
    defaults: ClassVar[Settings] = _NOTHING
    """Every setting and its default; None: must be given."""
    needs: tuple[str, ...] = ()
    """Of a board, what it cannot run without: BATTERY (its joules), VOLTS (a battery's)."""
    needs_model: ClassVar[bool] = True
    """Whether it needs the board's power model."""
    plans: ClassVar[bool] = True
    """Whether its waits are planned; a policy that plans none has no say where others do."""

    def __init__(self, settings: Settings, model: CostModel, account: Account) -> None:
        self.model = model
        self.account = account
        """What was spent; handed from one policy to the next."""
        self.settings = _checked(self, settings)

    @abstractmethod
    def race(self, seen: Observation) -> Decision:
        """A race is about to start."""

    @abstractmethod
    def idle(self, seen: Observation) -> Decision:
        """The race is over."""

    def forecast(self, seen: Observation) -> str:
        """One line for people: what will happen if things go on like this; empty: nothing."""
        return ""

    def budget(self, seen: Observation) -> Budget | None:
        """The budget that is kept, where there is one and it is known."""
        return None

    def ways(self, seen: Observation) -> tuple[Way, ...]:
        """All ways to run the race at hand, leaving it alone first."""
        return self.model.ways_now(seen.work, seen.dials, seen.write_us, seen.used)

    def number(self, key: str, least: float = 0.0) -> float:
        """A setting that is a number above `least`, NUMBER_MAX at most.  Raises PolicyError."""
        value = self.settings[key]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not least < value <= NUMBER_MAX:
            raise PolicyError(
                f"policy {self.name}: {key} = {value!r} is not a number above {least:g}, at most"
                f" {NUMBER_MAX:g}"
            )
        return float(value)


POLICIES: Registry[type[Policy]] = Registry("edged.policies", "governors.policies", "policy")


def policy(kind: type[Policy]) -> type[Policy]:
    """Class decorator: register a policy under its name."""
    POLICIES.register(kind.name, kind, kind.__module__)
    return kind


def load_all() -> Mapping[str, type[Policy]]:
    """All policies: the modules of this package, and plug-ins."""
    return POLICIES.load()


def find_policy(name: str) -> type[Policy]:
    """The policy of a name.  Raises PolicyError."""
    found = load_all().get(name)
    if found is None and (problem := POLICIES.why_missing(name)):
        raise PolicyError(problem)
    if found is None:
        raise PolicyError(f"there is no policy {name!r}; there are {', '.join(sorted(POLICIES))}")
    return found


def _checked(owner: Policy, given: Settings) -> Settings:
    unknown = sorted(set(given) - set(owner.defaults))
    if unknown:
        known = ", ".join(sorted(owner.defaults)) or "none"
        raise PolicyError(f"policy {owner.name}: unknown setting {unknown[0]}; there are: {known}")
    return {**owner.defaults, **given}
