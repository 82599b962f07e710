"""The governor of a running daemon: one policy, the limits that it owns, and what it is told.

Told before each race, after its ingest and after it, it keeps three accounts of CPU time (ingest;
race; beside, which is all else that this process did), learns from them what races cost, asks the
policy and sets what it decides.

Nothing here may end the daemon.  A policy that may not set anything, or another daemon that owns
the board, leaves `hands_off`, with the reason in `problem`; so does any error, which is written to
standard error once.  Where it was another daemon, the policy that was asked for begins when that
one has let go: it is tried again when meters are read and at beats, every RETRY_US at most, and
never by a wake of its own.

Under `hands_off` nothing is owned and nothing is asked: beats are only counted (`Tally`), one in
SAMPLE with its CPU time, and booked when meters are read or somebody asks.

Where the policy is about to race, a board's clocks are set for what is expected to wait: what is
staged, and what arrives at the rate of the last beats.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from edged.calibration import load_energy
from edged.clock import Clock
from edged.energy.board import Site
from edged.energy.law import RaceLaw, row_bytes, width_scale
from edged.energy.limits import Owned
from edged.energy.settings import HANDS_OFF, EnergySettings
from edged.energy.tally import Tally
from edged.energy.watch import Spent, Watch, cpu_seconds
from edged.errors import ConfigError
from edged.placement import DEFAULT
from governors.actuators.journal import Owned as OwnedByAnother
from governors.base import Done, Forecast, Steer
from governors.cost import CostModel, Gating, Radio, Sleep, Tariff
from governors.errors import GovernorError
from governors.meters import settings as meters
from governors.meters.battery import batteries, state
from governors.policies.base import Battery, Decision, Observation, Settings, Work
from governors.policies.running import BUSY_CORES, Running
from governors.tariff import BeatPrices, MeasuredTariff, ModelTariff

if TYPE_CHECKING:
    from edged.beat.runtime import JobRuntime

HOLD_US_MIN = 2_000
CLOCK_US = 1_000_000
"""The clock of races that are left alone is read so often."""
BATTERY_US = 5_000_000
RETRY_US = 2_000_000
SAMPLE = 8
TALLY_MAX = 256
"""Races that are only counted are booked by then, so that placement knows the pace of arrivals."""
RATE_WEIGHT = 0.3
"""Of the newest beat in the rate of arrival."""
Tell = Callable[[str, str, str, dict[str, Any]], None]
"""Kind of event, level, text, facts."""


class Windows(Protocol):
    """Pages that wait for an upload window (`edged.uplink.held.Held`)."""

    offered_bytes: int

    @property
    def within_us(self) -> int:
        """How long they may."""

    def soon(self) -> None:
        """Send them with the beat's."""


UNMODELLED = (HANDS_OFF, "fixed")
"""Policies that need no power model."""


