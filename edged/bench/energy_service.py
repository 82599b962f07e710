"""Service times for `edged bench energy`: measured here once, frozen, scaled to a board's cores.

`energy_service.toml` holds what beats of the CPU members of the join family take on one machine,
measured by the benchmark's driver of a member (`join_measure.MemberDriver`) with the paper's keys
(uniform over 31 bits) and full windows of 10 s.  It was committed before anything was compared with
a published figure, and nothing in it comes from one.  `python -m edged.bench.energy_service FILE
KERNEL…` measures anew.

Numba compiled for `x86-64-v2`, whose vectors have 128 bits as the A57's and the A78AE's have: the
machine's wider ones would flatter the members that search from end to end.

    us(rows) = fixed + each(window) x rows              least squares, relative errors

On a board a row's cycles are those at the smallest window, where tables fit the caches, times issue
width here / there (`edged.simulate.work.CORES`; an assumption, off by half).  What it waits for
memory there is counted (`energy_memory`); what it waited here is not used.  Members that search a
window from end to end do not wait: at the rates that they keep up with, it fits the L2.  Threads,
one a core, share a row's time (`parallel_share`, assumed), and waking them takes what it took here
with one more.
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
SEARCHING = ("nested_loop", "handshake")
"""Members whose work a row grows with the window: beyond the largest it goes on in proportion."""
_WINDOWS = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
WINDOWS = {"chain": _WINDOWS, "bucket": _WINDOWS, "nested_loop": _WINDOWS[:3],
           "handshake": _WINDOWS[:3]}  # fmt: skip
"""Tuples a side."""
ROWS = {"chain": (16, 1_024, 16_384, 262_144), "bucket": (16, 1_024, 16_384, 262_144),
        "nested_loop": (16, 256, 1_024), "handshake": (16, 256, 1_024)}  # fmt: skip
"""Tuples of a beat, both sides."""
FEW, FEW_AT_MOST = 16, 1_000_000
"""The smallest beats, and the largest window at which they are measured: a period has that many
beats.  With two threads only these are measured."""
SECTION_S, REPEATS = 0.15, 5


@dataclass(frozen=True)
class Point:
    """A beat's time, the least of the repeats (µs): others use the machine too."""

    window: int
    rows: int
    threads: int
    us: float


@dataclass(frozen=True)
class Law:
    """A member's beats on the machine that was measured, with a number of threads."""

    fixed_us: float
    windows: tuple[int, ...]
    each_us: tuple[float, ...]
    """A row, by window."""
    residual: float
    """Of the fit: median of the relative errors."""


@dataclass(frozen=True)
class Member:
    """One thread's law, and what it takes to wake others."""

    name: str
    law: Law
    handing_over_us: float
    """What a beat takes more with a second thread."""


@dataclass(frozen=True)
class Service:
    """The frozen file."""

    machine: str
    date: str
    how: str
    parallel_share: float
    """Of a row's time, what the threads of a race share."""
    members: dict[str, Member]

    def cost(
        self,
        name: str,
        board: governors.profile.BoardProfile,
        window: int,
        threads: int | None = None,
    ) -> RaceCost:
        """A race of the member on a board, by rows of both sides; `threads`: by default one a core.

        Raises ConfigError where the member was not measured or the cores are not known.
        """
        law = self._member(name).law
        threads = threads or board.core_count
        handing_over = self._member(name).handing_over_us if threads > 1 else 0.0
        longest = 1 - self.parallel_share + self.parallel_share / threads
        wider = wider_cycles(board)
        if name in SEARCHING:
            cycles, waits_us = wider * _along(law, window), 0.0
        else:
            cycles, waits_us = self.row_cycles(name, board), chain_ns(window) / 1e3
        return RaceCost(
            (law.fixed_us + handing_over) * wider, cycles * longest, 0.0, waits_us * longest,
            1 / longest,
        )  # fmt: skip

    def row_cycles(self, name: str, board: governors.profile.BoardProfile) -> float:
        """Cycles of one of the board's cores for a row where tables fit the caches."""
        return wider_cycles(board) * min(self._member(name).law.each_us)

    def _member(self, name: str) -> Member:
        if name not in self.members:
            known = ", ".join(self.members)
            raise ConfigError(f"{FROZEN.name} has no service times of {name!r}; it has {known}")
        return self.members[name]


def wider_cycles(board: governors.profile.BoardProfile) -> float:
    """Cycles of a board's core for what takes the machine measured a microsecond."""
    core = board.clusters[0].core.partition(" (")[0]
    if core not in CORES:
        raise ConfigError(f"board {board.name}: cores {core!r} are not known to the simulator")
    return HOST_WIDTH / CORES[core] * HOST_HZ / 1e6


@cache
def load(path: Path = FROZEN) -> Service:
    """Read the frozen times.  Raises ConfigError."""
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
        raise ConfigError(f"{path}: no service times can be read: {problem!r}") from problem


def _member(name: str, points: Sequence[Point]) -> Member:
    alone = {(p.window, p.rows): p.us for p in points if p.threads == 1}
    more = [p.us - alone[p.window, p.rows] for p in points if p.threads == 2]
    return Member(name, _fit(name, [p for p in points if p.threads == 1]), min(more))


def _fit(name: str, found: Sequence[Point]) -> Law:
    """One fixed part, one part a row for each window; relative errors count."""
    windows = sorted({p.window for p in found})
    design = np.zeros((len(found), 1 + len(windows)))
    for i, p in enumerate(found):
        design[i, 0] = 1 / p.us
        design[i, 1 + windows.index(p.window)] = p.rows / p.us
    solved, *_ = np.linalg.lstsq(design, np.ones(len(found)), rcond=None)
    if (solved <= 0).any():
        raise ValueError(f"{name}: a time that is not above 0: {solved}")
    off = np.abs(design @ solved - 1)
    return Law(float(solved[0]), tuple(windows), tuple(map(float, solved[1:])),
               float(np.median(off)))  # fmt: skip


def _along(law: Law, window: int) -> float:
    """µs a row of a member that searches: between windows by the logarithms, outside them in
    proportion."""
    if window <= law.windows[0]:
        return law.each_us[0] * window / law.windows[0]
    for (low, a), (high, b) in pairwise(zip(law.windows, law.each_us, strict=True)):
        if window <= high:
            x = math.log(window / low) / math.log(high / low)
            return float(a * (b / a) ** x)
    return law.each_us[-1] * window / law.windows[-1]


def measure(name: str) -> Iterator[Point]:
    """One member's points, window by window; whole beats of it are timed, nothing else."""
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
    """Measure members and append them to a file, as TOML."""
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
