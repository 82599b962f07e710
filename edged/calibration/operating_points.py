"""Calibration over clocks: time and power of a beat at each operating point (OPP) of a board.

One transaction owns the clocks of the CPU, and of the GPU if kernels run there
(`governors.actuators`). The clocks of the kernel's device are pinned to one OPP after the other;
all other clocks are left to their governors. All clocks are restored at the end, also after errors.
After a `kill -9`, `edged governor restore` or the next run restores them.

The points of a kernel, in order:

    idle        no load, clocks unpinned
    left alone  bursts of beats every PERIOD_US under the device's governor, like the beats of a
                daemon. The power of a race is (mean - idle) x period / race + idle
    each OPP    beats without a pause
    idle        again. Idle power is the mean of both; a note reports a large difference

The first SETTLE_S of each point are discarded, so a sensor's average covers that point only. Points
share the available time evenly. If it is too short for every OPP, some are skipped, but never the
lowest and the highest. If the hottest zone reaches the limit, the clocks are released until it has
cooled by COOLER, and the point is repeated.

Power is that of the whole input by the best meter (`power_meters`), or of the power model without
one.
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
"""Least times of a point: sensors refresh every tenth of a second, and an average needs 5 s."""
INTERVALS = 10
"""Least number of meter readings in a point."""
BURST_US, PERIOD_US = 20_000.0, 80_000.0
COOLER = 5.0
"""Cooling below the limit (°C) before a point is repeated."""
LOOK_US = 1_000_000
"""Time between two readings of the temperature."""
STEPS = 8
"""Steps over the range of a clock without a table of OPPs."""
THROTTLED = 0.03
"""Relative distance of the actual clock below the pinned one from which a point is discarded as
throttled."""

Say = Callable[[str, float], None]
"""Receives the current step's text and the completed share of the whole."""


@dataclass(frozen=True)
class Site:
    """The parts of a board that a calibration uses."""

    sysfs: Sysfs
    knobs: tuple[Knob, ...]
    """Knobs of the CPU's clocks."""
    sampler: Sampler
    tariff: ModelTariff | None
    simulated: bool
    step_w: float = 0.0
    """The smallest step (W) of the meter of the whole input; 0 if unknown."""
    gpu_knobs: tuple[Knob, ...] = ()
    """Knobs of the GPU that runs kernels."""
    gpu_rails: tuple[Key, ...] = ()
    """Rails of discrete GPUs."""

    def of_device(self, device: str) -> tuple[Knob, ...]:
        """The knobs of the device `cpu` or `cuda`."""
        return self.knobs if device == "cpu" else self.gpu_knobs


@dataclass(frozen=True)
class CalibrationLimits:
    """Limits of a calibration: its time, and the temperature of the board."""

    seconds: float
    celsius_max: float


class OppCalibration:
    """Calibrates kernels one after the other. `ours` owns the knobs; None if none can be set."""

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
            self._note("no temperature can be read: the board is not protected against heat")

    @property
    def meter(self) -> str:
        """Display name of the meter, or of the power model without one."""
        name = Watts.of(self._site.sampler, "cpu", ()).name
        if not name and self._site.tariff is not None:
            return f"no meter: the power model of {self._site.tariff.model.profile.name}"
        return name

    def run(self, bench: ClockBench) -> KernelCurve:
        """Measure one kernel at all OPPs. Raises ConfigError and GovernorError."""
        return _Run(self, bench).curve()

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


@dataclass(slots=True)
class _Spell:
    """The measurements of one span of time."""

    us: float = 0.0
    """Time of the beats."""
    cpu_us: float = 0.0
    beats: int = 0
    elapsed_us: float = 0.0
    watts: float | None = None
    """Mean power, including rests; None without a reading."""
    clocks: list[int] = field(default_factory=list)

    def add(self, burst: Burst, beats: int) -> None:
        """Add a burst of beats."""
        self.us += burst.us
        self.cpu_us += burst.cpu_us
        self.beats += beats

    @property
    def hz(self) -> int | None:
        """The mean of the clock readings; None without one."""
        return round(sum(self.clocks) / len(self.clocks)) if self.clocks else None


class _TooHot(Exception):
    """The temperature reached its limit during a point."""


