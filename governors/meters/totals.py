"""Joules of one rail from its readings.  Sans-IO.

    watts      trapezoids between readings; negative watts (an offset) count as zero
    joules     differences of the counter

Time is either covered or a gap, never both.  A gap is never filled in:

1. Two watt readings further apart than `bridge_us` leave a gap between them.
2. A failed watt reading makes the time from the last reading before it to the next one after it a
   gap.
3. A failed counter reading is bridged, since the counter includes the time afterwards.  The time
   becomes a gap only after `bridge_us`, or if the counter restarted.
4. A counter that went back, or forward by more than WATTS_MAX allows, restarted.
5. A frozen sensor counts as failing.

A sensor is frozen if FROZEN_READINGS consecutive readings are identical while the measured load
changed by at least two of its steps and was high and low for FROZEN_SETTLED readings each (a sensor
may average over 0.42 s, one interval). An identical value alone proves nothing: an INA3221's step
is at least 39 mW, and an idle rail stays within one for hours.  But one more busy core draws at
least CORE_WATTS_MIN, its power at the slowest clock of the slowest board (docs/hardware.md: 0.385
W/GHz/V² x 0.102 GHz x 0.71 V² + 0.049 W). Joules counted before the detection stay;
`frozen_since_us` is the time from which they are doubtful.
"""

from __future__ import annotations

from collections import deque

from governors.energy import Provenance, Rail, RailEnergy
from governors.meters.base import WATTS_MAX, Reading

FROZEN_READINGS = 8
CORE_WATTS_MIN = 0.077
SLACK_US = 1_000_000
"""Some counters are updated only about once in this time."""
FROZEN_SETTLED = 3


class Total:
    """Joules of one rail since its first reading."""

    def __init__(
        self, rail: Rail, provenance: Provenance, counts: bool, step_w: float = 0.0
    ) -> None:
        self.problem = "not read yet"
        """Why the last reading failed; empty where it did not."""
        self.watts: float | None = None
        """Last reading; for a counter, the mean between its last two readings; None where
        unknown."""
        self.frozen_since_us: int | None = None
        """Time of the first reading of the frozen value."""
        self._rail, self._provenance, self._counts = rail, provenance, counts
        self._cores_frozen = 2 * step_w / CORE_WATTS_MIN
        """Change of busy cores that a live sensor must show; 0: never reported as frozen."""
        self._joules = 0.0
        self._gap_us = 0
        self._since_us: int | None = None
        self._until_us = 0
        self._last: float | None = None
        """Value (W or J) at `_until_us`."""
        self._same = deque[tuple[float, float | None, int]](maxlen=FROZEN_READINGS)

    def energy(self) -> RailEnergy | None:
        """Joules so far; None before the first reading."""
        if self._since_us is None:
            return None
        return RailEnergy(
            self._rail, self._joules, self._provenance, self._since_us, self._until_us, self._gap_us
        )

    def take(self, reading: Reading, bridge_us: int, busy_cores: float | None = None) -> None:
        """Add a reading.  `busy_cores`: mean number of busy cores since the previous one, where
        known."""
        if self._since_us is None:
            self._since_us = self._until_us = reading.at_us
        value = reading.joules if self._counts else reading.watts
        self.problem = reading.problem if value is None or reading.problem else ""
        if value is not None and self._frozen(value, busy_cores, reading.at_us):
            value, self.problem = None, f"frozen at {value:g} while the work changes"
        passed_us = reading.at_us - self._until_us
        self.watts = reading.watts
        if self._counts:
            self._take_count(value, bool(reading.problem), passed_us, bridge_us)
        else:
            self._take_watts(value, passed_us, bridge_us)

    def _take_watts(self, watts: float | None, passed_us: int, bridge_us: int) -> None:
        watts = None if watts is None else max(0.0, watts)
        if watts is None or self._last is None or passed_us > bridge_us:
            self._gap_us += passed_us
        else:
            self._joules += (self._last + watts) / 2 * passed_us / 1e6
        self._last = watts
        self._until_us += passed_us

    def _take_count(self, joules: float | None, anew: bool, passed_us: int, bridge_us: int) -> None:
        late = passed_us > bridge_us
        if joules is None and not late and self._last is not None:
            return
        if joules is not None and self._last is not None and not anew:
            moved = joules - self._last
            anew = not 0 <= moved <= WATTS_MAX * (passed_us + SLACK_US) / 1e6
            self.problem = f"the counter moved by {moved:g} J, which is impossible" if anew else ""
        if joules is None or self._last is None or anew or late:
            self._gap_us += passed_us
        else:
            self._joules += joules - self._last
            self.watts = 1e6 * (joules - self._last) / passed_us if passed_us else None
        self._last = joules
        self._until_us += passed_us

    def _frozen(self, value: float, busy_cores: float | None, at_us: int) -> bool:
        if not self._cores_frozen:
            return False
        if self._same and self._same[-1][0] != value:
            self._same.clear()
            self.frozen_since_us = None
        self._same.append((value, busy_cores, at_us))
        if self.frozen_since_us is not None:
            return True
        busy = sorted(cores for _, cores, _ in self._same if cores is not None)
        if len(busy) < FROZEN_READINGS:
            return False
        if busy[-FROZEN_SETTLED] - busy[FROZEN_SETTLED - 1] >= self._cores_frozen:
            self.frozen_since_us = self._same[0][2]
        return self.frozen_since_us is not None


def difference(now: RailEnergy, before: RailEnergy | None) -> RailEnergy:
    """Joules between two totals of one rail."""
    if before is None:
        return now
    return RailEnergy(
        now.rail,
        now.joules - before.joules,
        now.provenance,
        before.until_us,
        now.until_us,
        now.gap_us - before.gap_us,
    )
