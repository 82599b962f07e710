"""The simulated board: clocks, sleep states, and the energy of its whole input.

Virtual time passes in pieces of constant power.

    race on the CPU  runs at the pinned clock, or else at the clocks of the kernel's governor
                     (`governors.schedutil`) within the limits of the power mode
    race on the GPU  has a CPU part first; then the GPU works while a core waits at the clock that
                     the CPU has reached. A gated GPU is woken first. Afterwards it stays powered
                     for its railgate delay
    idle             uses the deepest idle state whose residency fits
    heat             with an ambient temperature: the input power heats the chip and its box, and
                     races run at the clocks that throttling leaves (`governors.simulated.heat`)
    clock change     takes the time in the profile (`transition`), with one core awake; no time if
                     the profile has none
"""

from __future__ import annotations

from dataclasses import dataclass, field

from governors.board_tariffs import Measured, MeasuredTariff, ModelTariff
from governors.errors import ProfileError
from governors.operating_points import GpuWait
from governors.policies.base import Act, Decision
from governors.power import PowerModel
from governors.profile import BoardProfile, Cluster, Mode
from governors.schedutil import Schedutil, Utilisation
from governors.simulated.heat import BoardHeat
from governors.suspend import SuspendCost, SuspendPlanner
from governors.tariff import Tariff
from governors.work import Dial, RaceCost


@dataclass(slots=True)
class Piece:
    """A span of constant power, one entry of the log."""

    start_us: float
    us: float
    state: str
    """race, race on gpu, write, extra, awake, or the name of an idle state."""
    hz: int
    watts: float
    joules: float
    """Energy on top of `watts`: wakeups, memory traffic, uplink."""