class _Run:
    """One kernel's calibration."""

    def __init__(self, owner: OppCalibration, bench: ClockBench) -> None:
        self._owner, self._site, self._bench = owner, owner._site, bench
        self._ours, self._knobs = settable(owner._ours, owner._site.of_device(bench.device))
        self._source = Watts.of(owner._site.sampler, bench.device, owner._site.gpu_rails)
        if self._source.extra:
            self._note(f"power by {self._source.name}")
        self._pinned_hz = 0
        self._ends_us = bench.now_us() + 1e6 * owner._bounds.seconds
        self._cooled = False
        metered = self._source.provenance is not None
        interval_s = max((s.interval_us for s in self._site.sampler.schedules()), default=0) / 1e6
        self._settle_s = max(SETTLE_S, 3 * interval_s) if metered else 0.1
        self._least_s = max(POINT_S, INTERVALS * interval_s) if metered else POINT_NO_METER_S
        clocks = self._clocks()
        each = self._settle_s + self._least_s
        self._require_time(each * (3 + min(2, max(1, len(clocks)))))
        affordable = int(owner._bounds.seconds / each) - 3
        self._opps = _spread(clocks, max(2, affordable))
        if len(self._opps) < len(clocks):
            self._note(
                f"{len(self._opps)} of {len(clocks)} clocks fit the time; raise --minutes for more"
            )
        self._steps, self._done = len(self._opps) + 3, 0
        shared = owner._bounds.seconds / self._steps - self._settle_s
        self._point_s = min(max(self._least_s, shared), 4 * self._least_s)

    def _require_time(self, least_s: float) -> None:
        """Raise ConfigError before any clock is set if the time is below `least_s`."""
        given_s = self._owner._bounds.seconds
        if given_s < least_s:
            raise ConfigError(
                f"--minutes: {self._bench.kernel} gets {given_s:.3g} s and needs at least"
                f" {least_s:.3g} s, {self._settle_s + self._least_s:.3g} s for each point; raise"
                " --minutes, or choose fewer kernels with --kernel"
            )

    def curve(self) -> KernelCurve:
        """Measure all points; returns the kernel's curve."""
        self._bench.burst(1)  # the first beat is slower than the others
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
        self._release()
        idle.append(self._idle("idle again"))
        if not spells:
            hz = self._current_clock(alone)
            spells = {hz: self._spell(f"{hz / 1e6:.0f} MHz, the only clock", racing=True)}
        return self._fit(idle, alone, spells)

    def _fit(
        self, idle: Sequence[float | None], alone: _Spell, spells: dict[int, _Spell]
    ) -> KernelCurve:
        cores = sum(s.cpu_us for s in spells.values()) / sum(s.us for s in spells.values())
        readings = [*idle, alone.watts, *(s.watts for s in spells.values())]
        metered = None not in readings
        if self._source.provenance is not None and not metered:
            self._note(f"{self._source.name} had no reading at some points: power is modelled")
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
        """Name of the device in the power model."""
        return "cpu" if self._bench.device == "cpu" else "gpu"

    def _metered(
        self, idle: Sequence[float | None], alone: _Spell, spells: dict[int, _Spell], cores: float
    ) -> tuple[dict[int, float], Provenance]:
        """Power by clock; key 0 is idle, -1 a race with the clock left alone."""
        del cores
        first, last = (w or 0.0 for w in idle)
        idle_w = (first + last) / 2
        if abs(first - last) > 0.05 * idle_w:
            self._note(f"idle power moved from {first:.2f} to {last:.2f} W during the calibration")
        watts = {hz: s.watts or 0.0 for hz, s in spells.items()}
        mean = alone.watts or 0.0
        spread = alone.elapsed_us / alone.us
        watts[0], watts[-1] = idle_w, idle_w + max(0.0, mean - idle_w) * spread
        if step_w := self._site.step_w:
            self._note(
                f"the meter's step is {step_w:.3f} W: power is accurate to half a step, with the"
                f" clock left alone to {spread * step_w:.2f} W"
            )
        assert self._source.provenance is not None
        return watts, self._source.provenance

    def _modelled(
        self, idle: Sequence[float | None], alone: _Spell, spells: dict[int, _Spell], cores: float
    ) -> tuple[dict[int, float], Provenance]:
        del idle
        tariff = self._site.tariff
        if tariff is None:
            raise ConfigError(
                "no meter measures this board's power and no profile models it; name a meter with"
                " --meters (docs/energy.md), calibrate without a board with --board none, or take"
                " another machine's figures as a stand-in with --power-model generic-x86"
            )
        if self._processor == "gpu" and not tariff.gating.priced:
            raise ConfigError(
                f"{self._bench.kernel}: no meter measures this board's power and its profile has no"
                " figures of the GPU; name a meter with --meters, or choose only kernels of the CPU"
                " with --kernel"
            )
        watts = {hz: tariff.race_watts(self._processor, hz, cores) for hz in spells}
        watts[0] = tariff.idle_watts
        watts[-1] = tariff.race_watts(self._processor, alone.hz or max(spells), cores)
        return watts, Provenance.SIMULATED if self._site.simulated else Provenance.MODELLED

    # --- points

    def _idle(self, name: str) -> float | None:
        return self._spell(name, racing=False).watts

    def _left_alone(self, beats: int) -> _Spell:
        return self._spell("left alone", racing=True, beats=beats, period_us=PERIOD_US)

    def _at(self, wanted: int) -> tuple[int, _Spell | None]:
        """Measure one OPP; returns its clock, and no spell if it was throttled."""
        spell = self._spell(f"{wanted / 1e6:.0f} MHz", racing=True, pinned=wanted)
        hz = self._pinned_hz
        if spell.hz is not None and spell.hz < (1 - THROTTLED) * hz:
            self._note(f"{hz / 1e6:.0f} MHz: ran at {spell.hz / 1e6:.0f} MHz, left out")
            return hz, None
        return hz, spell

    def _spell(
        self, name: str, racing: bool, beats: int = 0, period_us: float = 0.0, pinned: int = 0
    ) -> _Spell:
        """Settle, then measure for `_point_s`; repeat after cooling if the board gets too hot.

        `beats` is the size of a burst, 0 for that of the bench. `period_us` is the time between two
        bursts, 0 for none. `pinned` is the clock to pin, 0 to leave it alone.
        """
        while True:
            self._owner._say(f"{self._bench.kernel}: {name}", self._done / self._steps)
            try:
                if pinned:
                    self._pin(pinned)
                if racing and not beats:
                    beats = max(1, round(self._bench.burst_us / max(1.0, self._bench.burst(1).us)))
                self._span(self._settle_s, beats, period_us)
                mark = self._site.sampler.totals
                spell = self._span(self._point_s, beats, period_us)
            except _TooHot:
                self._point_s = self._least_s
                self._release()
                self._cool()
                continue
            spell.watts = self._source.since(mark)
            self._done += 1
            return spell

    def _span(self, seconds: float, beats: int, period_us: float) -> _Spell:
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
        """Rest until a time; read meters that are due."""
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
        """The allowed OPPs of the knob with the longest table; empty if no clock can be set."""
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
        """Pin all knobs. The clock of the first one counts as the point's."""
        assert self._ours is not None
        held = [self._ours.pin(knob, wanted) for knob in self._knobs]
        self._pinned_hz = held[0]

    def _release(self) -> None:
        if self._ours is not None:
            for knob in self._knobs:
                self._ours.loosen(knob)

    def _read_clock(self, spell: _Spell) -> None:
        hz = clock_hz(self._site.sysfs, self._knobs[0]) if self._knobs else None
        if hz:
            spell.clocks.append(hz)

    def _current_clock(self, spell: _Spell) -> int:
        """The clock (Hz) of a device whose clock cannot be set.

        Read during `spell`, or from /proc/cpuinfo, or else taken from the profile with a note.
        Raises ConfigError if none of them has it.
        """
        if spell.hz:
            return spell.hz
        for line in (self._site.sysfs.get("/proc/cpuinfo") or "").splitlines():
            if self._processor == "cpu" and line.startswith("cpu MHz"):
                return round(float(line.rpartition(":")[2]) * 1e6)
        profile = None if self._site.tariff is None else self._site.tariff.model.profile
        part = None
        if profile is not None:
            part = profile.clusters[0] if self._processor == "cpu" else profile.gpu
        if part is not None:
            self._note("the clock cannot be read: the profile's highest is assumed")
            return part.opps[-1].hz
        raise ConfigError(
            f"the clock of this machine's {self._processor} can be neither read nor set"
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
        """Whether cooling has used up the time for another point and the last idle point."""
        each_us = 1e6 * (self._settle_s + self._point_s)
        if not self._cooled or self._bench.now_us() + 2 * each_us <= self._ends_us:
            return False
        self._note("cooling used up the time of the higher clocks; raise --minutes")
        return True

    def _hottest(self) -> tuple[str, float] | None:
        return hottest(self._site.sysfs, self._site.gpu_knobs)

    def _cool(self) -> None:
        """Wait until the board has cooled. Raises ConfigError when the time is over."""
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
            f"{hot[0]} is at {hot[1]:.0f} °C and did not cool to {most - COOLER:.0f} °C in time; "
            "no result was stored; cool the board, or raise --celsius-max or --minutes"
        )


def settable(
    ours: Ownership | None, knobs: tuple[Knob, ...]
) -> tuple[Ownership | None, tuple[Knob, ...]]:
    """The owner and its settable knobs; without any, None and all knobs, which can be read."""
    unavailable = () if ours is None else (*ours.refused, *ours.dormant)
    available = tuple(k for k in knobs if k.name not in unavailable)
    return (ours, available) if ours is not None and available else (None, knobs)


def _spread(clocks: Sequence[int], count: int) -> list[int]:
    """At most `count` of the clocks, evenly spaced, with the lowest and the highest."""
    if len(clocks) <= count:
        return [*clocks]
    step = (len(clocks) - 1) / (count - 1)
    return [clocks[math.floor(i * step + 0.5)] for i in range(count)]
