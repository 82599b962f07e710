"""A simulated board: the power model in the caller's time behind a tree of files.

    board = SimulatedBoard(load("orin-nano"), directory, clock_us=clock)
    board.sysfs                                     for governors, actuators and meters
    board.advance(now_us, BoardWork(cycles=2e8))    work requested since the last step

Work runs at the clocks that the tree allows: at one clock where minimum and maximum are equal, else
by the model of schedutil (`governors.schedutil`), which stands for every governor except
performance, powersave and userspace.  A race takes

    cycles / (busy cores x clock) + bytes / bandwidth

with the specified peak bandwidth at the memory clock: the highest allowed one under load, else the
lowest.  The GPU works in parallel at its highest allowed clock and stays powered for its railgate
delay.  Work beyond the available time queues; a `backlog_us`, or a `busy_share` above 1, means that
the board is saturated.

The tree is on disk, so other processes see the same board (`kernel.open_root`). Only the process
that holds this object advances it.  The input power heats the chip and its box, and a hot chip is
throttled (`governors.simulated.heat`); the zones show the chip's temperature.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from governors.board_names import SIMULATED
from governors.errors import ProfileError
from governors.power import BoardLoad, PowerModel
from governors.profile import BoardProfile
from governors.profile_reader import load
from governors.schedutil import Utilisation
from governors.simulated import clocks, layout
from governors.simulated.commands import Commands
from governors.simulated.heat import BoardHeat
from governors.simulated.kernel import PRIVATE, SimulatedSysfs
from governors.simulated.sensors import Sensors
from governors.sysfs import CPU

AMBIENT_C = 25.0
NEAR_TRIP_C = 10.0
"""From so much below its throttling on a board advances from look to look."""
_DONE_US = 0.5
"""Less than that is nothing left."""
_TIMES_US, _TICK_US = 100_000, 10_000
SETTLE_US = 2_000
"""With a clock, the files are at most this old when they are read.  An update takes about 1 ms,
and a status document reads a hundred files."""
SHOW_US = 100_000
"""With a clock, work updates the files after this time; reads update them before."""


@dataclass(frozen=True, slots=True)
class BoardWork:
    """Work requested of the board since the last step."""

    cycles: float = 0.0
    """CPU cycles of all cores together."""
    memory_bytes: float = 0.0
    cores: float = 0.0
    """Cores that share the cycles; 0: all online cores."""
    gpu_us: float = 0.0
    """GPU time at its highest clock."""
    gpu_stall_us: float = 0.0
    """GPU time that its clock does not shorten."""
    gpu_cores: float = 0.0
    """CPU cores that wait for the GPU, busy, at their current clock."""
    wakeups: float = 0.0


@dataclass(frozen=True, slots=True)
class Background:
    """Permanent load of the board."""

    cores: float = 0.0
    """Mean number of busy cores."""
    memory_gbytes_per_s: float = 0.0
    uplink_watts: float = 0.0


class SimulatedBoard(Commands):
    """One board."""

    def __init__(
        self,
        profile: BoardProfile,
        directory: Path,
        clock_us: Callable[[], int] | None = None,
        seed: int = 0,
        noise: bool = True,
    ) -> None:
        """Builds the tree in `directory`, or continues with an existing one.

        With a clock (monotonic µs) files are at most SETTLE_US old when this process reads them,
        and at most SHOW_US old for other processes while the board works; without one they change
        with every `advance`, and only then.  Raises ProfileError.
        """
        self.profile, self.model = profile, PowerModel(profile)
        idle = self.model.watts(self.model.idle_load())
        for name in (channel.rail for channel in profile.sensor.channels):
            if name not in idle:
                raise ProfileError(f"{profile.name}: no [[power.idle]] of {name} is known, which"
                                   " the sensor of a simulated board shows")  # fmt: skip
        self.background = Background()
        self.now_us = clock_us() if clock_us else 0
        self.input_joules = 0.0
        """Modelled joules of the input."""
        self.charged_us = 0.0
        """Service time of all work so far, at the clocks of the request."""
        self._build(directory)
        self.sysfs = SimulatedSysfs(directory)
        self.sensors = Sensors(profile, self.sysfs, idle, self.now_us, seed, noise)
        self._started_us = self.now_us
        self._race = clocks.Race(0.0, 0.0, 0.0)
        self._gpu_us = self._gpu_stall_us = self._gpu_cores = 0.0
        self._gpu_until_us = -math.inf
        self._utilisation = Utilisation()
        self._slept_us = float(self.sysfs.peek_int(f"{_deepest_state(profile, 0)}/time"))
        self._wakeups: float = sum(
            self.sysfs.peek_int(f"{_deepest_state(profile, core)}/usage")
            for core in range(profile.core_count)
        )
        self._clocked_us: list[dict[int, int]] = [
            dict.fromkeys(cluster.table_hz, 0) for cluster in profile.clusters
        ]
        """By cluster: time at each clock."""
        self._clocked_at_us = self.now_us
        self._shown_us = self.now_us
        self._allowed: tuple[bytes, clocks.Allowed] | None = None
        """What the tree allows, after which write (`SimulatedSysfs.written`)."""
        self.heat: BoardHeat | None = None
        """Its heat, in air of AMBIENT_C (`heat.network.ambient_celsius`)."""
        self._throttling: dict[str, int] = {}
        """What the files show of throttling."""
        if profile.thermal is not None:
            self.heat = BoardHeat(profile, AMBIENT_C, self.model.idle_watts())
        self._cache: dict[BoardLoad, dict[str, float]] = {}
        self._lock = threading.RLock()
        self._clock_us = clock_us
        if clock_us is not None:
            self.sysfs.settle = self._settle

    @property
    def joules(self) -> dict[str, float]:
        """Modelled joules of each rail."""
        return self.sensors.joules

    # --- time and work

    def advance(self, now_us: int, work: BoardWork | None = None) -> None:
        """Serve queued work and `work` up to `now_us`, then update clocks and sensors.  Without
        elapsed time, work is queued only."""
        with self._lock, self.sysfs.locked():
            self._advance(now_us, work)
            if self._clock_us is None or self.now_us - self._shown_us >= SHOW_US:
                self._refresh()

    def suspend(self, now_us: int, asleep_us: int, watts: float) -> None:
        """It was suspended for `asleep_us` until `now_us`, with `watts` of its input.  The rails
        share them as when idle, which is an assumption."""
        self.advance(now_us - asleep_us)
        with self._lock, self.sysfs.locked():
            us = now_us - self.now_us
            if us <= 0:
                return
            idle = self.model.watts(self.model.idle_load())
            share = watts / sum(idle[rail] for rail in self.profile.input)
            self.sensors.spend(us, {rail: share * power for rail, power in idle.items()})
            self.input_joules += watts * us / 1e6
            self.now_us = now_us
            self._refresh()

    def _advance(self, now_us: int, work: BoardWork | None) -> None:
        allowed = self._look()
        if work is not None:
            self._take(work, allowed)
        elapsed_us = now_us - self.now_us
        if elapsed_us > 0:
            wakeups_per_s = (work.wakeups if work else 0.0) * 1e6 / elapsed_us
            while self.now_us < now_us:
                self._serve(min(now_us, self._next_look_us()), self._look(), wakeups_per_s)
            self.sensors.convert()

    def _next_look_us(self) -> int:
        """The time up to which no throttling begins or ends."""
        heat = self.heat
        if heat is None or heat.celsius < heat.trip_celsius - NEAR_TRIP_C:
            return 1 << 62
        return self.now_us + max(1, round(heat.until_look_us))

    def _refresh(self) -> None:
        """Update the files, if time has passed since the last update."""
        if self.now_us <= self._shown_us:
            return
        allowed = self._look()
        self._show(allowed)
        if self.heat is not None:
            self._warm(self.heat, self._gpu_powered(allowed))
        self._shown_us = self.now_us
        self.sensors.renew()

    def _look(self) -> clocks.Allowed:
        """What the tree and throttling allow.  With a clock the tree is read again after a write
        only."""
        written = self.sysfs.written() if self._clock_us is not None else b""
        if self._clock_us is None or self._allowed is None or self._allowed[0] != written:
            self._allowed = written, clocks.look(self.profile, self.sysfs)
        found = self._allowed[1]
        return found if self.heat is None else clocks.throttled(found, self.heat.throttle)

    @property
    def backlog_us(self) -> float:
        """Duration of the queued work at the current clocks."""
        with self._lock:
            return self._duration_us(self._race, self._look())

    @property
    def gpu_backlog_us(self) -> float:
        """Duration of the queued GPU work at the current clock."""
        with self._lock:
            return self._gpu_left_us(self._look())

    @property
    def busy_share(self) -> float:
        """Requested service time over elapsed time since construction; above 1 the board is
        saturated."""
        return self.charged_us / max(1, self.now_us - self._started_us)

    def _settle(self) -> None:
        """Bring the files up to date before a read."""
        if self._clock_us is None:
            return
        with self._lock:
            if (now_us := self._clock_us()) - self._shown_us < SETTLE_US:
                return
            with self.sysfs.locked():
                self._advance(now_us, None)
                self._refresh()

    def _duration_us(self, race: clocks.Race, allowed: clocks.Allowed) -> float:
        memory = replace(self._utilisation)
        found = clocks.stretches(self.profile, allowed, race, memory) if race.cycles else []
        return sum(us for _, us in found)

    def _take(self, work: BoardWork, allowed: clocks.Allowed) -> None:
        asked = clocks.Race(work.cycles, work.memory_bytes, work.cores)
        self.charged_us += self._duration_us(asked, allowed)
        left = self._race
        self._race = clocks.Race(
            left.cycles + work.cycles, left.memory_bytes + work.memory_bytes,
            work.cores if work.cycles else left.cores,
        )  # fmt: skip
        self._gpu_us += work.gpu_us
        self._gpu_stall_us += work.gpu_stall_us
        if work.gpu_us or work.gpu_stall_us:
            self._gpu_cores = work.gpu_cores
        self._wakeups += work.wakeups

    def _serve(self, until_us: int, allowed: clocks.Allowed, wakeups_per_s: float) -> None:
        """Advance in steps of constant power, each to the next change."""
        race, found = self._race, []
        if race.cycles > 0:
            found = clocks.stretches(self.profile, allowed, race, self._utilisation)
        whole_us = sum(us for _, us in found)
        traffic = race.memory_bytes / whole_us / 1e3 if whole_us else 0.0
        left_us = [us for _, us in found]
        at = 0
        while self.now_us < until_us:
            now = found[at][0] if at < len(found) else None
            load = self._load(allowed, now, traffic, wakeups_per_s)
            ends: list[float] = [until_us - self.now_us]
            if now is not None:
                ends.append(left_us[at])
            ends += self._gpu_ends(allowed)
            us = min(max(1, round(min(ends))), until_us - self.now_us)
            self._spend(us, load, allowed)
            if now is None:
                if not load.gpu_busy or not self._gpu_cores:
                    self._utilisation.sleep(us)
                continue
            left_us[at] -= us
            if left_us[at] < _DONE_US:
                at += 1
        part = sum(left_us[at:]) / whole_us if whole_us else 0.0
        self._race = replace(race, cycles=race.cycles * part, memory_bytes=race.memory_bytes * part)

    def _load(
        self,
        allowed: clocks.Allowed,
        now: clocks.Clocks | None,
        traffic: float,
        wakeups_per_s: float,
    ) -> BoardLoad:
        """The board's load, during a race at the clocks `now` or between races (None)."""
        p, back = self.profile, self.background
        total = sum(allowed.online)
        works = self._gpu_works
        racing = allowed.pulses * clocks.busy_cores(self._race.cores, allowed) if now else 0.0
        waiting = self._gpu_cores if works and not now else 0.0
        busy = min(total, racing + waiting + back.cores)
        held = bool(now) or waiting > 0 or not allowed.deep
        return BoardLoad(
            cluster_hz=now or clocks.idle_clocks(p, allowed, self._utilisation),
            busy_cores=tuple(busy * n / total for n in allowed.online),
            awake_share=1.0 if held else min(1.0, back.cores),
            wakeups_per_s=wakeups_per_s,
            gpu_hz=allowed.gpu_hz,
            gpu_busy=float(works),
            gpu_awake=float(works or self._gpu_powered(allowed)),
            memory_hz=allowed.memory_race_hz if now or works else allowed.memory_idle_hz,
            memory_gbytes_per_s=back.memory_gbytes_per_s + (traffic if now else 0.0),
            uplink_watts=back.uplink_watts,
        )

    def _gpu_ends(self, allowed: clocks.Allowed) -> list[float]:
        """Time until the GPU is done, or gated."""
        if self._gpu_works:
            return [self._gpu_left_us(allowed)]
        left_us = self._gpu_until_us - self.now_us
        return [left_us] if left_us > 0 else []

    @property
    def _gpu_works(self) -> bool:
        return self._gpu_us > 0 or self._gpu_stall_us > 0

    def _gpu_left_us(self, allowed: clocks.Allowed) -> float:
        gpu = self.profile.gpu
        if gpu is None or not self._gpu_works:
            return 0.0
        return self._gpu_us * gpu.opps[-1].hz / allowed.gpu_hz + self._gpu_stall_us

    def _gpu_powered(self, allowed: clocks.Allowed) -> bool:
        return self.now_us < self._gpu_until_us or allowed.gpu_delay_us == math.inf

    def _spend(self, us: int, load: BoardLoad, allowed: clocks.Allowed) -> None:
        """Advance `us` at one load."""
        watts = self._cache.get(load)
        if watts is None:
            if len(self._cache) > 256:
                self._cache.clear()
            watts = self._cache[load] = self.model.watts(load)
        self.sensors.spend(us, watts)
        input_watts = sum(watts.get(rail, 0.0) for rail in self.profile.input) + load.uplink_watts
        self.input_joules += input_watts * us / 1e6
        if self.heat is not None:
            self.heat.pass_time(us, input_watts)
        self._slept_us += us * (1 - sum(load.busy_cores) / sum(allowed.online))
        self.now_us += us
        for spent_us, hz in zip(self._clocked_us, load.cluster_hz, strict=True):
            spent_us[hz] = spent_us.get(hz, 0) + us
        if load.gpu_busy:
            left_us = self._gpu_left_us(allowed)
            part = max(0.0, 1 - us / left_us) if left_us - us >= _DONE_US else 0.0
            self._gpu_us *= part
            self._gpu_stall_us *= part
            if allowed.gpu_delay_us < math.inf:
                self._gpu_until_us = self.now_us + allowed.gpu_delay_us

    # --- what the tree shows

    def _show(self, allowed: clocks.Allowed) -> None:
        standing = clocks.idle_clocks(self.profile, allowed, self._utilisation)
        for cluster, hz in zip(self.profile.clusters, standing, strict=True):
            path = f"{layout.policy_path(cluster)}/scaling_cur_freq"
            if self.sysfs.exists(path) and self.sysfs.peek_int(path) != hz // 1000:
                self.sysfs.store(path, hz // 1000)
        self._show_times()
        if allowed.deep:
            cores = self.profile.core_count
            for core in range(cores):
                at = _deepest_state(self.profile, core)
                self.sysfs.store(f"{at}/time", int(self._slept_us))
                # dealt to the cores in turn, so that their sum misses none
                self.sysfs.store(f"{at}/usage", (int(self._wakeups) + cores - 1 - core) // cores)
        if self.sysfs.exists(layout.EMC_RATE):
            self.sysfs.store(f"{layout.EMC_RATE}/rate", allowed.memory_idle_hz)
        if self.profile.gpu is not None:
            self._show_gpu(allowed)

    def _show_times(self) -> None:
        """Update the ticks at each clock, at most a few times per second."""
        if self.now_us - self._clocked_at_us < _TIMES_US:
            return
        self._clocked_at_us = self.now_us
        for cluster, spent_us in zip(self.profile.clusters, self._clocked_us, strict=True):
            path = f"{layout.policy_path(cluster)}/stats/time_in_state"
            if self.sysfs.exists(path):
                lines = (f"{hz // 1000} {spent_us[hz] // _TICK_US:12d}" for hz in cluster.table_hz)
                self.sysfs.store(path, "\n".join(lines))

    def _show_gpu(self, allowed: clocks.Allowed) -> None:
        device, node = layout.gpu_paths(self.profile)
        works, powered = self._gpu_works, self._gpu_powered(allowed)
        low_hz = self.sysfs.peek_int(f"{node}/min_freq")
        shown = {
            f"{node}/cur_freq": allowed.gpu_hz if works else low_hz,
            f"{device}/load": 1000 if works else 0,
            f"{device}/gpu_powered_on": int(works or powered),
            f"{device}/is_railgated": "no" if works or powered else "yes",
            f"{device}/power/runtime_status": "active" if works or powered else "suspended",
        }
        for path, value in shown.items():
            if self.sysfs.peek(path) != str(value):
                self.sysfs.store(path, value)

    def _warm(self, heat: BoardHeat, gpu: bool) -> None:
        shown = layout.throttling_files(self.profile, heat.throttle)
        if shown != self._throttling:
            self._throttling = shown
            for path, value in shown.items():
                if self.sysfs.exists(path):  # not in a tree of an earlier version
                    self.sysfs.store(path, value)
        for number in range(len(self.profile.tree.thermal_zones)):
            at = f"/sys/class/thermal/thermal_zone{number}"
            kind = self.sysfs.peek(f"{at}/type")
            if kind.startswith("cv") or kind in layout.FAKE_ZONES:
                continue
            cold = kind.startswith(("gpu", "GPU")) and not gpu
            self.sysfs.store(f"{at}/temp", "!EAGAIN" if cold else round(1e3 * heat.celsius))

    def _build(self, directory: Path) -> None:
        marker = directory / PRIVATE / "board.json"
        if marker.exists():
            built = json.loads(marker.read_text())["profile"]
            if built != self.profile.name:
                raise ProfileError(
                    f"{directory} holds a simulated {built}, not {self.profile.name}: remove it"
                )
            return
        layout.tree(self.profile).plant(directory)
        marker.parent.mkdir()
        marker.write_text(json.dumps({"profile": self.profile.name}))


PREFIX = SIMULATED


def from_name(
    board: str, directory: Path, clock_us: Callable[[], int] | None = None, seed: int = 0
) -> SimulatedBoard:
    """The board `simulated:<profile>`, with its tree in `directory`. Raises ProfileError."""
    if not board.startswith(PREFIX):
        raise ProfileError(f"{board!r} is not a simulated board: write {PREFIX}{board}")
    return SimulatedBoard(load(board.removeprefix(PREFIX)), directory, clock_us, seed)


def _deepest_state(profile: BoardProfile, core: int) -> str:
    return f"{CPU}/cpu{core}/cpuidle/state{len(profile.idle_states) - 1}"
