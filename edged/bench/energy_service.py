"""Service times for `edged bench energy`: measured on one machine, frozen, scaled to a board.

`energy_service.toml` holds the beat times of the join family's CPU members on one machine. The
driver of `edged bench join` (`join_measure.MemberDriver`) measured them with the paper's keys
(uniform over 31 bits) and full windows of 10 s. The file was committed before the first comparison
with a published figure, and no value in it comes from one. `python -m edged.bench.energy_service
FILE KERNEL…` repeats the measurement.

Numba compiled for `x86-64-v2`. Its vectors have 128 bits, like those of the A57 and the A78AE;
wider vectors would favour the members that scan windows.

    us(rows) = fixed + each(window) x rows              least squares of relative errors

Scaling to a board:

    cycles   of a row at the smallest window, where tables fit the caches, times the ratio of issue
             widths (`edged.simulate.work.CORES`; an assumption, error one half)
    stalls   counted by `energy_memory`; the measured machine's stalls are not used. Members that
             scan windows have none: at the rates that they sustain, a window fits the L2
    threads  one for each core; they share a row's time (`parallel_share`, assumed). Waking them
             costs what a second thread cost on the measured machine
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np

import governors.profile
from edged.bench.energy_memory import chain_ns
from edged.errors import ConfigError
from edged.simulate.work import CORES, HOST_HZ, HOST_WIDTH
from governors.work import RaceCost

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

FROZEN = Path(__file__).with_name("energy_service.toml")
KEY_MAX = 2**31 - 1
SCANNING = ("nested_loop", "handshake")
"""Members that scan windows. Beyond the largest measured window, a row's time is proportional to
the window."""
_WINDOWS = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
WINDOWS = {"chain": _WINDOWS, "bucket": _WINDOWS, "nested_loop": _WINDOWS[:3],
           "handshake": _WINDOWS[:3]}  # fmt: skip
"""Tuples a side."""
ROWS = {"chain": (16, 1_024, 16_384, 262_144), "bucket": (16, 1_024, 16_384, 262_144),
        "nested_loop": (16, 256, 1_024), "handshake": (16, 256, 1_024)}  # fmt: skip
"""Tuples of a beat, both sides."""
FEW, FEW_AT_MOST = 16, 1_000_000
"""Tuples of the smallest beats, and the largest window at which these are measured, since a period
of a larger window has too many beats. Two threads are measured with the smallest beats only."""
SECTION_S, REPEATS = 0.15, 5


@dataclass(frozen=True)
class Point:
    """The time of a beat (µs), the least of the repeats: other processes share the machine."""

    window: int
    rows: int
    threads: int
    us: float


@dataclass(frozen=True)
class Law:
    """The fitted beat times of a member on the measured machine, with one thread."""

    fixed_us: float
    windows: tuple[int, ...]
    each_us: tuple[float, ...]
    """Time of a row, by window."""
    residual: float
    """Median of the fit's relative errors."""


@dataclass(frozen=True)
class Member:
    """A member of the join family: its law with one thread, and the cost of waking more threads."""

    name: str
    law: Law
    handing_over_us: float
    """Extra time of a beat with a second thread."""


@dataclass(frozen=True)
class Service:
    """The content of `energy_service.toml`."""

    machine: str
    date: str
    how: str
    parallel_share: float
    """Share of a row's time that the threads of a race divide among them."""
    members: dict[str, Member]

    def cost(
        self,
        name: str,
        board: governors.profile.BoardProfile,
        window: int,
        threads: int | None = None,
    ) -> RaceCost:
        """The cost of a race of a member on a board; its unit is a row of either side.

        `threads` defaults to one for each core. Raises ConfigError if the member was not measured
        or the board's cores are unknown.
        """
        law = self._member(name).law
        threads = threads or board.core_count
        handing_over = self._member(name).handing_over_us if threads > 1 else 0.0
        longest = 1 - self.parallel_share + self.parallel_share / threads
        wider = wider_cycles(board)
        if name in SCANNING:
            cycles, waits_us = wider * _scan_us(law, window), 0.0
        else:
            cycles, waits_us = self.row_cycles(name, board), chain_ns(window) / 1e3
        return RaceCost(
            (law.fixed_us + handing_over) * wider, cycles * longest, 0.0, waits_us * longest,
            1 / longest,
        )  # fmt: skip

    def row_cycles(self, name: str, board: governors.profile.BoardProfile) -> float:
        """Cycles of one core of the board for one row, with tables that fit the caches."""
        return wider_cycles(board) * min(self._member(name).law.each_us)

    def _member(self, name: str) -> Member:
        if name not in self.members:
            known = ", ".join(self.members)
            raise ConfigError(f"{FROZEN.name} has no service times of {name!r}; it has {known}")
        return self.members[name]


