"""Joules of a command: the board's meters around a child process, and what else ran meanwhile.

    baseline          the machine before the command, for `baseline_s`
    run               the command, from its start to its end, `repeat` times in a row

Joules of the run are the meters' own, with their provenance; without a meter there are none.
Joules above the baseline are the run's less the baseline's watts for the same time.

Joules of one process are modelled.  Baseline and run give two points of

    watts = idle watts + watts a busy core x busy cores

and a process gets its CPU time x the watts a busy core.  The model is that of one clock and one
kind of work: it knows neither memory traffic nor a GPU.  Where the two points differ by less than
CORES_APART busy cores, or the line falls, there is no figure.

Wakeups are counted, not modelled: of cores by the counters of the idle states, by source through
/proc/interrupts, and of processes by their voluntary context switches.

A simulated board is charged with the command's CPU time (`edged.energy.board`), and the run ends
when the board has done that work.  Other processes are not its own.

A meter shows work only after its lag (`Sampler.lag_us`): a run shorter than LAGS of them is marked.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edged.energy.board import BoardSite
from edged.energy.process_times import ProcessTime, Snapshot, between, snapshot, tree_cpu_s
from edged.errors import ConfigError
from edged.platform.clock import Clock
from governors import interrupts
from governors.actuators.sleep import IdleCounts, IdleStates, idle_between
from governors.energy import RailEnergy
from governors.meters.busy import BusyCores
from governors.meters.rails import Key, Whole, input_energy
from governors.meters.sampler import Sampler, thread_time_us
from governors.meters.totals import difference
from governors.simulated.board import BoardWork

CORES_APART = 0.2
LAGS = 10
READ_SHARE_MAX = 0.01
"""Of a core, for reading meters: a measurement lasts seconds, and reads them at their own rate."""
SIMULATED_STEP_US = 100_000
"""Interval at which a simulated board is charged with the command's CPU time."""


@dataclass(frozen=True)
class Mark:
    """Every counter at one moment."""

    at_us: int
    totals: Mapping[Key, RailEnergy]
    busy_core_s: float | None
    idle: IdleCounts
    interrupts: dict[str, int]
    processes: Snapshot


@dataclass(frozen=True)
class Span:
    """What the machine did between two marks."""

    seconds: float
    input: RailEnergy | None
    source: Whole | None
    rails: Mapping[Key, RailEnergy]
    busy_core_s: float | None

    @property
    def watts(self) -> float | None:
        """Mean over the time with readings; None without any."""
        if self.input is None:
            return None
        covered_us = self.input.until_us - self.input.since_us - self.input.gap_us
        return self.input.joules / (covered_us / 1e6) if covered_us > 0 else None


