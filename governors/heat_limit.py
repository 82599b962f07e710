"""A limit of the chip's temperature that any policy obeys (`max_celsius`).  Sans-IO.

Before each race the temperature at its end is predicted with the thermal ladder of the board
(`governors.thermal`): the chip's temperature is measured, that of the box is estimated from it and
from the power of the input.  The limit acts at `max_celsius` less MARGIN_C, in this order:

1. The highest clock of races falls to the highest one at which the race ends below the limit, but
   not below the clock that takes the least energy: a slower one would heat the box more.
2. Where that is not enough, a race takes only as many units as end below the limit.
3. Where those are few, no race starts until the chip is COOLER_C below the limit.

So the chip stays below the limit, whatever arrives; where limit and latency promise cannot both be
kept, rows are late.  The clock rises by one operating point at a time, at most once in RAISE_US,
and only where the race would end HYSTERESIS_C below the limit.  It therefore changes at most
2 x 60 s / RAISE_US + (number of clocks) times in any minute.

A board without a thermal model has no prediction: the limit then acts on the measured temperature
alone.  Work of other processes heats the chip too; what it adds within one race is not predicted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from governors.cost import CostModel
from governors.operating_points import RaceOption
from governors.policies.base import RELEASE, Act, ClockSetting, Decision, Observation
from governors.profile import ThermalNode
from governors.thermal import ThermalNetwork

MARGIN_C = 1.0
"""Distance that is kept from the limit: the step of a sensor and the error of a prediction."""
HYSTERESIS_C = 1.0
"""How far below the limit a race at the next higher clock ends before the clock rises."""
COOLER_C = 0.3
"""How far below the limit the chip cools before a held race starts."""
RAISE_US = 10_000_000
"""Shortest time between a change of the highest clock and the next rise."""
LEAST_SHARE = 0.1
"""A race that may take less than this share of the waiting units does not start."""
HOLD_US, HOLD_US_MIN = 2_000_000, 50_000
"""Longest and shortest time until a held race is tried again."""
BISECTIONS = 12
RACE_US_MAX = 60e6
"""Races are predicted over this time at most."""


@dataclass(slots=True)
class HeatState:
    """What the limit does, for the status."""

    celsius: float | None = None
    """Of the hottest zone, when last observed."""
    limit_celsius: float | None = None
    """None: no limit."""
    ceiling_hz: int = 0
    """Highest clock of races; 0: not lowered."""
    holds: bool = False
    """Whether the last race was held or took only a part for its heat: the promise yields."""
    held_us: int = 0
    """Time for which races were held."""
    bent_us: int = 0
    """Time with a lowered clock."""
    changes: int = 0
    """Changes of the highest clock."""

    @property
    def headroom_celsius(self) -> float | None:
        """Distance from the limit; None without one or without a temperature."""
        if self.celsius is None or self.limit_celsius is None:
            return None
        return self.limit_celsius - self.celsius


class HeatLimit:
    """Bounds decisions by the temperature that they lead to.  One thread."""

    def __init__(
        self, max_celsius: float | None, nodes: Sequence[ThermalNode], model: CostModel
    ) -> None:
        """`max_celsius`: the configured limit, where there is one; policies may have lower ones."""
        self.configured = max_celsius
        self.state = HeatState(limit_celsius=max_celsius)
        self._nodes, self._model = tuple(nodes), model
        self._network: ThermalNetwork | None = None
        self._last: tuple[int, float] | None = None
        self._changed_us = -RAISE_US
        self._pinned: set[str] = set()
        """Dials whose clock the limit has set."""

    def configure(self, max_celsius: float | None) -> None:
        """Change the configured limit; counters go on."""
        self.configured, state = max_celsius, self.state
        state.limit_celsius, state.ceiling_hz, state.holds = max_celsius, 0, False

    def observe(self, observed: Observation, of_policy: float | None) -> Observation:
        """Take in a temperature; returns the observation with its headroom.  `of_policy`: the
        limit that the policy asks for."""
        limits = [limit for limit in (self.configured, of_policy) if limit is not None]
        state = self.state
        state.limit_celsius, state.celsius = min(limits, default=None), observed.celsius
        if state.headroom_celsius is None:
            state.holds = False
            return observed
        self._follow(observed.at_us, observed.joules, observed.celsius or 0.0)
        return replace(observed, headroom_celsius=state.headroom_celsius)

    def race(self, wanted: Decision, observed: Observation) -> Decision:
        """The decision before a race, inside the limit."""
        state = self.state
        if state.headroom_celsius is None:
            return wanted
        clocks = self._clocks(observed)
        if clocks:
            self._bend(clocks, observed)
        decision = self._lowered(wanted, observed)
        option = self._option(clocks, decision, observed)
        units = min(decision.admit_share * observed.work.units, decision.units_max)
        most = self._most_units(option, units)
        state.holds = most < max(1.0, units)
        if not state.holds:
            return replace(decision, units_max=min(decision.units_max, most))
        if most < max(1.0, LEAST_SHARE * units):
            hold_us = self._hold_us(self._limit() - COOLER_C)
            state.held_us += hold_us
            return replace(
                decision, admit_share=0.0, units_max=0.0,
                not_before_us=max(decision.not_before_us, observed.at_us + hold_us),
                reason=f"{state.celsius:.1f} °C of {state.limit_celsius:g} °C: races are held",
            )  # fmt: skip
        part = most / units
        return replace(
            decision, admit_share=part * decision.admit_share, units_max=most,
            reason=f"{decision.reason}; {state.limit_celsius:g} °C leave room for {part:.0%}",
        )  # fmt: skip

    def between(self, wanted: Decision, observed: Observation) -> Decision:
        """The decision after a race or for a commit, inside the limit; clocks that only the limit
        has set are released."""
        released = {name: RELEASE for name in self._pinned if name not in wanted.clocks}
        self._pinned.clear()
        decision = wanted
        if released:
            decision = replace(wanted, clocks={**wanted.clocks, **released})
        hz = self.state.ceiling_hz
        cpus = {d.name for d in observed.dials if d.kind == "cpu"}
        lowered = {
            name: replace(setting, hz=hz)
            for name, setting in decision.clocks.items()
            if name in cpus and setting.act is Act.PIN and 0 < hz < setting.hz
        }
        return replace(decision, clocks={**decision.clocks, **lowered}) if lowered else decision

    # the temperature ---------------------------------------------------------------------------

    def _follow(self, at_us: int, joules: float, celsius: float) -> None:
        """Let the model follow the measured chip.  What the chip deviates by is the box's error,
        since it shows at the chip with the delay of the chip alone."""
        idle = self._model.tariff.idle_watts
        if self._last is None or self._network is None:
            self._last = (at_us, joules)
            if self._nodes:
                rise = idle * sum(node.kelvin_per_watt for node in self._nodes)
                self._network = ThermalNetwork(self._nodes, celsius - rise, idle)
            return
        us = at_us - self._last[0]
        if us <= 0:
            return
        if self.state.ceiling_hz:
            self.state.bent_us += us
        self._network.pass_time(us, max(0.0, 1e6 * (joules - self._last[1]) / us))
        self._last = (at_us, joules)
        self._network.celsius = self._network.celsius + (celsius - self._network.chip_celsius)

    def _limit(self) -> float:
        """The temperature that the limit acts at."""
        return (self.state.limit_celsius or math.inf) - MARGIN_C

    def _room_us(self, above_watts: float, limit: float) -> float:
        """The longest race at a power above idle that ends below `limit`.

        By the maximum principle the chip stays below its settled temperature plus what any node is
        above its own now; where that is not enough, the crossing is searched for.
        """
        now = self.state.celsius or 0.0
        if now > limit:
            return 0.0
        if self._network is None:
            return math.inf
        watts = self._model.tariff.idle_watts + above_watts
        settled = self._network.settled(watts)
        surplus = float((self._network.celsius - settled).max())
        if float(settled[0]) + max(0.0, surplus) <= limit:
            return math.inf
        low, high = 0.0, RACE_US_MAX
        if float(self._network.after(high, watts)[0]) <= limit:
            return high
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            if float(self._network.after(middle, watts)[0]) <= limit:
                low = middle
            else:
                high = middle
        return low

    def _most_units(self, option: RaceOption, units: float) -> float:
        """Units whose race ends below the limit."""
        room_us = self._room_us(_above_watts(option, units), self._limit())
        if room_us == math.inf:
            return math.inf
        if option.takes_us(0.0) > room_us:
            return 0.0
        if not option.points:
            each_us = option.us_per_unit
            return (room_us - option.us) / each_us if each_us > 0 else math.inf
        low, high = 0.0, max(1.0, units)
        if option.takes_us(high) <= room_us:
            return high
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            if option.takes_us(middle) <= room_us:
                low = middle
            else:
                high = middle
        return low

    def _fits(self, option: RaceOption, units: float, limit: float) -> bool:
        """Whether a race of `units` ends below `limit`."""
        return option.takes_us(units) <= self._room_us(_above_watts(option, units), limit)

    def _hold_us(self, celsius: float) -> int:
        """Time until the idle chip has cooled to a temperature, within the bounds of a hold."""
        if self._network is None:
            return HOLD_US
        idle = self._model.tariff.idle_watts
        low, high = HOLD_US_MIN, HOLD_US
        while high - low > HOLD_US_MIN:
            middle = (low + high) // 2
            if float(self._network.after(middle, idle)[0]) <= celsius:
                high = middle
            else:
                low = middle
        return high

    # clocks ------------------------------------------------------------------------------------

    def _clocks(self, observed: Observation) -> dict[int, RaceOption]:
        """Race options of the CPU by their set clock, ascending."""
        options = self._model.options(observed.work, observed.dials, observed.write_us)
        cpus = {d.name for d in observed.dials if d.kind == "cpu"}
        return {
            option.hz: option
            for option in sorted(options, key=lambda option: option.hz)
            if option.device == "cpu" and option.clocks and {n for n, _ in option.clocks} <= cpus
        }

    def _bend(self, clocks: dict[int, RaceOption], observed: Observation) -> None:
        """Lower or raise the highest clock of races."""
        choices, units, state = list(clocks), observed.work.units, self.state
        least = min(choices, key=lambda hz: clocks[hz].joules(max(units, 1.0), 0.0))
        floor, top = choices.index(least), len(choices) - 1
        at = max((i for i, hz in enumerate(choices) if hz <= state.ceiling_hz), default=top)
        at = max(at, floor)
        limit, was = self._limit(), at
        while at > floor and not self._fits(clocks[choices[at]], units, limit):
            at -= 1
        rested = observed.at_us - self._changed_us >= RAISE_US
        if at == was and at < top and rested:
            at += self._fits(clocks[choices[at + 1]], units, limit - HYSTERESIS_C)
        if at != was:
            self._changed_us = observed.at_us
            state.changes += 1
        state.ceiling_hz = choices[at] if at < top else 0

    def _lowered(self, wanted: Decision, observed: Observation) -> Decision:
        """The decision with its clocks at or below the ceiling."""
        hz = self.state.ceiling_hz
        if not hz:
            return wanted
        clocks = dict(wanted.clocks)
        for dial in observed.dials:
            setting = clocks.get(dial.name, RELEASE)
            if dial.kind == "cpu" and (setting.act is Act.RELEASE or setting.hz > hz):
                clocks[dial.name] = ClockSetting(Act.PIN, hz)
                self._pinned.add(dial.name)
        if clocks == wanted.clocks:
            return wanted
        reason = f"{wanted.reason}; at most {hz / 1e6:.0f} MHz for {self.state.limit_celsius:g} °C"
        return replace(wanted, clocks=clocks, reason=reason)

    def _option(
        self, clocks: dict[int, RaceOption], decision: Decision, observed: Observation
    ) -> RaceOption:
        """The race that a decision leads to; without a set clock, one at the highest."""
        for dial in observed.dials:
            setting = decision.clocks.get(dial.name)
            if dial.kind == "cpu" and setting is not None and setting.hz in clocks:
                return clocks[setting.hz]
        if clocks:
            return clocks[max(clocks)]
        return self._model.options(observed.work, observed.dials, observed.write_us)[0]


def _above_watts(option: RaceOption, units: float) -> float:
    """Mean power of a race above idle."""
    us = option.takes_us(units)
    return max(0.0, 1e6 * option.joules(units, 0.0) / us) if us > 0 else 0.0
