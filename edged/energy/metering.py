"""What the board takes: meters on their own timer, joules so far, and the ledger.

The heart's waiter polls one timer that is armed for the next reading; where there is no meter it is
never armed and nothing wakes.  Beats only add to counters.  When a reading is taken (without a
meter: when somebody asks) the counters since the last one are booked, spread over that time.

Joules at any moment, which policies ask for twice a beat, are those measured up to the last reading
and, from there on and for gaps, what the model says: the idle board and edged's own work.  A meter
tells of work only after its lag (`Sampler.lag_us`), so that what was modelled within the last lag
is added too: work that is done is in them at once, in part twice for as long as a lag.  They never
fall: where the model was ahead of the meter they stand until that has caught up.
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
"""By job and operator, wall ns so far."""
RECENT_US = 1_000_000
"""Figures of less time are not told anew."""
IDLE_US = 10_000_000
"""Counters of clocks and sleep are read so often at least, where something is read at all: a core
that goes offline loses its own only since then."""
MODEL = Rail("model", ("input",))


class Metering:
    """One board's figures since the process began."""

    def __init__(self, site: BoardSite, tariff: Tariff | None, clock: Clock) -> None:
        # what reading a simulated board takes here is no cost of a board's
        cpu_us = thread_time_us if site.simulated is None else lambda: 0.0
        self.sampler = Sampler(site.meters.meters, cpu_us)
        self.timer = TimerFd()
        self.at_us = self.started_us = clock.monotonic_us()
        """Of the last reading."""
        self.tuples = self.beats = 0
        self.tuples_read = self.beats_read = 0
        """As they were counted at the last reading."""
        self.clocks_us: dict[int, float] = {}
        """Time that races took, by the CPU's clock."""
        self.others_cores = 0.0
        """Cores that other processes keep busy."""
        self.readings = 0
        self._site, self._tariff, self._clock = site, tariff, clock
        self._busy = BusyCores(site.sysfs)
        self._idle_states = IdleStates(site.sysfs)
        self._idle_since = self._idle_states.read(self.started_us)
        self._idle: tuple[dict[str, float], float] | None = None
        self.idle_s: dict[str, float] = {}
        """By idle state, core-seconds so far."""
        self.core_s = 0.0
        """Core-seconds that idle states tell of."""
        self.wakeups = 0.0
        """Of all cores, so far."""
        self.residency = Residency(site.sysfs, site.knobs, self.started_us)
        self._above_j = 0.0
        self._anchor = (0.0, 0.0)
        """Joules at the last reading, and what the model had said by then."""
        self._told = 0.0
        self._past: deque[tuple[int, float]] = deque([(self.started_us, 0.0)])
        """When was read within the last lag, and joules above idle that the model had said by then;
        the first from before it."""
        self._unseen_j = 0.0
        """Of those, what the last reading may not tell of yet."""
        self._mark: dict[Key, RailEnergy] = {}
        self._pending: dict[tuple[str, str], float] = {}
        """By phase and clock, modelled joules above idle since the last reading."""
        self._core_us = 0.0
        self._spent: dict[tuple[str, str], int] = {}
        self._ship_s = 0.0
        self._report: tuple[int, Report] | None = None
        self.ledger = self._new_ledger()
        self.arm()

    # what beats tell ---------------------------------------------------------------------------

    def race(
        self, us: float, ingest_share: float, hz: int, cores: float, moved_bytes: float
    ) -> None:
        """A race took so long, on the mean so many cores at a clock."""
        self.clocks_us[hz] = self.clocks_us.get(hz, 0.0) + us
        self._core_us += us * cores
        if self._tariff is None:
            return
        watts = self._tariff.race_watts("cpu", hz, round(4 * cores) / 4) - self._tariff.idle_watts
        joules = max(0.0, watts) * us / 1e6 + self._tariff.byte_j * moved_bytes
        opp = f"{hz / 1e6:.0f} MHz"
        self._add("ingest", opp, ingest_share * joules)
        self._add("race", opp, (1.0 - ingest_share) * joules)

    def beside(self, cycles: float, wakes: int) -> None:
        """Commits, acks and control since the last race, and how often a core was woken."""
        if self._tariff is not None:
            self._add("commit", "", cycles * self._tariff.cycle_j)
            self._add("idle", "", wakes * self._tariff.wake_j)

    def ship(self, cpu_s: float, cycles_per_s: float) -> float:
        """The uplink's process has had so much CPU time; how much of it is new."""
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
        """Of the whole input since the process began."""
        told = self._anchor[0] + self._modelled(now_us) - self._anchor[1] + self._unseen_j
        self._told = max(self._told, told)
        return self._told

    def _modelled(self, now_us: int) -> float:
        idle_w = 0.0 if self._tariff is None else self._tariff.idle_watts
        return idle_w * (now_us - self.started_us) / 1e6 + self._above_j

    @property
    def provenance(self) -> Provenance:
        """Of the joules."""
        measured = self.sampler.wholes and self.sampler.wholes[0].provenance
        return measured or Provenance.MODELLED

    # readings ----------------------------------------------------------------------------------

    def arm(self) -> None:
        """Set the timer for the next reading, if there is something to read."""
        due = self.sampler.due_us(self._clock.monotonic_us())
        if due is not None:
            self.timer.arm(due)

    def read(self, spent: Spent) -> None:
        """Read what is due and book what came since the last reading."""
        now = self._clock.monotonic_us()
        self.readings += 1
        if now - self._idle_since.at_us >= IDLE_US:
            self._observe(now)
        busy = self._cores(now)
        if self.sampler.due_us(now) is not None:
            self.sampler.sample(now, busy)
        energy = self.sampler.input_energy(self._mark)
        modelled = self._modelled(now)
        if energy is None:
            energy = RailEnergy(
                MODEL, modelled - self._anchor[1], Provenance.MODELLED, self.at_us, now
            )  # fmt: skip
        self._book(energy, now, spent)
        read_us = energy.until_us - energy.since_us - energy.gap_us
        unread = 1.0 - min(1.0, read_us / max(1, now - self.at_us))
        told = self._anchor[0] + energy.joules + unread * (modelled - self._anchor[1])
        self._anchor = (told, modelled)
        self._unseen_j = (1.0 - unread) * self._not_seen(now) if energy.rail != MODEL else 0.0
        self._mark = self.sampler.totals
        self.at_us, self.tuples_read, self.beats_read = now, self.tuples, self.beats

    def _not_seen(self, now: int) -> float:
        """Joules above idle, as modelled, of the last lag."""
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
        """How the race since the last reading divides among operators and sinks."""
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

    # for people --------------------------------------------------------------------------------

    def report(self) -> Report | None:
        """The books by account; made anew when a window has closed, every 5 s at most: to fit them
        takes tens of milliseconds of the daemon where many clocks were met."""
        if self.ledger is None:
            return None
        if self._report is None or self._report[0] != self.ledger.closed:
            self._report = (self.ledger.closed, self.ledger.report())
        return self._report[1]

    def idle_states(self, now_us: int) -> tuple[dict[str, float], float] | None:
        """Shares of time in each idle state and wakeups a second, of all cores, over the time since
        somebody last asked; None where the board does not tell."""
        if self._idle is None or now_us - self._idle_since.at_us >= RECENT_US:
            self._observe(now_us)
        return self._idle

    def _observe(self, now_us: int) -> None:
        """Read the counters of clocks and sleep."""
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
        """Release meters and timer."""
        self.sampler.close()
        self.timer.close()


def cpu_seconds(pid: int) -> float:
    """User and system time of a process; 0 where it is gone."""
    import os

    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