@dataclass
class SimulatedDevice:
    """A board with one mode's limits, driven from beat to beat."""

    profile: BoardProfile
    mode: str | None = None
    log: list[Piece] | None = None
    """Every piece; None records none."""
    memory_cap: bool = False
    """Whether policies may cap the memory clock."""
    suspend: SuspendCost | None = None
    """What a suspend draws and takes; None: the board stays awake."""
    ambient_celsius: float | None = None
    """Temperature of the air; None: heat is not simulated."""
    measured: tuple[Measured, Measured | None] | None = None
    """Calibrated power of the board's CPU and, if known, of its GPU; None uses the power model."""
    at_us: float = 0.0
    joules: float = 0.0
    wakes: int = 0
    states_us: dict[str, float] = field(default_factory=dict)
    clocks_us: dict[int, float] = field(default_factory=dict)
    busy_us: float = 0.0
    gpu_wakes: int = 0
    gpu_clocks_us: dict[int, float] = field(default_factory=dict)
    """Time of races on the GPU, by its clock."""

    def __post_init__(self) -> None:
        p = self.profile
        modes = {m.name: m for m in p.modes}
        default = next((m for m in p.modes if m.id == p.default_mode), None)
        if self.mode and self.mode not in modes:
            known = ", ".join(modes) or "none"
            raise ProfileError(f"board {p.name}: no power mode {self.mode!r}; there are: {known}")
        chosen = modes[self.mode] if self.mode else default
        self.chosen_mode = chosen
        self.mode = chosen.name if chosen else None
        self.cores = min(p.core_count, chosen.cores) if chosen else p.core_count
        self.dials = tuple(_dial(c, chosen) for c in p.clusters)
        memory_hz = chosen.memory_max_hz if chosen else None
        if self.memory_cap and p.memory.table_hz:
            most = min(p.memory.table_hz[-1], memory_hz or p.memory.table_hz[-1])
            table = p.memory.table_hz
            self.dials += (Dial("emc", "memory", table, table[0], most),)
        self._gpu_dial = _gpu_dial(p, chosen)
        if self._gpu_dial is not None:
            self.dials += (self._gpu_dial,)
        self._gpu_hz: int | None = None
        self._others = 0.0
        self.gpu_own_us = 0.0
        self._gpu_until_us = 0.0
        self._memory_hz: int | None = None
        self.modelled = ModelTariff(PowerModel(p), memory_hz=memory_hz)
        self.tariff: Tariff = self.modelled
        if self.measured is not None:
            self.tariff = MeasuredTariff(self.modelled, *self.measured)
        choices = self.dials[0].choices_hz()
        top = p.clusters[0].opps[-1].hz
        self._kernel, self._used = Schedutil(choices, top), Utilisation()
        self._pinned: int | None = None
        self._last_hz = self.dials[0].min_hz
        self.write_us = next((t.us or 0.0 for t in p.transitions if t.kind == "cpu"), 0.0)
        one = self.tariff.race_watts("cpu", choices[0], 1.0) - self.tariff.idle_watts
        self.write_j = 2 * one * self.write_us / 1e6
        self._states = [(s.name, s.residency_us or 0.0) for s in p.idle_states] or [("idle", 0.0)]
        self.heat: BoardHeat | None = None
        self._extra_j = 0.0
        """Energy without time that has not heated the chip yet."""
        if self.ambient_celsius is not None:
            if p.thermal is None:
                raise ProfileError(f"board {p.name}: its profile has no thermal model")
            self.heat = BoardHeat(p, self.ambient_celsius, self.idle_watts)

    @property
    def idle_watts(self) -> float:
        """Power of the idle board."""
        return self.tariff.idle_watts

    @property
    def is_off(self) -> bool:
        """Whether the board has switched itself off at its critical trip point."""
        return self.heat is not None and self.heat.is_off

    @property
    def trip_celsius(self) -> float | None:
        """The temperature from which on the board throttles; None: heat is not simulated."""
        thermal = self.profile.thermal
        return None if self.heat is None or thermal is None else thermal.throttle.celsius

    @property
    def gpu_hz(self) -> int:
        """The GPU's clock in races: the pinned one, or else the highest; 0 without a GPU."""
        top_hz = 0 if self._gpu_dial is None else self._gpu_dial.max_hz
        return self._gpu_hz or top_hz

    def idle(self, until_us: float) -> None:
        """Sleep until a time."""
        us = until_us - self.at_us
        if us > 0:
            self._used.sleep(us)
            self._spend(us, self._deepest(us), 0, self.idle_watts)

    def rest(self, until_us: float) -> None:
        """Wait with the sources muted: suspended, where that pays, and back in time."""
        cost, us = self.suspend, until_us - self.at_us
        alarm_s = 0 if cost is None else SuspendPlanner(cost).seconds(int(us))
        if cost is None or not alarm_s:
            self.idle(until_us)
            return
        self._used.sleep(us)
        self._spend(cost.transition_us, "suspending", 0, cost.transition_watts)
        asleep_us = 1e6 * alarm_s + cost.leave_us - cost.transition_us
        self._spend(asleep_us, "suspended", 0, cost.watts)
        self.idle(until_us)

    def nap(self, until_us: float) -> None:
        """Wait until work arrives at `until_us`.

        Sleeps and wakes, or stays awake at the last clock if that costs less, since the kernel
        chooses an idle state by the expected idle time.
        """
        us = until_us - self.at_us
        watts = self.tariff.race_watts("cpu", self._last_hz, 0.0)
        if us > 0 and (watts - self.idle_watts) * us / 1e6 < self.tariff.wake_j:
            self._used.sleep(us)
            self._spend(us, "awake", 0, watts)
        elif us > 0:
            self.idle(until_us)
            self.wake()

    def wake(self) -> None:
        """Wake a core."""
        self.wakes += 1
        self.extra(self.tariff.wake_j)

    def extra(self, joules: float) -> None:
        """Add energy without time."""
        self.joules += joules
        self._extra_j += joules
        if self.log is not None:
            self.log.append(Piece(self.at_us, 0.0, "extra", 0, 0.0, joules))

    def apply(self, decision: Decision) -> None:
        """Set and release clocks. Clusters are set together, so the first one's setting counts."""
        if not decision.clocks:
            return
        setting = decision.clocks.get(self.dials[0].name)
        if setting is not None:
            self._pinned = setting.hz if setting.act is Act.PIN else None
        memory = decision.clocks.get("emc")
        if memory is not None:
            self._memory_hz = memory.hz if memory.act is Act.CAP else None
        gpu = decision.clocks.get("gpu")
        if gpu is not None:
            self._gpu_hz = gpu.hz if gpu.act is Act.PIN else None
        if self.write_us:
            watts = self.tariff.race_watts("cpu", self.dials[0].min_hz, 1.0)
            self._spend(self.write_us, "write", self.dials[0].min_hz, watts)

    def gpu_of_others(self, share: float) -> None:
        """Other processes use so much of the GPU's time from now on: races on it take longer."""
        self._others = min(share, 0.99)

    def race(self, cost: RaceCost, units: float, device: str = "cpu") -> float:
        """Run a race on `cpu` or `gpu`; returns its time (µs).

        A race on the GPU starts with the host's part on the CPU.
        """
        if device == "gpu":
            before_us = 0.0 if cost.host is None else self._race_on_cpu(cost.host, units)
            us = before_us + self._race_on_gpu(cost, units)
        else:
            us = self._race_on_cpu(cost, units)
        self.extra(self.tariff.byte_j * cost.bytes_per_unit * units)
        self.busy_us += us
        return us

    def _race_on_cpu(self, cost: RaceCost, units: float) -> float:
        cycles = cost.cycles + cost.cycles_per_unit * units
        stall_us = self._stretch() * (cost.stall_us + cost.stall_us_per_unit * units)
        if self.heat is not None:
            return self._race_in_heat(self.heat, cost.cores, cycles, stall_us)
        if self._pinned is not None:
            pieces = [(self._pinned, 1e6 * cycles / self._pinned + stall_us)]
            self._kernel.held(*pieces[0], self._used)
        else:
            pieces = self._kernel.race(cycles, stall_us, self._used)
        spent = 0.0
        for hz, us in pieces:
            watts = self.tariff.race_watts("cpu", hz, cost.cores, self._memory_hz)
            self._spend(us, "race", hz, watts)
            self._last_hz = hz
            spent += us
        return spent

    def _race_in_heat(self, heat: BoardHeat, cores: float, cycles: float, stall_us: float) -> float:
        """The same under throttling, which may begin and end within the race."""
        left, spent, estimate = 1.0 if cycles + stall_us > 0 else 0.0, 0.0, self._used.estimate
        while left > 1e-9:
            share, ceiling_hz = heat.throttle.share, heat.throttle.ceiling_hz()
            passed = cycles / share
            for hz, us in self._pieces(left * passed, left * stall_us, ceiling_hz):
                us = max(1.0, min(us, heat.until_look_us))
                watts = self.tariff.race_watts("cpu", hz, cores * share, self._memory_hz)
                look_us = heat.until_look_us
                self._kernel.held(hz, us, self._used)
                self._spend(us, "race", hz, watts)
                self._last_hz = hz
                spent += us
                left -= us / max(1e6 * passed / hz + stall_us, 1e-9)
                if us >= look_us or left <= 1e-9:
                    break
        now = self._used.now
        self._used.estimate = max(now, estimate + (now - estimate) / 4)
        return spent

    def _pieces(self, cycles: float, stall_us: float, ceiling_hz: int) -> list[tuple[int, float]]:
        """Clocks of a race and the time at each, none above a ceiling."""
        choices = self.dials[0].choices_hz()
        allowed = [hz for hz in choices if hz <= ceiling_hz] or [choices[0]]
        if self._pinned is not None:
            hz = min(self._pinned, allowed[-1])
            return [(hz, 1e6 * cycles / hz + stall_us)]
        kernel = Schedutil(allowed, self._kernel.capacity_hz)
        return list(kernel.race(cycles, stall_us, self._used.copy()))

    def fastest_us(self, cost: RaceCost, units: float, device: str = "cpu") -> float:
        """Time of a race (µs) at the highest clocks of the power mode."""
        host_hz = self.dials[0].max_hz
        if device != "gpu" or self._gpu_dial is None:
            return cost.us(units, host_hz)
        host_us = 0.0 if cost.host is None else cost.host.us(units, host_hz)
        return host_us + cost.us(units, self._gpu_dial.max_hz)

    def _stretch(self) -> float:
        """Factor by which a capped memory clock lengthens memory stalls."""
        if self._memory_hz is None:
            return 1.0
        return next(d.max_hz for d in self.dials if d.kind == "memory") / self._memory_hz

    def _race_on_gpu(self, cost: RaceCost, units: float) -> float:
        assert self._gpu_dial is not None, "the board has a GPU"
        if self.at_us >= self._gpu_until_us:
            self.gpu_wakes += 1
            self.extra(self.tariff.gating.wake_j or 0.0)
        self._gpu_until_us = 0.0  # the race's watts include the powered GPU
        hz = self.gpu_hz
        stall_us = cost.stall_us + cost.stall_us_per_unit * units
        alone_us = cost.us(units, hz) + (self._stretch() - 1) * stall_us
        self.gpu_own_us += alone_us
        us = alone_us / (1.0 - self._others)
        cpu_hz = self._last_hz if cost.host is not None else None
        watts = self.tariff.race_watts("gpu", hz, cost.cores, self._memory_hz, cpu_hz)
        if cost.host is not None:
            GpuWait(us, cost.cores).wait(self._kernel, self._last_hz, self._used)
        self._spend(us, "race on gpu", 0, watts)
        self.gpu_clocks_us[hz] = self.gpu_clocks_us.get(hz, 0.0) + us
        self._gpu_until_us = self.at_us + self.tariff.gating.us
        return us

    def beside(self, cycles: float) -> None:
        """Add the energy above idle of one core's work after a race (commit, acks), at the clock
        that the race has left.  It lies within the next wait and takes no time of its own."""
        hz = self._last_hz
        watts = self.tariff.race_watts("cpu", hz, 1.0) - self.idle_watts
        self.extra(watts * cycles / hz)

    def _spend(self, us: float, state: str, hz: int, watts: float) -> None:
        powered_us = min(us, max(0.0, self._gpu_until_us - self.at_us))
        if powered_us:
            self.extra(self.tariff.gating.watts * powered_us / 1e6)
        if self.log is not None:
            self.log.append(Piece(self.at_us, us, state, hz, watts, 0.0))
        if self.heat is not None and us > 0:
            self.heat.pass_time(us, watts + 1e6 * self._extra_j / us)
            self._extra_j = 0.0
        self.at_us += us
        self.joules += watts * us / 1e6
        self.states_us[state] = self.states_us.get(state, 0.0) + us
        if hz:
            self.clocks_us[hz] = self.clocks_us.get(hz, 0.0) + us

    def _deepest(self, us: float) -> str:
        return next((name for name, least in reversed(self._states) if us >= least), "awake")


def _gpu_dial(profile: BoardProfile, mode: Mode | None) -> Dial | None:
    """The dial of the GPU's clock within the limits of a power mode; None without a GPU."""
    if profile.gpu is None:
        return None
    table = tuple(opp.hz for opp in profile.gpu.opps)
    most = table[-1] if mode is None else min(table[-1], mode.gpu_max_hz)
    return Dial("gpu", "gpu", table, table[0], most)


def _dial(cluster: Cluster, mode: Mode | None) -> Dial:
    """The dial of a cluster's clock within the limits of a power mode."""
    top = cluster.opps[-1].hz
    most = top if mode is None else min(top, mode.cpu_max_khz * 1000)
    least = max(cluster.opps[0].hz, cluster.floor_hz)
    return Dial(cluster.name, "cpu", cluster.table_hz, min(least, most), most)