class Energy:
    """Implements `governors.base.Governor`.  Between beats and in its hooks only: one thread."""

    def __init__(
        self,
        settings: EnergySettings,
        site: Site,
        tariff: Tariff | None,
        clock: Clock,
        workers: int,
    ) -> None:
        """Raises ConfigError where the policy or one of its settings does not exist."""
        self.settings, self.site, self.tariff = settings, site, tariff
        self.watch = Watch(site, tariff, clock)
        self.limits = Owned(site, tariff)
        self._jobs: Sequence[JobRuntime] = ()
        self._row_bytes = 0.0
        self.uplink_pid: Callable[[], int | None] = lambda: None
        self.wakes: Callable[[], int] = lambda: 0
        self.problem = ""
        """Why another policy runs than the one that was asked for."""
        self.reason = ""
        self._clock, self._workers = clock, workers
        self._policy = HANDS_OFF
        self._given: dict[str, Any] = {}
        self.held: Windows | None = None
        """Pages that wait for the uplink."""
        self._running = Running(HANDS_OFF, {}, CostModel(tariff or Unpriced()), chosen=False)
        self._check(settings.policy, settings.settings)
        self._steer = Steer()
        self._law: RaceLaw | None = None
        self._mark_ns = time.process_time_ns()
        self._commits = 0
        """Beats since the last race that have only committed."""
        self._own_ns = 0
        """CPU time of reading a simulated board's meters, which is none of the board's."""
        self._begun: tuple[int, int] | None = None
        self._ingested: tuple[int, int] = (0, 0)
        self._forecast = Forecast(0, 0, 0, 1, 0)
        self._ingested_us = clock.monotonic_us()
        self._rate = 0.0
        """Rows a second."""
        self._woken = 0
        self._hz = (0, 0)
        """When the clock of races was read, and what it was."""
        self._prices = beat_prices(site, tariff)
        self._battery: tuple[int, Battery | None] = (-BATTERY_US, None)
        self._failed = False
        self._tally = Tally()
        self._light = False
        """Whether hooks only count."""
        self._awaited: tuple[str, Settings] | None = None
        """The policy that begins when another daemon has let go of the board."""
        self._retried_us = 0
        self.tell: Tell = lambda *_: None
        """Told of what people should know."""
        self._silent: set[tuple[str, str]] = set()
        """Rails whose meters tell nothing just now."""

    def attach(self, jobs: Sequence[JobRuntime]) -> None:
        """The jobs by whose operators' times joules are shared.  Call it again when they change: a
        job that is gone has no say in the policy any more."""
        was, self._jobs = self._row_bytes, jobs
        for placer in (placer for job in jobs for placer in job.placers.values()):
            placer.prices = self._prices
        self._row_bytes = row_bytes([job.plan for job in jobs])
        if was != self._row_bytes:
            self._law = None  # other rows, other costs
        gone = set(self._running.jobs) - {job.plan.name for job in jobs}
        for name in gone:
            self._running.drop(name)
        if gone:
            self.settle()
            self._take_or_let_go()

    def restore(self) -> list[str]:
        """Restore what a daemon that died has left, whatever policy is to run; what was done."""
        try:
            self.limits.restore()
        except GovernorError as problem:
            return [f"limits were not restored: {problem}"]
        return list(self.limits.restored)

    def start(self) -> None:
        """Begin with the policy; the default is nobody's choice, and jobs' policies overrule it."""
        if self.settings.policy == HANDS_OFF:
            self._light = self.site.simulated is None
        else:
            self.switch(self.settings.policy, self.settings.settings)

    def close(self) -> None:
        """Give back what is ours.  Never raises."""
        try:
            for line in self.limits.release():
                self._complain(line)
            self.site.writer.close()
            self.watch.close()
        except Exception as problem:  # the data is safe: say it, and go
            self._complain(f"giving back the board: {problem}")

    # the policy --------------------------------------------------------------------------------

    def switch(self, name: str, settings: Settings) -> dict[str, Any]:
        """Go on with a policy; what runs then.  Raises ConfigError, and the old one goes on."""
        was = self._running.policy.name
        self._check(name, settings)
        self.settle()
        self._awaited = None
        self._begin(name, settings)
        return {**self.policy(), "was": was}

    def choose(self, job: str, name: str | None, settings: Settings) -> dict[str, Any]:
        """A job chooses a policy, or with None gives its choice up (`governors.policies.combined`
        says whose voice counts); what runs then.

        Raises ConfigError where there is no such job or policy, and all goes on as it was.
        """
        if job not in (known := [runtime.plan.name for runtime in self._jobs]):
            raise ConfigError(f"no job {job} is running; there are: {', '.join(known)}")
        was = self._running.policy.name
        if name is not None:
            self._check(name, settings)
        self.settle()
        if name is None:
            self._running.drop(job)
        else:
            self._running.choose(job, name, settings)
        self._lift()
        self._take_or_let_go()
        return {**self.policy(), "was": was}

    def _begin(self, name: str, settings: Settings) -> None:
        self._running.switch(name, settings)
        self._policy, self._given, self.problem = name, dict(settings), ""
        self._lift()
        self._take_or_let_go()

    def _lift(self) -> None:
        """End what the policy before has held back: the heart waits by the steer it was given."""
        self._steer.not_before_us = 0
        self._steer, self.reason = Steer(), ""

    @property
    def _sets(self) -> bool:
        """Whether what runs may set anything."""
        return self._running.policy.name != HANDS_OFF

    def _take_or_let_go(self) -> None:
        self._light = not self._sets and self.site.simulated is None
        if not self._sets:
            self._let_go()
            return
        try:
            self.limits.take()
            self._awaited = None
        except GovernorError as problem:
            if isinstance(problem, OwnedByAnother):
                self._awaited = (self._policy, self._given)
            self._fall_back(str(problem))

    def _retry(self, now_us: int) -> None:
        """Begin with the policy that another daemon was in the way of, if it no longer is."""
        if self._awaited is None or now_us - self._retried_us < RETRY_US:
            return
        self._retried_us = now_us
        self.settle()
        self._begin(*self._awaited)

    def policy(self) -> dict[str, Any]:
        """What runs, why, and what it foresees."""
        seen = self._seen(self._forecast, self._clock.monotonic_us())
        budget = self._running.policy.budget(seen)
        return {
            "policy": self._running.policy.name,
            "settings": self._given,
            "reason": self.reason,
            "forecast": self._running.policy.forecast(seen),
            "budget": None if budget is None else asdict(budget),
            "problem": self.problem,
            "awaited": None if self._awaited is None else self._awaited[0],
            "jobs": {job: chosen.name for job, chosen in self._running.jobs.items()},
        }

    def _check(self, name: str, settings: Settings) -> None:
        """Raise ConfigError for a policy that cannot run here."""
        try:
            Running(name, settings, CostModel(self.tariff or Unpriced()))
        except GovernorError as problem:
            raise ConfigError(str(problem)) from problem
        if self.tariff is None and name not in UNMODELLED:
            raise ConfigError(
                f"policy {name} needs a power model, and there is none of this board"
                f" ({self.site.board.name}): {' or '.join(UNMODELLED)}"
            )

    def _fall_back(self, why: str) -> None:
        """Nothing is set any more, for nobody."""
        for job in list(self._running.jobs):
            self._running.drop(job)
        self._running.switch(HANDS_OFF, {})
        self._policy, self._given, self.problem = HANDS_OFF, {}, why
        self._lift()
        self._light = self.site.simulated is None
        self._let_go()
        text = f"the clocks are left alone: {why}"
        self.tell("policy.fell_back", "warning", text, {"problem": why})

    def _let_go(self) -> None:
        for dial in list(self._running.standing):
            self._running.lost(dial)
        for line in self.limits.release():
            self._complain(line)

    def _fail(self, problem: Exception) -> None:
        """Whatever it was, the beats go on."""
        try:
            self._fall_back(f"{type(problem).__name__}: {problem}")
        except Exception as second:  # even giving back has failed
            self._policy, self.problem = HANDS_OFF, f"{problem}; then {second}"
        if not self._failed:
            self._failed = True
            self._complain(self.problem)

    def _complain(self, line: str) -> None:
        sys.stderr.write(f"edged: energy: {line}\n")
        sys.stderr.flush()

    # hooks -------------------------------------------------------------------------------------

    def race(self, forecast: Forecast) -> Steer:
        """A race is about to start."""
        self._forecast = forecast
        if self._light and self._awaited is None:
            sampled = self._tally.races % SAMPLE == 0
            self._begun = (forecast.at_us, time.process_time_ns() if sampled else 0)
            return self._steer
        try:
            self._retry(forecast.at_us)
            self._pass_time(forecast.at_us)
            self._steer.units_max = None
            if self._sets:
                self._before(forecast)
        except Exception as problem:  # a hook never raises
            self._fail(problem)
        self._mark()
        self._begun = (self._clock.monotonic_us(), self._mark_ns)
        return self._steer

    def ingested(self) -> None:
        """What had arrived is taken in."""
        now_ns = 0 if self._light else time.process_time_ns()
        self._ingested = (self._clock.monotonic_us(), now_ns)

    def idle(self, done: Done) -> Steer:
        """The race is over."""
        now_us = self._clock.monotonic_us()
        if self._light:
            self._count(done, now_us)
            return self._steer
        now_ns = time.process_time_ns()
        try:
            self._steer.units_max = None
            self._learn_rate(done, now_us)
            if done.arrived or done.taken:
                self.watch.beats += 1
                self.watch.tuples += done.taken
            if self._begun is not None:
                self._raced(done, now_us, now_ns)
                self._begun, self._mark_ns, self._own_ns = None, now_ns, 0
            else:
                self._commits += done.arrived > 0
            if self._sets:
                self._after()
            else:
                self._running.account.add(now_us, self.watch.joules(now_us))
            if self.site.simulated is not None:
                self._mark()  # what a simulated board takes here is no board's work
        except Exception as problem:  # a hook never raises
            self._fail(problem)
        return self._steer

    def _count(self, done: Done, now_us: int) -> None:
        """The beat of a board that is left alone."""
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

    def settle(self) -> None:
        """Book what was only counted, as that many like races."""
        tally, self._tally = self._tally, Tally()
        self.watch.beats += tally.beats
        self.watch.tuples += tally.taken
        n, now_us = tally.races, self._clock.monotonic_us()
        if n == 0:
            return
        self._learn_rate(Done(tally.arrived, tally.taken), now_us)
        used_us = (time.process_time_ns() - self._mark_ns) / 1e3
        self._mark()
        cpu_us = min(used_us, tally.us * tally.sampled_ns / 1e3 / max(1, tally.sampled_us))
        us, cores = self._shape(float(tally.us), cpu_us)
        moved = self._row_bytes * tally.taken
        hz = self._clock_hz(now_us)
        cycles = max(0.0, us - self._stall_us(moved)) * hz / 1e6
        self.watch.race(us, min(1.0, tally.ingest_us / us), hz, cores, moved)
        self._race_law().note(round(tally.taken / n), cycles / n, cores)
        beside = self._cycles(used_us - cpu_us)
        self._race_law().note_beside(beside / n, tally.commits // n)
        self.watch.beside(beside, self._new_wakes())
        self._running.account.add(now_us, self.watch.joules(now_us))

    def _shape(self, us: float, cpu_us: float) -> tuple[float, float]:
        """Time and mean cores of a race, from its wall and its CPU time."""
        us = max(1.0, us)
        return us, min(float(self._workers), max(1.0, cpu_us / us))

    def _new_wakes(self) -> int:
        wakes = self.wakes()
        new, self._woken = wakes - self._woken, wakes
        return new

    def read(self) -> None:
        """The timer's handler: a reading is due."""
        before_ns = time.thread_time_ns()
        try:
            self._retry(self._clock.monotonic_us())
            self.settle()
            self._ship()
            self.watch.read(self._spent())
            self.watch.arm()
            self._tell_silent()
        except Exception as problem:  # meters do not raise: what does is a bug, and no beat's
            self.watch.timer.disarm()
            self._fail(problem)
        if self.site.simulated is not None:
            self._own_ns += time.thread_time_ns() - before_ns

    def _tell_silent(self) -> None:
        """Tell of rails whose meters tell nothing any more, and of those that do again."""
        problems = self.watch.sampler.problems()
        for meter, rail in problems.keys() - self._silent:
            text = f"{meter} tells nothing of {rail}: {problems[meter, rail]}"
            self.tell("meter.lost", "warning", text, {"meter": meter, "rail": rail})
        for meter, rail in self._silent - problems.keys():
            text = f"{meter} tells of {rail} again"
            self.tell("meter.back", "info", text, {"meter": meter, "rail": rail})
        self._silent = set(problems)

    def _before(self, forecast: Forecast) -> None:
        self.limits.sleeps.leave()
        for name in self.limits.watch(forecast.at_us):
            self._running.lost(name)
            text = f"somebody else has changed a limit of {name}: planning goes on inside it"
            self.tell("limits.taken_over", "warning", text, {"name": name})
        seen = self._seen(forecast, forecast.at_us)
        decision = self._running.race(seen)
        if self._set(decision, forecast.at_us):
            decision = self._running.race(self._seen(forecast, forecast.at_us))
            self._set(decision, forecast.at_us)
        self.reason = decision.reason
        if decision.admit_share < 1.0:
            self._steer.units_max = int(decision.admit_share * seen.work.units)
            least_us = forecast.at_us + HOLD_US_MIN
            if self._steer.units_max == 0:
                self._steer.not_before_us = max(decision.not_before_us, least_us)

    def _after(self) -> None:
        now = self._clock.monotonic_us()
        decision = self._running.idle(self._seen(self._forecast, now))
        self._set(decision, now)
        self._steer.wait_share, self._steer.race_us = decision.wait_share, decision.race_us
        self._steer.not_before_us = decision.not_before_us
        if self.watch.others_cores < BUSY_CORES:
            self.limits.sleeps.enter(decision.sleep)
        if self.held is not None and decision.upload and self._running.policy.plans:
            self.held.soon()

    def _set(self, decision: Decision, at_us: int) -> bool:
        """Set a decision's clocks; whether to decide again, inside other limits."""
        if not decision.clocks:
            return False
        lost, again = self.limits.apply(decision.clocks, at_us)
        for dial in lost:
            self._running.lost(dial)
        return again

    # accounts ----------------------------------------------------------------------------------

    def _mark(self) -> None:
        self._mark_ns = time.process_time_ns()
        self._own_ns = 0

    def _pass_time(self, now_us: int) -> None:
        """Book what this process did since the last race."""
        beside_us = max(0.0, (time.process_time_ns() - self._mark_ns - self._own_ns) / 1e3)
        new = self._new_wakes()
        cycles = self._cycles(beside_us)
        if self.site.simulated is not None:
            self.site.simulated.pass_time(now_us, beside_us, new)
        self._race_law().note_beside(cycles, self._commits)
        self._commits = 0
        self.watch.beside(cycles, new)

    def _raced(self, done: Done, now_us: int, now_ns: int) -> None:
        assert self._begun is not None
        begun_us, begun_ns = self._begun
        cpu_us = (now_ns - begun_ns) / 1e3
        us, cores = self._shape(float(now_us - begun_us), cpu_us)
        ingest = min(1.0, max(0.0, (self._ingested[1] - begun_ns) / 1e3 / max(1.0, cpu_us)))
        moved = self._row_bytes * done.taken
        if self.site.simulated is not None:
            cores = min(cores, float(self.site.simulated.board.profile.core_count))
            cycles = self.site.simulated.cycles(cpu_us) / cores
            us = max(1.0, self.site.simulated.race(now_us, cpu_us, cores, moved))
            hz = self._nearest(1e6 * cycles / max(1.0, us - self._stall_us(moved)))
        else:
            hz = self._clock_hz(now_us)
            cycles = max(0.0, us - self._stall_us(moved)) * hz / 1e6
        self.watch.race(us, ingest, hz, cores, moved)
        self._race_law().note(done.taken, cycles, cores)

    def _learn_rate(self, done: Done, now_us: int) -> None:
        passed_us, self._ingested_us = now_us - self._ingested_us, now_us
        if passed_us > 0:
            self._rate += RATE_WEIGHT * (1e6 * done.arrived / passed_us - self._rate)
            if self._prices is not None:
                self._prices.units_per_s = self._rate

    def _race_law(self) -> RaceLaw:
        if self._law is None:
            scale = width_scale(self.site.profile)
            self._law = RaceLaw(scale, self._stall_us(self._row_bytes), self._row_bytes)
        return self._law

    def _stall_us(self, moved_bytes: float) -> float:
        peak = None if self.site.profile is None else self.site.profile.memory.peak_gbytes_per_s
        return moved_bytes / (peak * 1e3) if peak else 0.0

    def _cycles(self, cpu_us: float) -> float:
        if self.site.simulated is not None:
            return self.site.simulated.cycles(cpu_us)
        return cpu_us * (self._hz[1] or 1e9) / 1e6

    def _clock_hz(self, now_us: int) -> int:
        """The clock that races meet: pinned, or read now and then just after one."""
        for name, setting in self._running.standing.items():
            if name.startswith("cpu") and setting.hz:
                return setting.hz
        if self._hz[1] == 0 or now_us - self._hz[0] >= CLOCK_US:
            self._hz = (now_us, self._nearest(self.limits.clock_hz() or self._hz[1] or 10**9))
        return self._hz[1]

    def _nearest(self, hz: float) -> int:
        profile = self.site.profile
        table = () if profile is None else profile.clusters[0].choices_hz
        return min(table, key=lambda x: abs(x - hz), default=round(hz / 1e8) * 10**8)

    def _ship(self) -> None:
        pid = self.uplink_pid()
        if pid is None:
            return
        new_s = self.watch.ship(cpu_seconds(pid), self._cycles(1e6))
        if self.site.simulated is not None:
            self.site.simulated.pass_time(self._clock.monotonic_us(), 1e6 * new_s, 0)

    def _spent(self) -> Spent:
        return {
            (job.plan.name, name): ns for job in self._jobs for name, ns in job.spent_ns.items()
        }

    # what the policy is told -------------------------------------------------------------------

    def _seen(self, forecast: Forecast, now_us: int) -> Observation:
        waiting = forecast.staged + self._rate * max(0, now_us - self._ingested_us) / 1e6
        work = Work(
            waiting, self._rate, {"cpu": self._race_law().cost()}, forecast.latency_us,
            forecast.commit_us, period_us_max=forecast.period_us_max,
            commit_every_us=forecast.commit_every_us, **self._uploads(now_us),
        )  # fmt: skip
        return Observation(
            now_us, work, forecast.deadline_us - forecast.commit_us, self.watch.joules(now_us),
            self.watch.provenance, self.limits.dials, self.watch.others_cores,
            self._battery_now(now_us), _time_of_day_us(), self.limits.write_us,
            self.limits.write_j,
        )  # fmt: skip

    def _uploads(self, now_us: int) -> dict[str, Any]:
        if self.held is None:
            return {}
        seconds = max(1.0, (now_us - self.watch.started_us) / 1e6)
        return {
            "upload_within_us": self.held.within_us,
            "upload_bytes_per_s": self.held.offered_bytes / seconds,
        }

    def _battery_now(self, now_us: int) -> Battery | None:
        at, known = self._battery
        if now_us - at < BATTERY_US:
            return known
        left, volts, charging = 0.0, None, False
        for name in batteries(self.site.sysfs):
            told = state(self.site.sysfs, name)
            left += told.remaining_j or 0.0
            volts = told.volts if volts is None else volts
            charging |= told.status == "Charging"
        self._battery = (now_us, Battery(left, volts, charging) if left else None)
        return self._battery[1]


class Unpriced:
    """The tariff of a board without a model, for policies that ask for no price."""

    def __init__(self) -> None:
        self.idle_watts = self.wake_j = self.byte_j = self.cycle_j = 0.0
        self.awake_watts = 0.0
        self.states: tuple[Sleep, ...] = ()
        self.sleeps: tuple[Sleep, ...] = ()
        self.gating, self.radio = Gating(), Radio(0.0, 0.0)

    def race_watts(self, device: str, hz: int, cores: float, memory_hz: int | None = None) -> float:
        """None is known."""
        return 0.0

    def standing_watts(self, high_hz: int, low_hz: int) -> float:
        """None is known."""
        return 0.0


def beat_prices(site: Site, tariff: Tariff | None) -> BeatPrices | None:
    """What placement compares kernels by, at the highest clocks that the board allows; None
    where there is no power model."""
    if tariff is None:
        return None
    return BeatPrices(tariff, _top_hz(site, "cpu") or 10**9, _top_hz(site, "gpu"))


def _top_hz(site: Site, kind: str) -> int:
    """The highest clock that the limits allow now; 0 where there is no such clock."""
    knobs = [k for k in site.knobs if k.kind == kind]
    now = (site.sysfs.get_int(k.max_path) for k in knobs if k.max_path)
    return max((hz * k.unit_hz for hz, k in zip(now, knobs, strict=False) if hz), default=0)


def board_tariff(
    site: Site, directory: Path | None = None, radio: meters.Radio | None = None
) -> Tariff | None:
    """What the board charges: by its power model, and for races by what `edged calibrate` measured
    there, if it did; `radio`: the uplink's, where a person described it, else the profile's.  None
    where there is no model.  Raises ConfigError."""
    if site.model is None:
        return None
    uplink = None if radio is None else Radio(radio.tail_joules, radio.joules_per_byte)
    tariff = ModelTariff(site.model, radio=uplink)
    energy = None if directory is None else load_energy(directory)
    if energy is None or energy.board != site.board.name:
        return tariff
    if energy.simulated != (site.simulated is not None):
        return tariff
    found = energy.kernels.get(DEFAULT) or next(iter(energy.kernels.values()))
    return MeasuredTariff(tariff, found.curve, found.cores)


def _time_of_day_us() -> int:
    local = time.localtime()
    return (local.tm_hour * 3600 + local.tm_min * 60 + local.tm_sec) * 1_000_000
