"""Calibration: what each kernel of a join costs on this machine, as a profile for placement.

Every kernel that the daemon may run is given beats of synthetic records (uniform keys, about one
match per hundred tuples, event time running with the tuples) at a few sizes of window and beat, by
the same calls that the operator makes.  The windows are filled through `restore`, which is also
what a switch does: its time per tuple is what carrying a window over costs.

The profile lies in the state directory as `placement.json`; `edged.placement` says what it holds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edged.disk import SystemDisk, write_whole
from edged.errors import ConfigError
from edged.joins.base import Beat, Records, WindowJoin, find_join, load_joins
from edged.operators.interval_join import PARALLEL_ROWS
from edged.placement import Curve, Profile
from edged.workers import Workers
from kernels.cpu import chain

FILE = "placement.json"
WINDOWS = (10_000, 100_000, 1_000_000)
ROWS = (256, 2_048, 16_384, 131_072)
POINT_US = 100_000
"""How long one point is measured, and at least BEATS_MIN beats."""
BEATS_MIN = 5
TUPLES_PER_MATCH = 100
"""Uniform keys are drawn from this many times the window."""

Say = Callable[[str], None]


def load_profile(directory: Path) -> Profile | None:
    """The profile of a state directory, if it has one.  Raises ConfigError."""
    path = directory / FILE
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as problem:
        raise ConfigError(f"cannot read {path}: {problem}") from problem
    return Profile.decode(text, str(path))


def save_profile(profile: Profile, directory: Path) -> Path:
    """Write the profile into a state directory, whole or not at all.  Raises ConfigError."""
    path = directory / FILE
    try:
        write_whole(SystemDisk(), str(path), [memoryview(profile.encode().encode())])
    except OSError as problem:
        raise ConfigError(f"cannot write {path}: {problem}") from problem
    return path


def offered(names: Sequence[str]) -> list[type[WindowJoin]]:
    """The members of these names, or all, that the daemon may run.  Raises ConfigError."""
    if not names:
        return [m for m in load_joins().values() if m.ordered]
    found = []
    for name in names:
        member = find_join(name)
        if member is None or not member.ordered:
            choices = ", ".join(m.name for m in load_joins().values() if m.ordered)
            raise ConfigError(f"{name!r} is not a kernel that the daemon runs; there are {choices}")
        found.append(member)
    return found


def calibrate(
    members: Sequence[type[WindowJoin]],
    workers: Workers,
    watts: dict[str, float],
    windows: Sequence[int] = WINDOWS,
    rows: Sequence[int] = ROWS,
    say: Say = lambda _: None,
) -> Profile:
    """Measure all members at all sizes; those whose device is not there are left out."""
    kernels = {}
    for member in members:
        try:
            kernels[member.name] = _curve(member, workers, windows, rows, say)
        except Exception as problem:  # whatever a device's library may raise
            if member.device == "cpu":
                raise
            say(f"{member.name}: left out, {problem}")
    return Profile(workers.count, kernels, watts)


def _curve(
    member: type[WindowJoin],
    workers: Workers,
    windows: Sequence[int],
    rows: Sequence[int],
    say: Say,
) -> Curve:
    points, carry = [], 0.0
    for window in windows:
        say(f"{member.name}: {window} tuples a side")
        run = _Run(member, window)
        carry = run.carry_us_per_tuple
        points.append([run.measure(n, workers) for n in rows])
        run.close()
    us, cpu_us = (tuple(tuple(p[i] for p in row) for row in points) for i in (0, 1))
    return Curve(member.device, tuple(windows), tuple(rows), us, cpu_us, carry)


class _Run:
    """One member with full windows."""

    def __init__(self, member: type[WindowJoin], window: int) -> None:
        self._window = window
        self._join = member(window, window)
        self._random = np.random.default_rng(window)
        self._next = 0
        batches = list(self._batches(window))
        started = time.perf_counter()
        for side, records in enumerate(batches):
            self._join.restore(side, records)
        self.carry_us_per_tuple = (time.perf_counter() - started) * 1e6 / (2 * window)

    def measure(self, rows: int, workers: Workers) -> tuple[float, float]:
        """Median time and CPU time (µs) of a beat of `rows` tuples, both sides together."""
        used = workers if rows >= PARALLEL_ROWS else None
        took: list[tuple[float, float]] = []
        while len(took) < BEATS_MIN or sum(us for us, _ in took) < POINT_US:
            base = self._next
            left, right = self._batches(rows // 2)
            bound = base + rows // 2 - self._window
            beat = Beat((0, 0), (bound, bound))
            cpu, clock = time.process_time_ns(), time.perf_counter_ns()
            self._join.join(left, right, beat, used)
            took.append(
                ((time.perf_counter_ns() - clock) / 1e3, (time.process_time_ns() - cpu) / 1e3)
            )
        us, cpu_us = np.median(np.array(took), axis=0)
        return float(us), max(float(cpu_us), float(us))

    def close(self) -> None:
        self._join.close()

    def _batches(self, rows: int) -> Iterator[Records]:
        """The next `rows` records of each side."""
        first, self._next = self._next, self._next + rows
        for side in (0, 1):
            keys = self._random.integers(0, TUPLES_PER_MATCH * self._window, rows)
            hashes = _mixed(keys.astype(np.uint64))
            yield self._records(side, first, hashes)

    def _records(self, side: int, first: int, hashes: npt.NDArray[np.uint64]) -> Records:
        partition = (hashes >> np.uint64(26)) & np.uint64(63)
        order = np.argsort(partition, kind="stable")
        data = self._join.buffer(side, hashes.size)
        entries: Any = data[: 2 * hashes.size].view(_RECORD)
        entries["time"] = first + order
        entries["tag"] = hashes[order].astype(np.uint32)
        entries["row"] = (first + order).astype(np.uint32)
        return Records(data, np.bincount(partition.astype(np.int64), minlength=64))


_RECORD = np.dtype([("time", "<i8"), ("tag", "<u4"), ("row", "<u4")])
assert _RECORD.itemsize == chain.RECORD_BYTES


def _mixed(keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """32 well mixed bits of each key (the finaliser of MurmurHash3)."""
    x: npt.NDArray[np.uint64] = keys
    for shift, factor in ((33, 0xFF51AFD7ED558CCD), (33, 0xC4CEB9FE1A85EC53)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    x = (x ^ (x >> np.uint64(33))) & np.uint64(0xFFFFFFFF)
    return x
