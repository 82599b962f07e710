"""The board of a daemon: its tree, profile, knobs and meters; real or simulated.

A simulated board is advanced with the work of each beat.  Its cycles are CPU time of this process
(all threads, without the energy governor's own) x the clock of this machine (`host_hz`, timed as
for the prices of `edged.simulate.work`) x the board's cycles per cycle of this machine
(`edged.energy.cost_fit.width_scale`, an assumption with an error of half). Bytes are those of the
rows (`row_bytes`).  Commit, acks and wakes follow their race on one core, at the clock that the
race has left, as in `edged simulate`.

A race takes as long as on the board at the clocks in its tree.  The board's time runs ahead of this
machine's until the race is over, by at most AHEAD_US, and the limits are released after it.  Work
beyond that queues, and `busy_share` reports the requested share of time; above 1 the board is
saturated.

A machine without a profile has no power model: nothing is modelled of it, and energy comes from its
meters alone.  `energy.power_model` gives it another machine's figures, as a stand-in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter_ns

import governors.profile_reader
from edged.beat.hysteresis import Hysteresis
from edged.beat.stats import SATURATED_IDLE_US
from edged.energy.cost_fit import width_scale
from edged.energy.settings import EnergySettings
from edged.energy.sleeps import GPU_PM, OFFLINE, UCLAMP, Sleeps, parse_allowed
from edged.errors import ConfigError
from governors.actuators.base import Knob, discover, switches
from governors.actuators.writers import ReselectingWriter
from governors.detect import DetectedBoard, detect
from governors.energy import Provenance
from governors.errors import GovernorError
from governors.meters.base import Found, survey
from governors.meters.settings import MeterSettings
from governors.power import PowerModel
from governors.power_models import described, power_model
from governors.profile import BoardProfile
from governors.simulated.board import BoardWork, SimulatedBoard, from_name
from governors.simulated.kernel import open_root
from governors.sysfs import Sysfs
from governors.topology import Topology, topology
from kernels.cpu import clock

AHEAD_US = 1_000_000
TIMED, TURNS = 50, 20_000
"""Chains that time this machine's clock, and their turns: about 10 µs each."""


@dataclass
class BoardSite:
    """Everything known about the board."""

    sysfs: Sysfs
    board: DetectedBoard
    cores: Topology
    profile: BoardProfile | None
    """The board's own."""
    model: PowerModel | None
    """Of its profile, or of the stand-in that `energy.power_model` names."""
    knobs: list[Knob]
    writer: ReselectingWriter
    journal: Path
    meters: Found
    simulated: SimulatedWork | None
    sleeps: Sleeps

    @property
    def provenance(self) -> Provenance:
        """Provenance of its sensors' readings."""
        return Provenance.MEASURED if self.simulated is None else Provenance.SIMULATED

    @property
    def modelled(self) -> str:
        """What the power model describes, in words; empty without one."""
        if self.model is None:
            return ""
        return described(self.model, self.board.profile_name)


class SimulatedWork:
    """Charges a simulated board with the work of this process."""

    def __init__(self, board: SimulatedBoard, now_us: int) -> None:
        self.board = board
        self._scale = host_hz() * width_scale(board.profile) / 1e6
        """Cycles of the board per µs of CPU time of this machine."""
        self._started_us, self._requested_us = now_us, 0.0
        self.late_us = 0.0
        """Work that did not fit into the available time."""
        self._saturated = Hysteresis(SATURATED_IDLE_US)

    def cycles(self, cpu_us: float) -> float:
        """Cycles of the board's cores for CPU time of this machine."""
        return cpu_us * self._scale

    def pass_time(self, now_us: int, beside_us: float, wakes: int) -> None:
        """Advance to now, with CPU time outside races on one core."""
        cycles = self.cycles(beside_us)
        self.board.advance(now_us, BoardWork(cycles=cycles, cores=1.0, wakeups=wakes))

    def race(self, now_us: int, cpu_us: float, cores: float, memory_bytes: float) -> float:
        """Run a race that began at `now_us`; returns its duration on the board (µs)."""
        work = BoardWork(cycles=self.cycles(cpu_us), memory_bytes=memory_bytes, cores=cores)
        before = self.board.charged_us
        self.board.advance(self.board.now_us, work)
        us = self.board.charged_us - before
        self._requested_us += us
        at = max(now_us, self.board.now_us)
        self.board.advance(min(at + round(self.board.backlog_us), now_us + AHEAD_US))
        self.late_us = self.board.backlog_us
        self._saturated.observe(now_us, self.late_us > 0)
        return us

    def saturated(self, now_us: int) -> bool:
        """Whether the board cannot carry its load: work has been left over for several races."""
        self._saturated.settle(now_us)
        return self._saturated.active

    def busy_share(self, now_us: int) -> float:
        """Requested service time over elapsed time."""
        return self._requested_us / max(1, now_us - self._started_us)


def open_site(settings: EnergySettings, store: Path, clock_us: Callable[[], int]) -> BoardSite:
    """Examine the board without writing to it.  Raises ConfigError."""
    try:
        return _open(settings, store, clock_us)
    except GovernorError as problem:
        raise ConfigError(f"--board {settings.board}: {problem}") from problem


def _open(settings: EnergySettings, store: Path, clock_us: Callable[[], int]) -> BoardSite:
    simulated = None
    if settings.simulated:
        root = settings.root(store)
        root.mkdir(parents=True, exist_ok=True)
        made = from_name(settings.board, root, clock_us)
        simulated = SimulatedWork(made, clock_us())
        sysfs: Sysfs = made.sysfs
    else:
        sysfs = open_root(settings.root(store))
    board = detect(sysfs)
    profile = governors.profile_reader.load(board.profile_name) if board.profile_name else None
    allowed = parse_allowed(settings.allowed)
    knobs = [k for k in discover(sysfs, board) if not k.optional or k.name in allowed]
    missing = allowed.keys() - {k.name for k in knobs} - {OFFLINE, GPU_PM, UCLAMP}
    if missing:
        raise GovernorError(
            f"--governor allow: this board has no clock {', '.join(sorted(missing))}"
        )
    sleeps = Sleeps(sysfs, switches(sysfs, board), allowed, simulated is not None)
    source = Provenance.MEASURED if simulated is None else Provenance.SIMULATED
    return BoardSite(
        sysfs,
        board,
        topology(sysfs, board),
        profile,
        power_model(board.profile_name, settings.power_model),
        knobs,
        ReselectingWriter(sysfs, [*knobs, *sleeps.switches], settings.helper),
        settings.journal(store),
        survey(sysfs, board, _meters(settings, source)),
        simulated,
        sleeps,
    )


def _meters(settings: EnergySettings, source: Provenance) -> MeterSettings:
    return replace(settings.meters, provenance=source)


def host_hz() -> float:
    """Clock of this machine under load: the fastest of TIMED chains of dependent instructions.

    /proc/cpuinfo has the nominal clock in a virtual machine, whatever the core runs at.
    """
    took_ns = []
    for _ in range(TIMED):
        since = perf_counter_ns()
        clock.turn(since, TIMED, TURNS)
        took_ns.append(perf_counter_ns() - since)
    return 1e9 * clock.CYCLES * TURNS / min(took_ns)