class BoardRecorder:
    """Reads a board's counters; samples its meters while the caller waits."""

    def __init__(self, site: BoardSite, clock: Clock) -> None:
        self._site, self._clock = site, clock
        # reading a simulated board costs this machine's time, not the board's
        cpu_us = thread_time_us if site.simulated is None else lambda: 0.0
        self.sampler = Sampler(site.meters.meters, cpu_us, READ_SHARE_MAX)
        self._busy, self._idle = BusyCores(site.sysfs), IdleStates(site.sysfs)
        self._busy_core_s: float | None = None
        self._busy_at_us = clock.monotonic_us()
        self._busy.since_last(self._busy_at_us)
        self._child: int | None = None
        self._charged_s = 0.0

    def mark(self) -> Mark:
        """Read everything now."""
        now = self._sample(all_meters=True)
        return Mark(
            now,
            self.sampler.totals,
            self._busy_core_s,
            self._idle.read(now),
            interrupts.read(self._site.sysfs),
            snapshot(),
        )

    def wait(self, us: int | None = None, child: int | None = None) -> None:
        """Until `us` have passed, or the process `child` has ended."""
        until_us = None if us is None else self._clock.monotonic_us() + us
        self._child, self._charged_s = child, 0.0
        ended = None if child is None else os.pidfd_open(child)
        try:
            while until_us is None or self._clock.monotonic_us() < until_us:
                pause_s = self._pause_s(until_us)
                if select.select([] if ended is None else [ended], [], [], pause_s)[0]:
                    break
                self._sample()
        finally:
            if ended is not None:
                os.close(ended)

    def finish_simulated(self) -> None:
        """Wait until a simulated board, which may be slower than this machine, has done the
        command's work."""
        simulated = self._site.simulated
        if simulated is not None and simulated.board.backlog_us > 0:
            self.wait(us=round(simulated.board.backlog_us))

    def _pause_s(self, until_us: int | None) -> float | None:
        now = self._clock.monotonic_us()
        steps = [until_us, self.sampler.due_us(now)]
        if self._site.simulated is not None:
            steps.append(now + SIMULATED_STEP_US)
        ends = [step for step in steps if step is not None]
        return max(0.0, (min(ends) - now) / 1e6) if ends else None

    def _sample(self, all_meters: bool = False) -> int:
        now = self._clock.monotonic_us()
        self._charge(now)
        cores = self._busy.since_last(now)
        if cores is not None:
            passed_s = (now - self._busy_at_us) / 1e6
            self._busy_core_s = (self._busy_core_s or 0.0) + cores * passed_s
        self._busy_at_us = now
        self.sampler.sample(now, cores, all_meters)
        return now

    def _charge(self, now: int) -> None:
        """Advance a simulated board, with the child's CPU time since the last call."""
        simulated = self._site.simulated
        if simulated is None:
            return
        total_s = 0.0 if self._child is None else tree_cpu_s(self._child)
        new_us = 1e6 * max(0.0, total_s - self._charged_s)
        self._charged_s = max(self._charged_s, total_s)
        passed_us = max(1, now - simulated.board.now_us)
        work = BoardWork(cycles=simulated.cycles(new_us), cores=max(1.0, new_us / passed_us))
        simulated.board.advance(now, work)

    def span(self, first: Mark, last: Mark) -> Span:
        """Differences of two marks."""
        rails = {key: difference(now, first.totals.get(key)) for key, now in last.totals.items()}
        whole = input_energy(self.sampler.wholes, rails)
        source = None
        if whole is not None:
            source = next(w for w in self.sampler.wholes if w.name == whole.rail.name)
        busy = None
        if first.busy_core_s is not None and last.busy_core_s is not None:
            busy = last.busy_core_s - first.busy_core_s
        return Span((last.at_us - first.at_us) / 1e6, whole, source, rails, busy)

    def close(self) -> None:
        """Close the meters."""
        self.sampler.close()


def measure(
    site: BoardSite, clock: Clock, command: Sequence[str], baseline_s: float, repeat: int
) -> dict[str, Any]:
    """Run `command` between readings; returns the document of `edged measure`.

    A run that fails ends the repetitions.  Raises ConfigError where the command cannot be started.
    """
    recorder = BoardRecorder(site, clock)
    try:
        before = recorder.mark()
        metered = bool(recorder.sampler.wholes)
        if metered and baseline_s:
            recorder.wait(us=round(1e6 * baseline_s))
        first = recorder.mark()
        runs, code, cpu_s = _run(recorder, command, repeat)
        last = recorder.mark()
        lag_s = recorder.sampler.lag_us(recorder.sampler.wholes[0].name) / 1e6 if metered else 0.0
        baseline = recorder.span(before, first) if metered and baseline_s else None
        run = recorder.span(first, last)
        others = [] if site.simulated else between(first.processes, last.processes, [os.getpid()])
        return {
            "command": list(command),
            "exit_code": code,
            "runs": runs,
            "seconds": run.seconds,
            "cpu_s": cpu_s,
            **_energy(run, baseline, cpu_s, others),
            "wakeups": _wakeups(first, last),
            "lag_s": lag_s,
            "short": metered and run.seconds < LAGS * lag_s,
            "missing": [str(m) for m in site.meters.missing if m.meter != "model"],
        }
    finally:
        recorder.close()


