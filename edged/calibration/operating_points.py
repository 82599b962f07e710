"""Calibration over clocks: time and power of a beat at each operating point (OPP) of a board.

The clocks of the CPU, and of the GPU where kernels run there, are owned in one transaction
(`governors.actuators`); those of the device that a kernel runs on are pinned to one OPP after the
other, the others left to their governors, and all are restored whatever happens; after a `kill -9`
by `edged governor restore` or by the next run.  For each kernel in this order:

    idle        nothing runs, clocks as they were
    left alone  bursts of beats every PERIOD_US under the device's governor, as beats come in a
                daemon; the watts of a race are (mean - idle) x period / race + idle
    each OPP    beats without a pause
    idle        again: idle power is the mean of both, and how far they differ is said

The first SETTLE_S of each are thrown away, so that a sensor's average is of that point alone.  The
time that there is is shared out evenly; where it is too short for every OPP, some are left out, the
lowest and the highest never.  Where the hottest zone reaches the bound, clocks are let go until it
is COOLER below it, and the point is measured anew.

Watts are of the whole input by the best meter (`opp_watts`); where none tells it, of the power
model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from edged.calibration.power_meters import Watts, clock_hz, hottest
from edged.calibration.workloads import Burst, ClockBench
from edged.errors import ConfigError
from edged.placement.profile import KernelCurve
from governors.actuators.base import Knob
from governors.actuators.ownership import Ownership
from governors.board_tariffs import ModelTariff
from governors.curve import CalibrationCurve, CurvePoint
from governors.energy import Provenance
from governors.meters.rails import Key
from governors.meters.sampler import Sampler
from governors.sysfs import Sysfs

SETTLE_S, POINT_S, POINT_NO_METER_S = 1.5, 6.0, 0.5
"""A point's least times; sensors refresh in tenths of a second, and an account needs 5 s."""
INTERVALS = 10
"""Readings that a point needs at least."""
BURST_US, PERIOD_US = 20_000.0, 80_000.0
COOLER = 5.0
LOOK_US = 1_000_000
"""From one look at the temperature to the next."""
STEPS = 8
"""Points of a clock without a table."""
SLIPPED = 0.03
"""A clock that was read so far below what is pinned was throttled: the point says nothing."""

Say = Callable[[str, float], None]
"""What is done, and the share of the whole that is behind."""


@dataclass(frozen=True)
class Site:
    """A board, as far as calibration needs it."""

    sysfs: Sysfs
    knobs: tuple[Knob, ...]
    """Of CPU clocks."""
    sampler: Sampler
    tariff: ModelTariff | None
    simulated: bool
    step_w: float = 0.0
    """The smallest step (W) of what tells the whole input; 0: not known."""
    gpu_knobs: tuple[Knob, ...] = ()
    """Of the GPU that kernels run on."""
    apart: tuple[Key, ...] = ()
    """Rails of GPUs that are devices of their own."""

    def of_device(self, device: str) -> tuple[Knob, ...]:
        """The knobs of cpu or cuda."""
        return self.knobs if device == "cpu" else self.gpu_knobs


@dataclass(frozen=True)
class CalibrationLimits:
    """What the calibration of one kernel may take."""

    seconds: float
    celsius_max: float


class OppCalibration:
    """Calibrates one kernel after the other; `ours` owns the knobs, None where none can be set."""

    def __init__(
        self,
        site: Site,
        ours: Ownership | None,
        bounds: CalibrationLimits,
        say: Say = lambda *_: None,
    ) -> None:
        self._site, self._ours, self._bounds, self._say = site, ours, bounds, say
        self.notes: list[str] = []
        self._looked_us: int | None = None
        if hottest(site.sysfs, site.gpu_knobs) is None:
            self._note("no temperature can be read: nothing guards against heat here")

    @property
    def meter(self) -> str:
        """What tells the watts."""
        told = Watts.of(self._site.sampler, "cpu", ()).name
        if not told and self._site.tariff is not None:
            return f"no meter: the power model of {self._site.tariff.model.profile.name}"
        return told

    def run(self, bench: ClockBench) -> KernelCurve:
        """Measure one kernel at all OPPs.  Raises ConfigError, GovernorError."""
        return _Run(self, bench).curve()

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


@dataclass(slots=True)
class _Spell:
    """What was seen in one stretch of time."""

    us: float = 0.0
    """Of beats."""
    cpu_us: float = 0.0
    beats: int = 0
    elapsed_us: float = 0.0
    watts: float | None = None
    """Mean of the whole input, rests included."""
    clocks: list[int] = field(default_factory=list)

    def add(self, burst: Burst, beats: int) -> None:
        """One more burst."""
        self.us += burst.us
        self.cpu_us += burst.cpu_us
        self.beats += beats

    @property
    def hz(self) -> int | None:
        """The mean clock that was read."""
        return round(sum(self.clocks) / len(self.clocks)) if self.clocks else None


