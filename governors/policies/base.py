"""Power policies: from an observation to clocks, wait, intake, sleep and uplink.

A policy is called twice per beat, before the race and after it, with an `Observation`, and returns
a `Decision`. It has no clock, opens no file and starts no thread, so the daemon, the simulator and
the tests run the same code.  `governors.policies.running.Running` calls it, keeps decisions inside
the limits, tracks what is set, and switches policies.

The unit of work is the caller's (the daemon: rows). Clocks are in Hz, times in monotonic µs, energy
in joules of the whole input.

A policy is one module that registers itself:

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
from governors.policies.declared import DeclaredSetting
from governors.registry import Registry
from governors.schedutil import Utilisation
from governors.suggestions import did_you_mean
from governors.work import Dial, Work

HOLD_SHARE = 0.5
"""Where not all waiting units fit, a race waits for this part of the energy that a burst, or a
window above idle, may take: small races cost more per unit."""
BATTERY, VOLTS = "a battery with a known charge", "a battery with a known voltage"
ZONE = "a thermal zone that can be read"
PolicySettings = Mapping[str, Any]
_NOTHING: Mapping[str, DeclaredSetting] = MappingProxyType({})


class PolicyError(GovernorError):
    """A policy does not exist, or one of its settings is unknown or invalid."""


@dataclass(frozen=True, slots=True)
class Battery:
    """Charge of a battery."""

    joules: float
    volts: float | None = None
    charging: bool = False


@dataclass(frozen=True, slots=True)
class Observation:
    """Input of a policy."""

    at_us: int
    work: Work
    deadline_us: int
    """Time by which the next race must be over for the waiting units; the commit follows it."""
    joules: float
    """Of the whole input since a fixed time; never decreases."""
    provenance: Provenance
    """Provenance of the joules."""
    dials: tuple[Dial, ...] = ()
    others_cores: float = 0.0
    """Cores kept busy by other processes."""
    battery: Battery | None = None
    day_us: int = 0
    """Local time of day."""
    write_us: float = 0.0
    write_j: float = 0.0
    """Measured cost of setting all CPU clocks and releasing them."""
    used: Utilisation | None = None
    """Before a race: utilisation of the kernel's governor from past races; None: unknown."""
    raced: float | None = None
    """After a race: units that it took; None: the expected ones."""
    celsius: float | None = None
    """Temperature of the hottest thermal zone; None: not known, or no limit asks for it."""
    trip_celsius: float | None = None
    """The lowest trip point of any zone; None: the board names none."""
    headroom_celsius: float | None = None
    """Distance from the limit of the temperature (`governors.heat_limit`); None without one."""


class Act(Enum):
    """Action on a dial named in a decision; other dials keep their setting."""

    PIN = "pin"
    CAP = "cap"
    """Lower only the maximum."""
    RELEASE = "release"
    """Restore the original limits."""


@dataclass(frozen=True, slots=True)
class ClockSetting:
    """An action and its clock (0 for a release)."""

    act: Act
    hz: int = 0


RELEASE = ClockSetting(Act.RELEASE)


@dataclass(frozen=True, slots=True)
class Decision:
    """Output of a policy."""

    reason: str
    clocks: Mapping[str, ClockSetting] = field(default_factory=dict)
    wait_share: float = 1.0
    """Share of the latency tolerance that the batcher may spend (0 to 1)."""
    race_us: float = 0.0
    """Planned duration of the race, where known; the wait leaves this much time even if the last
    races were faster."""
    admit_share: float = 1.0
    """Share of the waiting units that the race may take; the rest waits, and backpressure slows the
    senders."""
    units_max: float = math.inf
    """Upper bound of units, in case more wait than expected."""
    not_before_us: int = 0
    """No race starts before this time; arriving units wait, and backpressure slows the senders."""
    sleep: tuple[str, ...] = ()
    """Sleeps on request to enter until the next wake."""
    upload: bool = True
    """Whether the uplink may send now."""