def _run(recorder: BoardRecorder, command: Sequence[str], repeat: int) -> tuple[int, int, float]:
    """Runs done, the last exit code (128 + n for signal n), and CPU seconds of all of them."""
    cpu_s = 0.0
    for number in range(1, repeat + 1):
        try:
            process = subprocess.Popen(list(command))
        except OSError as problem:
            raise ConfigError(f"{command[0]}: cannot be started: {problem.strerror}") from problem
        with _forwarded(process):
            recorder.wait(child=process.pid)
            _, status, used = os.wait4(process.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        process.returncode = code
        recorder.finish_simulated()
        cpu_s += used.ru_utime + used.ru_stime
        if code:
            return number, code if code > 0 else 128 - code, cpu_s
    return repeat, 0, cpu_s


class _forwarded:
    """While the command runs: an interrupt of the terminal is the command's own matter, and SIGTERM
    goes to it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def __enter__(self) -> None:
        self._before = {
            signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None),
            signal.SIGTERM: signal.signal(
                signal.SIGTERM, lambda *_: os.kill(self._process.pid, signal.SIGTERM)
            ),
        }

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _energy(
    run: Span, baseline: Span | None, cpu_s: float, others: Sequence[ProcessTime]
) -> dict[str, Any]:
    """The energy of the run, of its rails, and of processes."""
    core_watts = watts_per_core(baseline, run)

    def modelled(seconds: float) -> float | None:
        return None if core_watts is None else core_watts * seconds

    above = None
    if run.watts is not None and baseline is not None and baseline.watts is not None:
        above = (run.watts - baseline.watts) * run.seconds
    rest_s = None
    if run.busy_core_s is not None:
        rest_s = max(0.0, run.busy_core_s - cpu_s - sum(p.cpu_s for p in others))
    return {
        "input": _joules(run),
        "baseline": None if baseline is None else _joules(baseline),
        "above_baseline_j": above,
        "rails": [
            {
                "meter": meter, "rail": rail, "feeds": list(energy.rail.feeds),
                "part_of": energy.rail.part_of, "joules": energy.joules,
                "gap_s": energy.gap_us / 1e6, "provenance": energy.provenance.value,
            }
            for (meter, rail), energy in run.rails.items()
        ],
        "watts_per_busy_core": core_watts,
        "command_modelled_j": modelled(cpu_s),
        "processes": [
            {"pid": p.pid, "name": p.name, "cpu_s": p.cpu_s, "sleeps": p.sleeps,
             "modelled_j": modelled(p.cpu_s)}
            for p in others
        ],
        "rest": None if rest_s is None else {"cpu_s": rest_s, "modelled_j": modelled(rest_s)},
    }  # fmt: skip


def watts_per_core(baseline: Span | None, run: Span) -> float | None:
    """Watts of one more busy core, by two points of the line; None where they determine none."""
    if baseline is None or baseline.busy_core_s is None or run.busy_core_s is None:
        return None
    if baseline.watts is None or run.watts is None or not baseline.seconds or not run.seconds:
        return None
    cores = run.busy_core_s / run.seconds - baseline.busy_core_s / baseline.seconds
    if abs(cores) < CORES_APART:
        return None
    slope = (run.watts - baseline.watts) / cores
    return slope if slope > 0 else None


def _joules(span: Span) -> dict[str, Any] | None:
    if span.input is None or span.source is None:
        return None
    return {
        "joules": span.input.joules,
        "watts": span.watts,
        "seconds": span.seconds,
        "gap_s": span.input.gap_us / 1e6,
        "from": span.source.name,
        "covers": span.source.covers,
        "provenance": span.source.provenance.value,
    }


def _wakeups(first: Mark, last: Mark) -> dict[str, Any]:
    seconds = (last.at_us - first.at_us) / 1e6
    idle = idle_between(first.idle, last.idle)
    return {
        "cores_per_s": None if idle is None else idle.wakeups_per_s,
        "interrupts_per_s": interrupts.per_s(first.interrupts, last.interrupts, seconds),
    }
