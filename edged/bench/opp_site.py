"""The board that `edged calibrate` works on: the real one, a fixture tree, or a simulated one.

Who calibrates owns the board's CPU clocks, with the same journal as the daemon: both at once cannot
be, and what a killed calibration left is restored by the next one, by the next daemon or by
`edged governor restore`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from edged.bench.opp_benches import MODELLED, Bench, RealBench, SimulatedBench, VirtualClock
from edged.bench.opp_calibrate import Bounds, OppCalibration, Say, Site
from edged.calibration import EnergyCalibration
from edged.errors import ConfigError
from edged.joins.base import WindowJoin
from governors.actuators.base import Knob, discover
from governors.actuators.ownership import Ownership
from governors.actuators.restoring import Owned
from governors.actuators.writers import Direct, Writer, choose_writer
from governors.detect import detect
from governors.energy import Provenance
from governors.errors import NotPermitted
from governors.meters.base import Meter, survey
from governors.meters.rails import wholes
from governors.meters.sampler import Sampler
from governors.meters.settings import Settings
from governors.power import PowerModel
from governors.profile import load
from governors.simulated.board import PREFIX, from_name
from governors.simulated.kernel import open_root
from governors.sysfs import Sysfs
from governors.tariff import ModelTariff

WINDOW, UNITS = 100_000, 131_072
"""Tuples a side of the window, and of both sides of a beat."""
SHARE_MAX = 0.01
"""Of a core, that reading meters may take; more than in the daemon, since this is soon over."""


@dataclass(frozen=True)
class Asked:
    """What is asked for."""

    board: str
    """A board's tree (`/`), or `simulated:NAME`."""
    journal: Path
    helper: Path
    members: Sequence[type[WindowJoin]]
    threads: int
    bounds: Bounds
    meters: Settings = field(default_factory=Settings)


def settable(root: str, helper: Path) -> str:
    """Why no CPU clock may be set below `root`; empty where one may."""
    sysfs = open_root(root)
    knobs = _cpu_knobs(sysfs)
    with closing(choose_writer(sysfs, knobs, helper)) as writer:
        if any(_may(writer, knob) for knob in knobs):
            return ""
        return writer.why


def calibrate_board(asked: Asked, say: Say = lambda *_: None) -> EnergyCalibration:
    """Measure at every clock there is.  Clocks are as before when it returns or raises.

    Raises ConfigError and GovernorError.
    """
    with ExitStack() as stack:
        if asked.board.startswith(PREFIX):
            opened = stack.enter_context(_simulated(asked))
        else:
            opened = stack.enter_context(_real(asked))
        return opened.calibrate(asked.bounds, say)


@dataclass
class _Opened:
    """A board with everything that is needed."""

    name: str
    site: Site
    writer: Writer
    journal: Path
    benches: Sequence[Callable[[], Bench]]
    write_us: float | None
    """What setting the clocks takes; None: it is measured."""

    def calibrate(self, bounds: Bounds, say: Say) -> EnergyCalibration:
        with ExitStack() as stack:
            ours, why = self._own(stack)
            knobs = tuple(k for k in self.site.knobs if ours and not _lost(ours, k))
            site = replace(self.site, knobs=knobs or self.site.knobs)
            run = OppCalibration(site, ours, bounds, say)
            if self.write_us == 0:
                run.notes.append("what setting a clock takes here is not known: counted as nothing")
            if why:
                run.notes.append(f"no clock can be set, so it is the one there is: {why}")
            write_us = self.write_us or 0.0
            if ours is not None and self.write_us is None:
                write_us = sum(ours.measure(knob).mean_us for knob in knobs)
            kernels = {}
            for make in self.benches:
                with closing(make()) as bench:
                    kernels[bench.kernel] = run.run(bench)
            if not run.meter.startswith("no meter") or self.site.simulated:
                notes = run.notes
            else:
                notes = [*run.notes, "power is modelled: no sensor tells the whole input"]
            return EnergyCalibration(
                self.name, self.site.simulated, run.meter, WINDOW, write_us, tuple(notes), kernels
            )

    def _own(self, stack: ExitStack) -> tuple[Ownership | None, str]:
        """Ownership of the knobs, or why there is none."""
        if not self.site.knobs:
            return None, self.writer.why
        try:
            return stack.enter_context(
                Ownership(self.site.sysfs, self.writer, self.journal, self.site.knobs)
            ), ""
        except Owned:
            raise
        except NotPermitted as problem:
            return None, str(problem)


@contextmanager
def _real(asked: Asked) -> Iterator[_Opened]:
    sysfs = open_root(asked.board)
    board = detect(sysfs)
    knobs = _cpu_knobs(sysfs)
    found = survey(sysfs, board, asked.meters)
    tariff = ModelTariff(PowerModel(load(board.profile_name))) if board.profile_name else None
    sampler = Sampler(found.meters, share_max=SHARE_MAX)
    with closing(choose_writer(sysfs, knobs, asked.helper)) as writer, closing(sampler):
        site = Site(sysfs, knobs, sampler, tariff, False, _step_w(found.meters))
        benches = [_bench(member, asked.threads) for member in asked.members]
        yield _Opened(board.name, site, writer, asked.journal, benches, None)


@contextmanager
def _simulated(asked: Asked) -> Iterator[_Opened]:
    if MODELLED not in [member.name for member in asked.members]:
        raise ConfigError(
            f"--kernel: on a simulated board service times are modelled for {MODELLED} only"
        )
    clock = VirtualClock()
    with TemporaryDirectory(prefix="edged-calibrate-") as directory:
        board = from_name(asked.board, Path(directory) / "board", clock)
        found = survey(board.sysfs, detect(board.sysfs), Settings(provenance=Provenance.SIMULATED))
        sampler = Sampler(found.meters, cpu_us=lambda: 0.0)
        tariff, step_w = ModelTariff(board.model), _step_w(found.meters)
        site = Site(board.sysfs, _cpu_knobs(board.sysfs), sampler, tariff, True, step_w)
        write_us = next((t.us for t in board.profile.transitions if t.kind == "cpu"), None)
        with closing(sampler):
            yield _Opened(
                board.profile.name, site, Direct(board.sysfs), Path(directory) / "limits.journal",
                [lambda: SimulatedBench(board, clock, WINDOW, UNITS)], write_us or 0.0,
            )  # fmt: skip


def _bench(member: type[WindowJoin], threads: int) -> Callable[[], Bench]:
    return lambda: RealBench(member, WINDOW, UNITS, threads)


def _step_w(meters: Sequence[Meter]) -> float:
    """Of the rails that tell the whole input."""
    keys = next((w.keys for w in wholes(meters)), ())
    return sum(m.steps_w.get(rail, 0.0) for m in meters for name, rail in keys if name == m.name)


def _cpu_knobs(sysfs: Sysfs) -> tuple[Knob, ...]:
    found = discover(sysfs, detect(sysfs))
    return tuple(k for k in found if k.kind == "cpu" and not k.optional)


def _may(writer: Writer, knob: Knob) -> bool:
    return not any(writer.refusal(path) for path in knob.files().values())


def _lost(ours: Ownership, knob: Knob) -> bool:
    return knob.name in ours.refused or knob.name in ours.dormant