@dataclass(frozen=True, slots=True)
class Budget:
    """State of a policy's energy budget."""

    left_j: float
    """From now to its end, idling included, without the reserve."""
    left_us: int
    """Until its end."""
    forecast_j: float
    """Rest at the end at the present mean power; negative: the budget does not last."""


class Policy(ABC):
    """Base class of policies."""

    name: ClassVar[str]
    declared: ClassVar[Mapping[str, DeclaredSetting]] = _NOTHING
    """Every setting."""
    cap_watts: float | None = None
    """Largest mean input power that the policy allows; None: it has no cap."""
    needs: tuple[str, ...] = ()
    """Requirements of the board: BATTERY (a battery's joules), VOLTS (a battery's voltage), ZONE
    (a temperature)."""
    needs_model: ClassVar[bool] = True
    """Whether it needs the board's power model."""
    plans: ClassVar[bool] = True
    """Whether it plans waits.  A policy that does not is ignored for the wait where others plan
    it."""

    def __init__(self, settings: PolicySettings, model: CostModel, account: EnergyAccount) -> None:
        self.model = model
        self.account = account
        """Energy spent; handed over from one policy to the next."""
        self.settings = _parsed(self, settings)
        """Every declared setting, parsed; None: not set."""

    @abstractmethod
    def race(self, observed: Observation) -> Decision:
        """A race is about to start."""

    @abstractmethod
    def idle(self, observed: Observation) -> Decision:
        """The race is over, or a beat that only commits."""

    def commit(self, observed: Observation) -> Decision:
        """A beat that only commits is about to start; of the decision, the clocks count."""
        return Decision("no clock set for a commit")

    def forecast(self, observed: Observation) -> str:
        """One line for users: the outcome if nothing changes; may be empty."""
        return ""

    def max_celsius(self, observed: Observation) -> float | None:
        """The highest temperature that the policy allows; None: it has no limit."""
        return None

    def budget(self, observed: Observation) -> Budget | None:
        """The energy budget, where there is one and it is known."""
        return None

    def options(self, observed: Observation) -> tuple[RaceOption, ...]:
        """All race options for the race at hand, the one without set clocks first."""
        return self.model.options_now(
            observed.work, observed.dials, observed.write_us, observed.used
        )


POLICIES: Registry[type[Policy]] = Registry("edged.policies", "governors.policies", "policy")


def policy(kind: type[Policy]) -> type[Policy]:
    """Class decorator: register a policy under its name."""
    POLICIES.register(kind.name, kind, kind.__module__)
    return kind


def load_all() -> Mapping[str, type[Policy]]:
    """All policies: the modules of this package, and plug-ins."""
    return POLICIES.load()


def find_policy(name: str) -> type[Policy]:
    """The policy of that name.  Raises PolicyError."""
    found = load_all().get(name)
    if found is None and (problem := POLICIES.why_missing(name)):
        raise PolicyError(problem)
    if found is None:
        raise PolicyError(f"there is no policy {name!r}; {did_you_mean(name, sorted(POLICIES))}")
    return found


def unknown_settings(kind: type[Policy], given: PolicySettings) -> dict[str, str]:
    """Settings that the policy does not declare, each with advice."""
    return {
        key: did_you_mean(key, kind.declared, "it has no settings" if not kind.declared else "")
        for key in sorted(set(given) - set(kind.declared))
    }


def _parsed(owner: Policy, given: PolicySettings) -> PolicySettings:
    for key, advice in unknown_settings(type(owner), given).items():
        raise PolicyError(f"policy {owner.name}: unknown setting {key}; {advice}")
    return {
        key: _value(owner.name, key, declared, given.get(key, declared.default))
        for key, declared in owner.declared.items()
    }


def _value(owner: str, key: str, declared: DeclaredSetting, value: Any) -> Any:
    if value is None and declared.required:
        raise PolicyError(f"policy {owner}: {key} is missing ({declared.kind.described})")
    if value is None and declared.default is None:
        return None
    try:
        return declared.kind.parse(value)
    except ValueError as problem:
        raise PolicyError(f"policy {owner}: {key} = {value!r} {problem}") from None
