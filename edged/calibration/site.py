"""The board of `edged calibrate`: the real one, a fixture tree, or a simulated one.

A calibration owns the board's CPU clocks, and those of its GPU if kernels run there. It uses the
journal of the daemon, so the two exclude each other. After a killed calibration the next one, the
next daemon or `edged governor restore` restores the clocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from edged.calibration.join_kernels import runnable
from edged.calibration.operating_points import (
    CalibrationLimits,
    OppCalibration,
    Say,
    Site,
    settable,
)
from edged.calibration.power_meters import discrete_gpu_rails
from edged.calibration.workloads import (
    MODELLED,
    ClockBench,
    RealBench,
    SimulatedBench,
    SimulatedGpuBench,
    VirtualClock,
)
from edged.errors import ConfigError
from edged.joins._cuda import current_uuid
from edged.joins.base import WindowJoin
from edged.placement.profile import EnergyCalibration, KernelCurve
from edged.simulate import gpu
from governors.actuators.base import Knob, discover, readable
from governors.actuators.journal import OwnedElsewhere
from governors.actuators.ownership import Ownership
from governors.actuators.writers import Direct, Writer, choose_writer
from governors.board_tariffs import ModelTariff
from governors.detect import detect
from governors.energy import Provenance
from governors.errors import NotPermitted
from governors.meters.base import Meter, survey
from governors.meters.rails import wholes
from governors.meters.sampler import Sampler
from governors.meters.settings import MeterSettings
from governors.power_models import power_model
from governors.simulated.board import PREFIX, SimulatedBoard, from_name
from governors.simulated.kernel import open_root
from governors.sysfs import Sysfs

WINDOW, UNITS = 100_000, 131_072
"""Tuples a side of the window, and tuples of a beat (both sides)."""
METER_SHARE_MAX = 0.01
"""Share of a core for reading meters, more than in the daemon since a calibration is short."""


@dataclass(frozen=True)
class Asked:
    """The request of one calibration."""

    board: str
    """The root of a board's file tree (`/`), or `simulated:NAME`."""
    journal: Path
    helper: Path
    members: Sequence[type[WindowJoin]]
    threads: int
    bounds: CalibrationLimits
    """Limits for all kernels together."""
    meters: MeterSettings = field(default_factory=MeterSettings)
    power_model: str = ""
    """Name of a profile that stands in for the board's."""


def why_fixed(root: str, helper: Path) -> str:
    """The reason why no CPU clock below `root` can be set; empty if one can."""
    sysfs = open_root(root)
    knobs = _knobs(sysfs, "cpu")
    with closing(choose_writer(sysfs, knobs, helper)) as writer:
        if any(_may(writer, knob) for knob in knobs):
            return ""
        return writer.why


def why_unpriced(root: str, meters: MeterSettings, stand_in: str) -> str:
    """Why no watts are known below `root`; empty where a meter or a power model has them.  Raises
    ProfileError."""
    sysfs = open_root(root)
    board = detect(sysfs)
    if power_model(board.profile_name, stand_in) is not None:
        return ""
    found = survey(sysfs, board, meters).meters
    try:
        return (
            "" if wholes(found) else "no meter tells this machine's power, and no profile models it"
        )
    finally:
        for meter in found:
            meter.close()


def calibrate_board(asked: Asked, say: Say = lambda *_: None) -> EnergyCalibration:
    """Measure every kernel at every clock of its device.

    Restores the clocks before it returns or raises. Kernels without a device are left out, with a
    note. Raises ConfigError and GovernorError.
    """
    with ExitStack() as stack:
        if asked.board.startswith(PREFIX):
            opened = stack.enter_context(_simulated(asked))
        else:
            opened = stack.enter_context(_real(asked))
        return opened.calibrate(asked.bounds, say)