class _TooHot(Exception):
    """The bound was reached while a point was measured."""


class _Run:
    """One kernel's calibration."""

    def __init__(self, owner: OppCalibration, bench: ClockBench) -> None:
        self._owner, self._site, self._bench = owner, owner._site, bench
        self._ours, self._knobs = settable(owner._ours, owner._site.of_device(bench.device))
        self._told = Watts.of(owner._site.sampler, bench.device, owner._site.apart)
        if self._told.beside:
            self._note(f"power by {self._told.name}")
        self._pinned_hz = 0
        self._ends_us = bench.now_us() + 1e6 * owner._bounds.seconds
        self._cooled = False
        metered = self._told.provenance is not None
        interval_s = max((s.interval_us for s in self._site.sampler.schedules()), default=0) / 1e6
        self._settle_s = max(SETTLE_S, 3 * interval_s) if metered else 0.1
        self._least_s = max(POINT_S, INTERVALS * interval_s) if metered else POINT_NO_METER_S
        clocks = self._clocks()
        each = self._settle_s + self._least_s
        self._refuse_less_than(each * (3 + min(2, max(1, len(clocks)))))
        room = int(owner._bounds.seconds / each) - 3
        self._opps = _spread(clocks, max(2, room))
        if len(self._opps) < len(clocks):
            self._note(
                f"{len(self._opps)} of {len(clocks)} clocks fit into the time; more with --minutes"
            )
        self._steps, self._done = len(self._opps) + 3, 0
        shared = owner._bounds.seconds / self._steps - self._settle_s
        self._point_s = min(max(self._least_s, shared), 4 * self._least_s)

    def _refuse_less_than(self, least_s: float) -> None:
        """A bound that cannot be kept is refused before a clock is set."""
        given_s = self._owner._bounds.seconds
        if given_s < least_s:
            raise ConfigError(
                f"--minutes: {self._bench.kernel} has {given_s:.3g} s of it and needs"
                f" {least_s:.3g} s at least, {self._settle_s + self._least_s:.3g} s a point; give"
                " more, or take fewer kernels with --kernel"
            )

    def curve(self) -> KernelCurve:
        """All of it."""
        self._bench.burst(1)  # the first one is not like the others
        top_us = max(1.0, self._bench.burst(3).us / 3)
        idle = [self._idle("idle")]
        alone = self._left_alone(max(1, round(BURST_US / top_us)))
        spells: dict[int, _Spell] = {}
        for wanted in self._opps:
            if self._late():
                break
            hz, spell = self._at(wanted)
            if spell is not None:
                spells[hz] = spell
        self._loosen()
        idle.append(self._idle("idle again"))
        if not spells:
            hz = self._clock_there_is(alone)
            spells = {hz: self._spell(f"{hz / 1e6:.0f} MHz, the one clock there is", racing=True)}
        return self._fit(idle, alone, spells)

    def _fit(
        self, idle: Sequence[float | None], alone: _Spell, spells: dict[int, _Spell]
    ) -> KernelCurve:
        cores = sum(s.cpu_us for s in spells.values()) / sum(s.us for s in spells.values())
        told = [*idle, alone.watts, *(s.watts for s in spells.values())]
        metered = None not in told
        if self._told.provenance is not None and not metered:
            self._note(f"{self._told.name} told nothing at some points: modelled")
        watts, source = (self._metered if metered else self._modelled)(idle, alone, spells, cores)
        points = tuple(
            CurvePoint(hz, s.us / s.beats, watts[hz]) for hz, s in sorted(spells.items())
        )
        name = self._knobs[0].name if self._knobs else self._processor
        curve = CalibrationCurve(
            name, self._bench.units, points, watts[0], source,
            (alone.us / alone.beats, watts[-1]),
        )  # fmt: skip
        return KernelCurve(curve, cores, self._bench.device, self._bench.times_from)

    def _note(self, text: str) -> None:
        self._owner._note(f"{self._bench.kernel}: {text}")

    @property
    def _processor(self) -> str:
        """As the power model calls the device."""
        return "cpu" if self._bench.device == "cpu" else "gpu"

    def _metered(
        self, idle: Sequence[float | None], alone: _Spell, spells: dict[int, _Spell], cores: float
    ) -> tuple[dict[int, float], Provenance]:
        """Watts by clock; 0 is idle, -1 a race that is left alone."""
        del cores
        first, last = (w or 0.0 for w in idle)
        rests = (first + last) / 2
        if abs(first - last) > 0.05 * rests:
            self._note(f"idle power moved from {first:.2f} to {last:.2f} W meanwhile")
        watts = {hz: s.watts or 0.0 for hz, s in spells.items()}
        mean = alone.watts or 0.0
        spread = alone.elapsed_us / alone.us
        watts[0], watts[-1] = rests, rests + max(0.0, mean - rests) * spread
        if step_w := self._site.step_w:
            self._note(
                f"a step of the meter is {step_w:.3f} W: watts are known to half of it, those of"
                f" what is left alone to {spread * step_w:.2f} W"
            )
        assert self._told.provenance is not None
        return watts, self._told.provenance

    def _modelled(
        self, idle: Sequence[float | None], alone: _Spell, spells: dict[int, _Spell], cores: float
    ) -> tuple[dict[int, float], Provenance]:
        del idle
        tariff = self._site.tariff
        if tariff is None:
            raise ConfigError(
                "no meter tells this board's power and no profile models it: there is no curve; "
                "name a meter with --meters (docs/energy.md), or calibrate with --board none"
            )
        if self._processor == "gpu" and not tariff.gating.priced:
            raise ConfigError(
                f"{self._bench.kernel}: no meter tells this board's power and no figure of its GPU "
                "is public: there is no curve; name a meter with --meters, or only kernels of the "
                "CPU with --kernel"
            )
        watts = {hz: tariff.race_watts(self._processor, hz, cores) for hz in spells}
        watts[0] = tariff.idle_watts
        watts[-1] = tariff.race_watts(self._processor, alone.hz or max(spells), cores)
        return watts, Provenance.SIMULATED if self._site.simulated else Provenance.MODELLED

    # --- the stretches

    def _idle(self, what: str) -> float | None:
        return self._spell(what, racing=False).watts

    def _left_alone(self, beats: int) -> _Spell:
        return self._spell("left alone", racing=True, beats=beats, period_us=PERIOD_US)

    def _at(self, wanted: int) -> tuple[int, _Spell | None]:
        """One OPP; None where it was throttled."""
        spell = self._spell(f"{wanted / 1e6:.0f} MHz", racing=True, pinned=wanted)
        hz = self._pinned_hz
        if spell.hz is not None and spell.hz < (1 - SLIPPED) * hz:
            self._note(f"{hz / 1e6:.0f} MHz: ran at {spell.hz / 1e6:.0f} MHz, left out")
            return hz, None
        return hz, spell

    def _spell(
        self, what: str, racing: bool, beats: int = 0, period_us: float = 0.0, pinned: int = 0
    ) -> _Spell:
        """Settle, then look for `_point_s`; anew where it became too hot.  `beats` a burst: as many
        as the bench wants; `period_us`: 0 for bursts without a pause."""
        while True:
            self._owner._say(f"{self._bench.kernel}: {what}", self._done / self._steps)
            try:
                if pinned:
                    self._pin(pinned)
                if racing and not beats:
                    beats = max(1, round(self._bench.burst_us / max(1.0, self._bench.burst(1).us)))
                self._stretch(self._settle_s, beats, period_us)
                mark = self._site.sampler.totals
                spell = self._stretch(self._point_s, beats, period_us)
            except _TooHot:
                self._point_s = self._least_s
                self._loosen()
                self._cool()
                continue
            spell.watts = self._told.since(mark)
            self._done += 1
            return spell

    def _stretch(self, seconds: float, beats: int, period_us: float) -> _Spell:
        bench, spell = self._bench, _Spell()
        began_us = bench.now_us()
        ends_us = began_us + 1e6 * seconds
        self._sample()
        while (now_us := bench.now_us()) < ends_us:
            if beats:
                self._guard(now_us)
                spell.add(bench.burst(beats), beats)
                self._read_clock(spell)
                self._sample()
            self._rest(now_us + period_us if beats else ends_us)
        spell.elapsed_us = bench.now_us() - began_us
        return spell

    def _rest(self, until_us: float) -> None:
        """Rest, reading meters when they are due."""
        while (now_us := self._bench.now_us()) < until_us:
            due_us = self._site.sampler.due_us(now_us)
            next_us = until_us if due_us is None else min(until_us, max(due_us, now_us + 1000))
            self._bench.rest(next_us - now_us)
            self._sample()

    def _sample(self) -> None:
        now_us = self._bench.now_us()
        due_us = self._site.sampler.due_us(now_us)
        if due_us is not None and now_us >= due_us:
            self._site.sampler.sample(now_us)

    # --- clocks and heat

    def _clocks(self) -> list[int]:
        """Every OPP that all knobs may be set to, by the one with most of them."""
        if self._ours is None:
            return []
        knob = max(self._knobs, key=lambda k: len(k.table_hz))
        allowed = self._ours.allowed(knob)
        if knob.table_hz:
            return [hz for hz in knob.table_hz if allowed.min_hz <= hz <= allowed.max_hz]
        span = allowed.max_hz - allowed.min_hz
        return sorted({knob.snap(allowed.min_hz + span * i // STEPS, allowed)
                       for i in range(STEPS + 1)})  # fmt: skip

    def _pin(self, wanted: int) -> None:
        """All knobs; what the first of them holds then is the point's clock."""
        assert self._ours is not None
        held = [self._ours.pin(knob, wanted) for knob in self._knobs]
        self._pinned_hz = held[0]

    def _loosen(self) -> None:
        if self._ours is not None:
            for knob in self._knobs:
                self._ours.loosen(knob)

    def _read_clock(self, spell: _Spell) -> None:
        hz = clock_hz(self._site.sysfs, self._knobs[0]) if self._knobs else None
        if hz:
            spell.clocks.append(hz)

    def _clock_there_is(self, seen: _Spell) -> int:
        """What the device runs at where nothing sets it, as far as the system tells."""
        if seen.hz:
            return seen.hz
        for line in (self._site.sysfs.get("/proc/cpuinfo") or "").splitlines():
            if self._processor == "cpu" and line.startswith("cpu MHz"):
                return round(float(line.rpartition(":")[2]) * 1e6)
        profile = None if self._site.tariff is None else self._site.tariff.model.profile
        part = None
        if profile is not None:
            part = profile.clusters[0] if self._processor == "cpu" else profile.gpu
        if part is not None:
            self._note("the clock cannot be read: taken as the profile's highest")
            return part.opps[-1].hz
        raise ConfigError(
            f"the clock of this machine's {self._processor} cannot be read: there is no curve"
        )

    def _guard(self, now_us: int) -> None:
        looked_us = self._owner._looked_us
        if looked_us is not None and 0 <= now_us - looked_us < LOOK_US:
            return
        self._owner._looked_us = now_us
        hot = self._hottest()
        if hot is not None and hot[1] >= self._owner._bounds.celsius_max:
            raise _TooHot

    def _late(self) -> bool:
        """Whether cooling took so long that there is no time for one more point and for idle."""
        each_us = 1e6 * (self._settle_s + self._point_s)
        if not self._cooled or self._bench.now_us() + 2 * each_us <= self._ends_us:
            return False
        self._note("cooling took the time of the clocks above; more with --minutes")
        return True

    def _hottest(self) -> tuple[str, float] | None:
        return hottest(self._site.sysfs, self._site.gpu_knobs)

    def _cool(self) -> None:
        """Wait until it is cooler, but not longer than there is time."""
        self._cooled = True
        most = self._owner._bounds.celsius_max - COOLER
        while (hot := self._hottest()) is not None and hot[1] > most:
            self._owner._say(f"{hot[0]} is at {hot[1]:.0f} °C, cooling", self._done / self._steps)
            if self._bench.now_us() >= self._ends_us:
                raise ConfigError(self._too_hot(hot))
            self._rest(self._bench.now_us() + LOOK_US)

    def _too_hot(self, hot: tuple[str, float]) -> str:
        most = self._owner._bounds.celsius_max
        return (
            f"{hot[0]} is at {hot[1]:.0f} °C and does not cool to {most - COOLER:.0f} °C in time: "
            "nothing was kept; cool the board, or raise --celsius-max or --minutes"
        )


def settable(
    ours: Ownership | None, knobs: tuple[Knob, ...]
) -> tuple[Ownership | None, tuple[Knob, ...]]:
    """The owner and the knobs that may be set; where none may, no owner, and all to be read."""
    lost = () if ours is None else (*ours.refused, *ours.dormant)
    mine = tuple(k for k in knobs if k.name not in lost)
    return (ours, mine) if ours is not None and mine else (None, knobs)


def _spread(clocks: Sequence[int], count: int) -> list[int]:
    """At most `count` of them, evenly, the ends among them."""
    if len(clocks) <= count:
        return [*clocks]
    step = (len(clocks) - 1) / (count - 1)
    return [clocks[math.floor(i * step + 0.5)] for i in range(count)]
