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
from types import MappingProxyType
from typing import Any, ClassVar

from governors.cost import CostModel
from governors.energy import Provenance
from governors.errors import GovernorError
from governors.operating_points import RaceOption
from governors.policies.account import EnergyAccount
from governors.registry import Registry
from governors.schedutil import Utilisation
from governors.work import Dial, Work

NUMBER_MAX = 1e12
"""Largest setting: what is made of it, hertz or microseconds, is a number of 64 bits."""
BATTERY, VOLTS = "a battery that tells what it holds", "a battery that tells its voltage"
PolicySettings = Mapping[str, Any]
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class PolicyError(GovernorError):
    """A policy or a setting of one does not exist or makes no sense."""


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
class ClockSetting:
    """An act and its clock (0 for a release)."""

    act: Act
    hz: int = 0


RELEASE = ClockSetting(Act.RELEASE)


@dataclass(frozen=True, slots=True)
class Decision:
    """What a policy answers."""

    reason: str
    clocks: Mapping[str, ClockSetting] = field(default_factory=dict)
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
    defaults: ClassVar[PolicySettings] = _NOTHING
    """Every setting and its default; None: must be given."""
    needs: tuple[str, ...] = ()
    """Of a board, what it cannot run without: BATTERY (its joules), VOLTS (a battery's)."""
    needs_model: ClassVar[bool] = True
    """Whether it needs the board's power model."""
    plans: ClassVar[bool] = True
    """Whether its waits are planned; a policy that plans none has no say where others do."""

    def __init__(self, settings: PolicySettings, model: CostModel, account: EnergyAccount) -> None:
        self.model = model
        self.account = account
        """What was spent; handed from one policy to the next."""
        self.settings = _checked(self, settings)

    @abstractmethod
    def race(self, observed: Observation) -> Decision:
        """A race is about to start."""

    @abstractmethod
    def idle(self, observed: Observation) -> Decision:
        """The race is over."""

    def forecast(self, observed: Observation) -> str:
        """One line for people: what will happen if things go on like this; empty: nothing."""
        return ""

    def budget(self, observed: Observation) -> Budget | None:
        """The budget that is kept, where there is one and it is known."""
        return None

    def ways(self, observed: Observation) -> tuple[RaceOption, ...]:
        """All ways to run the race at hand, leaving it alone first."""
        return self.model.ways_now(observed.work, observed.dials, observed.write_us, observed.used)

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


def _checked(owner: Policy, given: PolicySettings) -> PolicySettings:
    unknown = sorted(set(given) - set(owner.defaults))
    if unknown:
        known = ", ".join(sorted(owner.defaults)) or "none"
        raise PolicyError(f"policy {owner.name}: unknown setting {unknown[0]}; there are: {known}")
    return {**owner.defaults, **given}