@dataclass
class _Opened:
    """A board that is ready for calibration: its clocks, meters, benches and notes."""

    name: str
    site: Site
    writer: Writer
    journal: Path
    benches: Sequence[Callable[[], ClockBench]]
    notes: Sequence[str]
    write_us: Mapping[str, float] | None = None
    """Time to set the clocks of a device (µs; 0: unknown). None: it is measured."""

    def calibrate(self, bounds: CalibrationLimits, say: Say) -> EnergyCalibration:
        with ExitStack() as stack:
            ours, why = self._own(stack)
            count, done = len(self.benches), 0
            each = replace(bounds, seconds=bounds.seconds / count)
            run = OppCalibration(
                self.site, ours, each, lambda text, part: say(text, (done + part) / count)
            )
            run.notes += self.notes
            if self.write_us is not None and 0 in self.write_us.values():
                run.notes.append("the time to set a clock is unknown and counted as 0")
            if why:
                run.notes.append(f"no clock can be set, so only the current one is measured: {why}")
            kernels = {}
            for make in self.benches:
                with closing(make()) as bench:
                    kernels[bench.kernel] = self._run(run, bench, ours)
                done += 1
            if not run.meter.startswith("no meter") or self.site.simulated:
                notes = run.notes
            else:
                notes = [*run.notes, "power is modelled: no sensor measures the whole input"]
            return EnergyCalibration(
                self.name, self.site.simulated, run.meter, WINDOW, self._write_us(ours, "cpu"),
                tuple(notes), kernels,
            )  # fmt: skip

    def _run(self, run: OppCalibration, bench: ClockBench, ours: Ownership | None) -> KernelCurve:
        curve = run.run(bench)
        if bench.device == "cpu":
            return curve
        if bench.times_from is Provenance.SIMULATED and not self.site.simulated:
            run.notes.append(
                f"{bench.kernel} ran in numba's CUDA simulator: its times are not those of a GPU"
            )
        return replace(curve, write_us=self._write_us(ours, bench.device))

    def _write_us(self, ours: Ownership | None, device: str) -> float:
        """Time to set a device's clocks (µs).

        An NVML lock cannot be read back, so its time is that of the locks set so far.
        """
        if self.write_us is not None:
            return self.write_us.get(device, 0.0)
        owner, knobs = settable(ours, self.site.of_device(device))
        if owner is None:
            return 0.0
        locks = {k.name: owner.costs.get(k.name) for k in knobs if not readable(k.max_path)}
        costs = [locks[k.name] if k.name in locks else owner.measure(k) for k in knobs]
        return sum(cost.usual_us for cost in costs if cost is not None)

    def _own(self, stack: ExitStack) -> tuple[Ownership | None, str]:
        """Ownership of the knobs, or None and the reason."""
        knobs = (*self.site.knobs, *self.site.gpu_knobs)
        if not knobs:
            return None, self.writer.why
        try:
            return stack.enter_context(
                Ownership(self.site.sysfs, self.writer, self.journal, knobs)
            ), ""
        except OwnedElsewhere:
            raise
        except NotPermitted as problem:
            return None, str(problem)


@contextmanager
def _real(asked: Asked) -> Iterator[_Opened]:
    sysfs = open_root(asked.board)
    board = detect(sysfs)
    members, notes = runnable(asked.members)
    if not members:
        raise ConfigError(f"none of the requested kernels can run here: {'; '.join(notes)}")
    on_gpu = any(member.device != "cpu" for member in members)
    knobs, gpu_knobs = _knobs(sysfs, "cpu"), _knobs(sysfs, "gpu") if on_gpu else ()
    found = survey(sysfs, board, asked.meters)
    model = power_model(board.profile_name, asked.power_model)
    tariff = None if model is None else ModelTariff(model)
    sampler = Sampler(found.meters, share_max=METER_SHARE_MAX)
    writing = choose_writer(sysfs, (*knobs, *gpu_knobs), asked.helper)
    with closing(writing) as writer, closing(sampler):
        site = Site(sysfs, knobs, sampler, tariff, False, _step_w(found.meters), gpu_knobs,
                    discrete_gpu_rails(found.meters))  # fmt: skip
        benches = [_bench(member, asked.threads) for member in members]
        if on_gpu and not gpu_knobs:
            notes.append("no clock of the GPU can be set: its own governor chooses it")
        yield _Opened(board.name, site, writer, asked.journal, benches, notes)