def wider_cycles(board: governors.profile.BoardProfile) -> float:
    """Cycles of a board's core for the work that takes the measured machine 1 µs.

    Raises ConfigError if the board's cores are unknown.
    """
    core = board.clusters[0].core.partition(" (")[0]
    if core not in CORES:
        raise ConfigError(f"board {board.name}: the simulator does not know cores {core!r}")
    return HOST_WIDTH / CORES[core] * HOST_HZ / 1e6


@cache
def load(path: Path = FROZEN) -> Service:
    """Read the frozen service times. Raises ConfigError if the file cannot be read or parsed."""
    try:
        document = tomllib.loads(path.read_text())
        members = {
            name: _member(
                name, [Point(int(w), int(n), int(t), us) for w, n, t, us in part["points"]]
            )
            for name, part in document["kernel"].items()
        }
        about = document["machine"]
        return Service(
            about["name"], str(about["date"]), about["how"], float(about["parallel_share"]),
            members,
        )  # fmt: skip
    except (OSError, KeyError, TypeError, ValueError) as problem:
        raise ConfigError(f"cannot read service times from {path}: {problem!r}") from problem


def _member(name: str, points: Sequence[Point]) -> Member:
    alone = {(p.window, p.rows): p.us for p in points if p.threads == 1}
    more = [p.us - alone[p.window, p.rows] for p in points if p.threads == 2]
    return Member(name, _fit(name, [p for p in points if p.threads == 1]), min(more))


def _fit(name: str, points: Sequence[Point]) -> Law:
    """Least squares of relative errors: one fixed time, and one time a row for each window."""
    windows = sorted({p.window for p in points})
    design = np.zeros((len(points), 1 + len(windows)))
    for i, p in enumerate(points):
        design[i, 0] = 1 / p.us
        design[i, 1 + windows.index(p.window)] = p.rows / p.us
    solved, *_ = np.linalg.lstsq(design, np.ones(len(points)), rcond=None)
    if (solved <= 0).any():
        raise ValueError(f"{name}: the fit has times that are not positive: {solved}")
    errors = np.abs(design @ solved - 1)
    return Law(float(solved[0]), tuple(windows), tuple(map(float, solved[1:])),
               float(np.median(errors)))  # fmt: skip


def _scan_us(law: Law, window: int) -> float:
    """Time of a row (µs) of a member that scans windows: interpolated in the logarithms between
    measured windows, proportional to the window outside them."""
    if window <= law.windows[0]:
        return law.each_us[0] * window / law.windows[0]
    for (low, a), (high, b) in pairwise(zip(law.windows, law.each_us, strict=True)):
        if window <= high:
            x = math.log(window / low) / math.log(high / low)
            return float(a * (b / a) ** x)
    return law.each_us[-1] * window / law.windows[-1]


def measure(name: str) -> Iterator[Point]:
    """Measure one member; yields its points window by window. Only whole beats are timed."""
    from edged.calibration.join_data import BeatFeed, draw
    from edged.calibration.join_measure import MemberDriver, section
    from edged.joins.base import load_joins

    member = load_joins()[name]
    for window in WINDOWS[name]:
        sizes = [n for n in ROWS[name] if n > FEW or window <= FEW_AT_MOST]
        for rows in sizes:
            pool = draw(window, window / KEY_MAX, "uniform", (rows // 2,))
            for threads in (1, 2) if rows == FEW else (1,):
                driver = MemberDriver(member, BeatFeed(pool, rows // 2), threads)
                try:
                    section(driver, SECTION_S, 0, SECTION_S)
                    runs = [section(driver, SECTION_S, 0, SECTION_S) for _ in range(REPEATS)]
                finally:
                    driver.close()
                us = min(1e6 * run.wall_s * rows / run.tuples for run in runs)
                yield Point(window, rows, threads, us)


def main(arguments: Sequence[str]) -> int:
    """Measure members and append their points to a file, as TOML."""
    path = Path(arguments[0])
    with path.open("a") as file:
        for name in arguments[1:]:
            file.write(f"\n[kernel.{name}]\npoints = [\n")
            for p in measure(name):
                file.write(f"  [{p.window}, {p.rows}, {p.threads}, {p.us:.2f}],\n")
                file.flush()
            file.write("]\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
