"""CPU time, cost and arrival rate of beats.

The process's CPU time has three accounts: ingest, race, and everything else (beside). The
measurements go to the ledger (`Metering`), to the fitted race cost (`RaceLaw`) that prices
policies, and on a simulated board to that board as work.  A kernel on a GPU uses no cycles of a
core: its calibrated time is subtracted before the fit and added to the cost as a GPU part (`cost`).

Where no policy sets anything, beats are only counted (`HandsOffTotals`), one race in SAMPLE with
its CPU time, and booked when a client reads the figures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from edged.beat.runtime import JobRuntime
from edged.energy.board import BoardSite
from edged.energy.cost_fit import RaceLaw, row_bytes, width_scale
from edged.energy.hands_off_totals import HandsOffTotals
from edged.energy.metering import Metering, Spent, cpu_seconds
from edged.platform.clock import Clock
from governors.base import Done
from governors.placement_prices import KernelPart, with_part
from governors.work import RaceCost

CLOCK_US = 1_000_000
"""Interval of reading the clock of races without a set clock."""
ASSUMED_HZ = 10**9
"""Clock that prices races where none can be read; it is shown nowhere."""
SAMPLE = 8
TALLY_MAX = 256
"""Counted races are booked after this many, so that placement has a current arrival rate."""
RATE_WEIGHT = 0.3
"""Weight of the newest beat in the arrival rate."""


class Accounts:
    """Measures beats; called before a race, after its ingest and after it."""

    def __init__(
        self, site: BoardSite, watch: Metering, clock: Clock, workers: int,
        set_hz: Callable[[], int], now_hz: Callable[[], int | None], wakes: Callable[[], int],
    ) -> None:  # fmt: skip
        """`set_hz`: the pinned CPU clock, or 0; `now_hz`: the clock as read; `wakes`: wakeups of
        this process so far."""
        self.rate = 0.0
        """Rows per second."""
        self._site, self._watch, self._clock, self._workers = site, watch, clock, workers
        self._set_hz, self._now_hz, self._wakes = set_hz, now_hz, wakes
        self._jobs: Sequence[JobRuntime] = ()
        self._row_bytes = 0.0
        self._law: RaceLaw | None = None
        self._mark_ns = time.process_time_ns()
        self._own_ns = 0
        """CPU time of reading a simulated board's meters, which is not work of the board."""
        self._commits = 0
        """Beats since the last race that only committed."""
        self._worked = False
        """Whether a beat has taken in or passed on tuples since the last booking."""
        self._begun: tuple[int, int] | None = None
        self._ingested: tuple[int, int] = (0, 0)
        self._learnt_us = clock.monotonic_us()
        self._woken = 0
        self._hz = (0, 0)
        """Time of the last reading of the clock, and the clock; 0: never read."""
        self._tally = HandsOffTotals()

    def attach(self, jobs: Sequence[JobRuntime]) -> None:
        """Set the running jobs."""
        was, self._jobs = self._row_bytes, jobs
        self._row_bytes = row_bytes([job.plan for job in jobs])
        if was != self._row_bytes:
            self._law = None  # costs depend on the row width

    # counted beats (no policy sets anything) ---------------------------------------------------

    def count_begun(self, at_us: int) -> None:
        """A race starts that is only counted."""
        sampled = self._tally.races % SAMPLE == 0
        self._begun = (at_us, time.process_time_ns() if sampled else 0)

    def count(self, done: Done, now_us: int) -> None:
        """A beat that is only counted is over."""
        tally = self._tally
        if self._begun is not None:
            begun_us, begun_ns = self._begun
            tally.races += 1
            tally.us += now_us - begun_us
            tally.ingest_us += self._ingested[0] - begun_us
            if begun_ns:
                tally.sampled_us += now_us - begun_us
                tally.sampled_ns += time.process_time_ns() - begun_ns
            self._begun = None
        elif done.arrived:
            tally.commits += 1
        if done.arrived or done.taken:
            tally.beats += 1
            tally.arrived += done.arrived
            tally.taken += done.taken
        if tally.races >= TALLY_MAX:
            self.settle()

    def settle(self) -> bool:
        """Book the counted beats as equal races; returns whether there were any."""
        tally, self._tally = self._tally, HandsOffTotals()
        self._watch.beats += tally.beats
        self._watch.tuples += tally.taken
        n, now_us = tally.races, self._clock.monotonic_us()
        if n == 0:
            return False
        self.learn_rate(Done(tally.arrived, tally.taken), now_us)
        used_us = (time.process_time_ns() - self._mark_ns) / 1e3
        self.mark()
        cpu_us = min(used_us, tally.us * tally.sampled_ns / 1e3 / max(1, tally.sampled_us))
        us, cores = self._shape(float(tally.us), cpu_us)
        hz, moved = self._clock_hz(now_us), self._row_bytes * tally.taken
        rows = round(tally.taken / n)
        cycles = self._cycles_of(us / n, moved / n, rows, hz)
        ingest = min(1.0, tally.ingest_us / us)
        self._watch.race(us, ingest, hz, cores, moved, self._clock_known())
        self._race_law().note(rows, cycles, cores)
        beside = self._cycles(used_us - cpu_us)
        self._race_law().note_beside(beside / n, tally.commits // n)
        self._watch.beside(beside, self._new_wakes(), tally.arrived + tally.taken > 0)
        return True

    # measured beats ----------------------------------------------------------------------------

    def begin(self) -> None:
        """A race starts now; the work of the decision before it is excluded."""
        self.mark()
        self._begun = (self._clock.monotonic_us(), self._mark_ns)

    def ingested(self, counted: bool) -> None:
        """The ingest is complete."""
        self._ingested = (
            self._clock.monotonic_us(),
            0 if counted else time.process_time_ns(),
        )

    def end(self, done: Done, now_us: int, now_ns: int) -> None:
        """A beat is over, with or without a race."""
        self.learn_rate(done, now_us)
        if done.arrived or done.taken:
            self._worked = True
            self._watch.beats += 1
            self._watch.tuples += done.taken
        if self._begun is None:
            self._commits += done.arrived > 0
            return
        self._raced(*self._begun, done, now_us, now_ns)
        self._begun, self._mark_ns, self._own_ns = None, now_ns, 0

    def pass_time(self, now_us: int) -> None:
        """Book the process's work since the last race."""
        beside_us = max(0.0, (time.process_time_ns() - self._mark_ns - self._own_ns) / 1e3)
        new = self._new_wakes()
        cycles = self._cycles(beside_us)
        if self._site.simulated is not None:
            self._site.simulated.pass_time(now_us, beside_us, new)
        self._race_law().note_beside(cycles, self._commits)
        self._watch.beside(cycles, new, self._worked)
        self._commits, self._worked = 0, False

    def mark(self) -> None:
        """Exclude the CPU time up to now from every account."""
        self._mark_ns = time.process_time_ns()
        self._own_ns = 0

    def leave_out(self, own_ns: int) -> None:
        """Exclude CPU time that is not work of the board."""
        self._own_ns += own_ns

    def ship(self, pid: int | None) -> None:
        """Book the CPU time of the uplink's process since the previous call."""
        if pid is None:
            return
        new_s = self._watch.ship(cpu_seconds(pid), self._cycles(1e6))
        if self._site.simulated is not None:
            self._site.simulated.pass_time(self._clock.monotonic_us(), 1e6 * new_s, 0)

    # results -----------------------------------------------------------------------------------

    def cost(self) -> dict[str, RaceCost]:
        """Cost of a race by processor."""
        cost, away = self._race_law().cost(), self._away()
        for part in away:
            cost = with_part(cost, part, self._hz[1] or ASSUMED_HZ)
        return {"gpu" if away else "cpu": cost}

    def waiting(self, staged: int, now_us: int) -> float:
        """Expected number of waiting rows: the staged ones, and arrivals at the current rate."""
        return staged + self.rate * max(0, now_us - self._learnt_us) / 1e6

    def spent(self) -> Spent:
        """Wall time (ns) of every operator and sink; joules are shared in proportion."""
        return {
            (job.plan.name, name): ns for job in self._jobs for name, ns in job.spent_ns.items()
        }

    def learn_rate(self, done: Done, now_us: int) -> None:
        """Update the arrival rate with a beat."""
        passed_us, self._learnt_us = now_us - self._learnt_us, now_us
        if passed_us > 0:
            self.rate += RATE_WEIGHT * (1e6 * done.arrived / passed_us - self.rate)

    def _raced(self, begun_us: int, begun_ns: int, done: Done, now_us: int, now_ns: int) -> None:
        cpu_us = (now_ns - begun_ns) / 1e3
        us, cores = self._shape(float(now_us - begun_us), cpu_us)
        ingest = min(1.0, max(0.0, (self._ingested[1] - begun_ns) / 1e3 / max(1.0, cpu_us)))
        moved = self._row_bytes * done.taken
        if self._site.simulated is not None:
            cores = min(cores, float(self._site.simulated.board.profile.core_count))
            cycles = self._site.simulated.cycles(cpu_us) / cores
            us = max(1.0, self._site.simulated.race(now_us, cpu_us, cores, moved))
            hz = self._nearest(1e6 * cycles / max(1.0, us - self._stall_us(moved)))
        else:
            hz = self._clock_hz(now_us)
            cycles = self._cycles_of(us, moved, done.taken, hz)
        self._watch.race(us, ingest, hz, cores, moved, self._clock_known())
        self._race_law().note(done.taken, cycles, cores)

    def _shape(self, us: float, cpu_us: float) -> tuple[float, float]:
        """Duration and mean number of cores of a race, from wall and CPU time."""
        us = max(1.0, us)
        return us, min(float(self._workers), max(1.0, cpu_us / us))

    def _cycles_of(self, us: float, moved_bytes: float, rows: int, hz: int) -> float:
        """Cycles of the longest thread, without stalls for memory and time on a GPU."""
        away_us = sum(part.at_us(rows) for part in self._away())
        return max(0.0, us - self._stall_us(moved_bytes) - away_us) * hz / 1e6

    def _away(self) -> list[KernelPart]:
        """Parts of a beat that run on a GPU."""
        placed = (placer.runs for job in self._jobs for placer in job.placers.values())
        return [part for part in placed if part is not None and part.device != "cpu"]

    def _new_wakes(self) -> int:
        wakes = self._wakes()
        new, self._woken = wakes - self._woken, wakes
        return new

    def _race_law(self) -> RaceLaw:
        if self._law is None:
            scale = width_scale(self._site.profile)
            self._law = RaceLaw(scale, self._stall_us(self._row_bytes), self._row_bytes)
        return self._law

    def _stall_us(self, moved_bytes: float) -> float:
        profile = self._site.profile
        peak = None if profile is None else profile.memory.peak_gbytes_per_s
        return moved_bytes / (peak * 1e3) if peak else 0.0

    def _cycles(self, cpu_us: float) -> float:
        if self._site.simulated is not None:
            return self._site.simulated.cycles(cpu_us)
        return cpu_us * (self._hz[1] or ASSUMED_HZ) / 1e6

    def _clock_hz(self, now_us: int) -> int:
        """Clock of races: the pinned one, or the last reading after a race."""
        pinned = self._set_hz()
        if pinned:
            return pinned
        if self._hz[1] == 0 or now_us - self._hz[0] >= CLOCK_US:
            read = self._now_hz()
            self._hz = (now_us, self._nearest(read) if read else self._hz[1])
        return self._hz[1] or ASSUMED_HZ

    def _clock_known(self) -> bool:
        """Whether the clock of the last race is pinned, read or simulated."""
        return bool(self._set_hz() or self._hz[1] or self._site.simulated is not None)

    def _nearest(self, hz: float) -> int:
        profile, domains = self._site.profile, self._site.cores.domains
        own = domains[0].table_hz if domains else ()
        table = own if profile is None else profile.clusters[0].choices_hz
        return min(table, key=lambda x: abs(x - hz), default=round(hz / 1e8) * 10**8)