@contextmanager
def _simulated(asked: Asked) -> Iterator[_Opened]:
    names = [member.name for member in asked.members]
    clock = VirtualClock()
    with TemporaryDirectory(prefix="edged-calibrate-") as directory:
        board = from_name(asked.board, Path(directory) / "board", clock)
        benches = _modelled(names, board, clock)
        sysfs, profile = board.sysfs, board.profile
        found = survey(sysfs, detect(sysfs), MeterSettings(provenance=Provenance.SIMULATED))
        sampler = Sampler(found.meters, cpu_us=lambda: 0.0)
        on_gpu = [name for name in names if name in gpu.offered(profile)]
        site = Site(
            sysfs, _knobs(sysfs, "cpu"), sampler, ModelTariff(board.model), True,
            _step_w(found.meters), _knobs(sysfs, "gpu") if on_gpu else (),
        )  # fmt: skip
        us = {t.kind: t.us or 0.0 for t in profile.transitions}
        write_us = {"cpu": us.get("cpu", 0.0)} | ({"cuda": us.get("gpu", 0.0)} if on_gpu else {})
        notes = [f"{name}: its times are {gpu.PROVENANCE}" for name in on_gpu]
        with closing(sampler):
            yield _Opened(
                profile.name, site, Direct(sysfs), Path(directory) / "limits.journal", benches,
                notes, write_us,
            )  # fmt: skip


def _modelled(
    names: Sequence[str], board: SimulatedBoard, clock: VirtualClock
) -> list[Callable[[], ClockBench]]:
    """Benches for the kernels with modelled times on a simulated board, the CPU's first."""
    benches: list[Callable[[], ClockBench]] = []
    if MODELLED in names:
        benches.append(lambda: SimulatedBench(board, clock, WINDOW, UNITS))
    for name in names:
        if name in gpu.offered(board.profile):
            benches.append(partial(SimulatedGpuBench, name, board, clock, WINDOW, UNITS))
    if not benches:
        offered = ", ".join((MODELLED, *gpu.offered(board.profile)))
        raise ConfigError(f"--kernel: on a simulated {board.profile.name} times are modelled for"
                          f" {offered} only")  # fmt: skip
    return benches


def _bench(member: type[WindowJoin], threads: int) -> Callable[[], ClockBench]:
    return lambda: RealBench(member, WINDOW, UNITS, threads)


def _step_w(meters: Sequence[Meter]) -> float:
    """Smallest step (W) of the rails of the whole input; 0 if unknown."""
    keys = next((w.keys for w in wholes(meters)), ())
    return sum(m.steps_w.get(rail, 0.0) for m in meters for name, rail in keys if name == m.name)


def _knobs(sysfs: Sysfs, kind: str) -> tuple[Knob, ...]:
    """The knobs of the CPU's clocks, or of the clocks of the GPU that runs kernels.

    Optional knobs such as video engines are excluded. NVML locks are optional too, but are used if
    there is no other knob. Among several GPUs the current one counts.
    """
    knobs = [k for k in discover(sysfs, detect(sysfs)) if k.kind == kind]
    locks = [k for k in knobs if not readable(k.max_path)]
    used = [k for k in knobs if not k.optional] or locks
    if len(locks) > 1:
        used = [k for k in locks if k.max_path.endswith(current_uuid())]
    return tuple(used)


def _may(writer: Writer, knob: Knob) -> bool:
    return not any(writer.refusal(path) for path in knob.files().values())
