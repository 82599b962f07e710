"""Metering of a daemon: meters on their own timer, joules so far, and the ledger.

The event loop polls one timer, armed for the next reading; without a meter it is never armed and
causes no wakeup.  Beats only add to counters.  At a reading (without a meter: when a client asks)
the counters since the last one are booked, spread over that time.

Policies need the joules twice per beat.  They are the measured joules up to the last reading plus
the modelled joules since then and in gaps (idle board and edged's own work). A meter reflects work
only after its lag (`Sampler.lag_us`), so modelled work within the last lag is added too: finished
work counts at once, in part twice for the length of a lag.  The result never decreases: where the
model was ahead of the meter, it stays constant until the meter catches up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from pathlib import Path

from edged.energy.board import BoardSite
from edged.platform.clock import Clock
from edged.platform.timers import TimerFd
from governors.actuators.residency import Residency
from governors.actuators.sleep import IdleStates, idle_between
from governors.energy import Provenance, Rail, RailEnergy
from governors.ledger import OTHER, Ledger, LedgerAccount, Report
from governors.meters.busy import BusyCores
from governors.meters.rails import Key
from governors.meters.sampler import Sampler, thread_time_us
from governors.tariff import Tariff

Spent = Mapping[tuple[str, str], int]
"""Wall time (ns) so far by job and operator."""
RECENT_US = 1_000_000
"""Figures younger than this are not read again."""
IDLE_US = 10_000_000
"""Longest interval of reading the counters of clocks and idle states, where anything is read: a
core that goes offline loses only the time since then."""
MODEL = Rail("model", ("input",))


class Metering:
    """Figures of one board since the process began."""

    def __init__(self, site: BoardSite, tariff: Tariff | None, clock: Clock) -> None:
        # reading a simulated board costs this machine's time, not the board's
        cpu_us = thread_time_us if site.simulated is None else lambda: 0.0
        self.sampler = Sampler(site.meters.meters, cpu_us)
        self.timer = TimerFd()
        self.at_us = self.started_us = clock.monotonic_us()
        """Time of the last reading."""
        self.tuples = self.beats = 0
        self.tuples_read = self.beats_read = 0
        """Counts at the last reading."""
        self.clocks_us: dict[int, float] = {}
        """Time of races by CPU clock."""
        self.others_cores = 0.0
        """Cores kept busy by other processes."""
        self.readings = 0
        self._site, self._tariff, self._clock = site, tariff, clock
        self._busy = BusyCores(site.sysfs)
        self._idle_states = IdleStates(site.sysfs)
        self._idle_since = self._idle_states.read(self.started_us)
        self._idle: tuple[dict[str, float], float] | None = None
        self.idle_s: dict[str, float] = {}
        """Core-seconds so far by idle state."""
        self.core_s = 0.0
        """Core-seconds that the idle counters cover."""
        self.wakeups = 0.0
        """Wakeups of all cores so far."""
        self.residency = Residency(site.sysfs, site.knobs, self.started_us)
        self._above_j = 0.0
        self._anchor = (0.0, 0.0)
        """Joules at the last reading, and the model's joules at that time."""
        self._reported_j = 0.0
        self._past: deque[tuple[int, float]] = deque([(self.started_us, 0.0)])
        """Times of readings within the last lag with the modelled joules above idle at each; the
        first is older."""
        self._unreported_j = 0.0
        """Modelled joules that the last reading may not reflect yet."""
        self._mark: dict[Key, RailEnergy] = {}
        self._pending: dict[tuple[str, str], float] = {}
        """Modelled joules above idle since the last reading, by phase and clock."""
        self._core_us = 0.0
        self._spent: dict[tuple[str, str], int] = {}
        self._ship_s = 0.0
        self._after_race_j = 0.0
        """Joules above idle per cycle of one core at the clock of the last race; 0: none yet."""
        self._report: tuple[int, Report] | None = None
        self.ledger = self._new_ledger()
        self.arm()

    # beats ---------------------------------------------------------------------------

    def race(
        self, us: float, ingest_share: float, hz: int, cores: float, moved_bytes: float,
        clock_known: bool = True,
    ) -> None:  # fmt: skip
        """A race took `us` on `cores` cores (mean) at a clock, assumed where it is not known."""
        if clock_known:
            self.clocks_us[hz] = self.clocks_us.get(hz, 0.0) + us
        self._core_us += us * cores
        if self._tariff is None:
            return
        one_w = self._tariff.race_watts("cpu", hz, 1.0) - self._tariff.idle_watts
        self._after_race_j = max(0.0, one_w) / hz
        watts = self._tariff.race_watts("cpu", hz, round(4 * cores) / 4) - self._tariff.idle_watts
        joules = max(0.0, watts) * us / 1e6 + self._tariff.byte_j * moved_bytes
        opp = f"{hz / 1e6:.0f} MHz"
        self._add("ingest", opp, ingest_share * joules)
        self._add("race", opp, (1.0 - ingest_share) * joules)

    def beside(self, cycles: float, wakes: int, worked: bool) -> None:
        """Add commits, acks and control since the last race, and wakeups.  Unless the process has
        `worked` on tuples since, there was no commit: control is part of being idle.

        A commit follows its race at the clock that the race has left."""
        if self._tariff is not None:
            phase, cycle_j = "idle", self._tariff.cycle_j
            if worked:
                phase, cycle_j = "commit", self._after_race_j or cycle_j
            self._add(phase, "", cycles * cycle_j)
            self._add("idle", "", wakes * self._tariff.wake_j)

    def ship(self, cpu_s: float, cycles_per_s: float) -> float:
        """Add CPU time of the uplink's process (cumulative); returns the new part."""
        new = max(0.0, cpu_s - self._ship_s)
        self._ship_s = cpu_s
        if self._tariff is not None:
            self._add("ship", "", new * cycles_per_s * self._tariff.cycle_j)
        return new

    def _add(self, phase: str, opp: str, joules: float) -> None:
        self._above_j += joules
        self._pending[phase, opp] = self._pending.get((phase, opp), 0.0) + joules

    # joules ------------------------------------------------------------------------------------

    def joules(self, now_us: int) -> float:
        """Joules of the whole input since the process began."""
        total = self._anchor[0] + self._modelled(now_us) - self._anchor[1] + self._unreported_j
        self._reported_j = max(self._reported_j, total)
        return self._reported_j

    def _modelled(self, now_us: int) -> float:
        idle_w = 0.0 if self._tariff is None else self._tariff.idle_watts
        return idle_w * (now_us - self.started_us) / 1e6 + self._above_j

    @property
    def provenance(self) -> Provenance:
        """Provenance of the joules."""
        measured = self.sampler.wholes and self.sampler.wholes[0].provenance
        simulated = self._site.simulated is not None
        return measured or (Provenance.SIMULATED if simulated else Provenance.MODELLED)

    # readings ----------------------------------------------------------------------------------

    def arm(self) -> None:
        """Arm the timer for the next reading, if there is a meter."""
        due = self.sampler.due_us(self._clock.monotonic_us())
        if due is not None:
            self.timer.arm(due)

    def read(self, spent: Spent, all_meters: bool = False) -> None:
        """Read the meters that are due, or all, and book the time since the last reading."""
        now = self._clock.monotonic_us()
        self.readings += 1
        if now - self._idle_since.at_us >= IDLE_US:
            self._observe(now)
        busy = self._cores(now)
        if self.sampler.due_us(now) is not None:
            self.sampler.sample(now, busy, all_meters)
        energy = self.sampler.input_energy(self._mark)
        modelled = self._modelled(now)
        if energy is None:
            energy = RailEnergy(
                MODEL, modelled - self._anchor[1], Provenance.MODELLED, self.at_us, now
            )  # fmt: skip
        self._book(energy, now, spent)
        read_us = energy.until_us - energy.since_us - energy.gap_us
        unread = 1.0 - min(1.0, read_us / max(1, now - self.at_us))
        total = self._anchor[0] + energy.joules + unread * (modelled - self._anchor[1])
        self._anchor = (total, modelled)
        self._unreported_j = (1.0 - unread) * self._recent_j(now) if energy.rail != MODEL else 0.0
        self._mark = self.sampler.totals
        self.at_us, self.tuples_read, self.beats_read = now, self.tuples, self.beats

    def resume(self, joules: float) -> RailEnergy | None:
        """The machine was suspended since the last reading, and drew `joules` by its figures.

        Returns what a meter has counted through the suspend, and then that counts; None without
        one.  The time is no part of the ledger.
        """
        now = self._clock.monotonic_us()
        self.sampler.sample(now, None, True)
        found = self.sampler.input_energy(self._mark)
        if found is not None and (
            found.gap_us or found.rail.name not in self.sampler.counted_wholes
        ):
            found = None
        total = self._anchor[0] + (joules if found is None else found.joules)
        self._anchor = (total, self._modelled(now))
        self._unreported_j, self._mark, self.at_us = 0.0, self.sampler.totals, now
        self._observe(now)
        return found

    def _recent_j(self, now: int) -> float:
        """Modelled joules above idle within the last lag."""
        lag_us = max((self.sampler.lag_us(w.name) for w in self.sampler.wholes), default=0)
        self._past.append((now, self._above_j))
        while len(self._past) > 2 and self._past[1][0] <= now - lag_us:
            self._past.popleft()
        return self._above_j - self._past[0][1]

    def _cores(self, now: int) -> float | None:
        """Mean number of busy cores since the last reading."""
        own = self._core_us / max(1, now - self.at_us)
        self._core_us = 0.0
        if self._site.simulated is not None:
            return own
        busy = self._busy.since_last(now)
        self.others_cores = 0.0 if busy is None else max(0.0, busy - own)
        return busy

    def _book(self, energy: RailEnergy, now: int, spent: Spent) -> None:
        pending, self._pending = self._pending, {}
        shares = self._shares(spent)
        if self.ledger is None or now <= self.at_us:
            return
        for (phase, opp), joules in pending.items():
            if phase != "race":
                self.ledger.book(LedgerAccount(phase), joules, self.at_us, now, opp)
                continue
            for (job, operator), share in shares.items():
                account = LedgerAccount("race", job, operator)
                self.ledger.book(account, share * joules, self.at_us, now, opp)
        if self.others_cores and self._tariff is not None:
            hz = max(self.clocks_us, default=0)
            above = self._tariff.race_watts("cpu", hz, 1.0) - self._tariff.idle_watts if hz else 0.0
            joules = max(0.0, above) * self.others_cores * (now - self.at_us) / 1e6
            self.ledger.book(LedgerAccount(OTHER), joules, self.at_us, now)
        self.ledger.measure(energy)

    def _shares(self, spent: Spent) -> dict[tuple[str, str], float]:
        """Share of each operator and sink in the races since the last reading."""
        new = {key: max(0, ns - self._spent.get(key, 0)) for key, ns in spent.items()}
        self._spent = dict(spent)
        total = sum(new.values())
        if not total:
            return {("", ""): 1.0}
        return {key: ns / total for key, ns in new.items() if ns}

    def _new_ledger(self) -> Ledger | None:
        model = self._site.model
        if model is None or self._tariff is None:
            return None
        sensor = model.profile.sensor
        known = any(m.name.startswith(sensor.meter) for m in self._site.meters.meters)
        lag_us = int(500 * (sensor.refresh_ms or 0.0)) if known else 0
        error_w = model.error_watts(model.idle_load())
        return Ledger(self._tariff.idle_watts, max(error_w, 0.01), lag_us=lag_us)

    # reports --------------------------------------------------------------------------------

    def report(self) -> Report | None:
        """The ledger by account; computed only when a window has closed, at most every 5 s, since
        the fit takes tens of milliseconds when many clocks occurred."""
        if self.ledger is None:
            return None
        if self._report is None or self._report[0] != self.ledger.closed:
            self._report = (self.ledger.closed, self.ledger.report())
        return self._report[1]

    def idle_states(self, now_us: int) -> tuple[dict[str, float], float] | None:
        """Shares of time in each idle state and wakeups per second of all cores since the previous
        observation; None where the board has no counters."""
        if self._idle is None or now_us - self._idle_since.at_us >= RECENT_US:
            self._observe(now_us)
        return self._idle

    def _observe(self, now_us: int) -> None:
        """Read the counters of clocks and idle states."""
        self.residency.read(now_us)
        counts = self._idle_states.read(now_us)
        between = idle_between(self._idle_since, counts)
        self._idle_since = counts
        self._idle = None if between is None else (between.share, between.wakeups_per_s)
        if between is not None:
            core_s = between.spent_us * len(between.cores) / 1e6
            self.core_s += core_s
            self.wakeups += between.wakeups_per_s * between.spent_us / 1e6
            for name, share in between.share.items():
                self.idle_s[name] = self.idle_s.get(name, 0.0) + share * core_s

    def close(self) -> None:
        """Close meters and timer."""
        self.sampler.close()
        self.timer.close()


def cpu_seconds(pid: int) -> float:
    """User and system time of a process; 0 after its end."""
    import os

    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
