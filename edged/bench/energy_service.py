"""Service times for `edged bench energy`: measured here once, frozen, scaled to a board's cores.

`energy_service.toml` holds what beats of the CPU members of the join family take on one machine,
measured by the benchmark's driver of a member (`join_measure.MemberDriver`) with the paper's keys
(uniform over 31 bits) and full windows of 10 s.  It was committed before anything was compared with
a published figure, and nothing in it comes from one.  `python -m edged.bench.energy_service FILE
KERNEL…` measures anew.

Numba compiled for `x86-64-v2`, whose vectors have 128 bits as the A57's and the A78AE's have: the
machine's wider ones would flatter the members that search from end to end.

    us(rows) = fixed + each(window) x rows              least squares, relative errors

    each  = cycles(window_min) / f  +  waits(window)    what is beyond the smallest window waits

On a board

    cycles   x issue width here / there   (`edged.simulate.work.CORES`; an assumption, off by half)
    waits    x memory bandwidth a core here / there, at the window that fills the board's last cache
             as this one fills this machine's; bandwidth measured here, of the data sheet there
    threads  one a core: they share a row's time (`parallel_share`, assumed), and waking them takes
             what it took here with one more
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from threading import Thread

import numpy as np

import governors.profile
from edged.errors import ConfigError
from edged.simulate.work import CORES, HOST_CACHE_BYTES, HOST_HZ, HOST_WIDTH
from governors.policies.base import Cost

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
COPY_BYTES = 1 << 28


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
    core_gbytes_per_s: float
    """Memory bandwidth of a core of the machine, all of its cores busy."""
    parallel_share: float
    """Of a row's time, what the threads of a race share."""
    members: dict[str, Member]

    def cost(
        self, name: str, board: governors.profile.Profile, window: int, threads: int | None = None
    ) -> Cost:
        """A race of the member on a board, by rows of both sides; `threads`: by default one a core.

        Raises ConfigError where the member was not measured or the cores are not known.
        """
        member = self.members.get(name)
        if member is None:
            known = ", ".join(self.members)
            raise ConfigError(f"{FROZEN.name} has no service times of {name!r}; it has {known}")
        cluster = board.clusters[0]
        core = cluster.core.partition(" (")[0]
        if core not in CORES:
            raise ConfigError(f"board {board.name}: cores {core!r} are not known to the simulator")
        threads = threads or board.core_count
        fixed_us = member.law.fixed_us + (member.handing_over_us if threads > 1 else 0.0)
        cycles_us, waits_us = self._row(member, board, window)
        longest = 1 - self.parallel_share + self.parallel_share / threads
        wider = HOST_WIDTH / CORES[core] * HOST_HZ / 1e6
        waits_us *= self.core_gbytes_per_s / self._bandwidth(board)
        return Cost(
            fixed_us * wider, cycles_us * wider * longest, 0.0, waits_us * longest, 1 / longest
        )

    def _row(
        self, member: Member, board: governors.profile.Profile, window: int
    ) -> tuple[float, float]:
        """µs a row on this machine: what scales with the core, and what waits for memory."""
        law = member.law
        if member.name in SEARCHING:
            return _along(law, window, proportional=True), 0.0
        cluster = board.clusters[0]
        cache_bytes = max(cluster.l3_bytes or 0, cluster.l2_bytes or 0) or HOST_CACHE_BYTES
        here = round(window * max(1.0, HOST_CACHE_BYTES / cache_bytes))
        least = min(law.each_us)
        return least, max(0.0, _along(law, here) - least)

    @staticmethod
    def _bandwidth(board: governors.profile.Profile) -> float:
        """Of the data sheet, a core (GB/s)."""
        peak = board.memory.peak_gbytes_per_s
        if peak is None:
            raise ConfigError(f"board {board.name}: the memory's bandwidth is not in its profile")
        return peak / board.core_count


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
            about["name"], str(about["date"]), about["how"], float(about["core_gbytes_per_s"]),
            float(about["parallel_share"]), members,
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


def _along(law: Law, window: int, proportional: bool = False) -> float:
    """µs a row at a window, between those measured by the logarithms; outside the nearest, or in
    proportion to the window."""
    if window <= law.windows[0]:
        return law.each_us[0] * (window / law.windows[0] if proportional else 1.0)
    for (low, a), (high, b) in pairwise(zip(law.windows, law.each_us, strict=True)):
        if window <= high:
            x = math.log(window / low) / math.log(high / low)
            return float(a * (b / a) ** x)
    return law.each_us[-1] * (window / law.windows[-1] if proportional else 1.0)


def measure(name: str) -> Iterator[Point]:
    """One member's points, window by window; whole beats of it are timed, nothing else."""
    from edged.bench.join_data import Feed, draw
    from edged.bench.join_measure import MemberDriver, section
    from edged.joins.base import load_joins

    member = load_joins()[name]
    for window in WINDOWS[name]:
        sizes = [n for n in ROWS[name] if n > FEW or window <= FEW_AT_MOST]
        for rows in sizes:
            pool = draw(window, window / KEY_MAX, "uniform", (rows // 2,))
            for threads in (1, 2) if rows == FEW else (1,):
                driver = MemberDriver(member, Feed(pool, rows // 2), threads)
                try:
                    section(driver, SECTION_S, 0, SECTION_S)
                    runs = [section(driver, SECTION_S, 0, SECTION_S) for _ in range(REPEATS)]
                finally:
                    driver.close()
                us = min(1e6 * run.wall_s * rows / run.tuples for run in runs)
                yield Point(window, rows, threads, us)


def bandwidth() -> float:
    """GB/s that a core copies (read and written) while the other one does too: best of the
    repeats."""
    arrays = [np.ones(COPY_BYTES // 8) for _ in range(4)]

    def copy(i: int) -> None:
        for _ in range(3):
            np.copyto(arrays[2 * i], arrays[2 * i + 1])

    best = 0.0
    for _ in range(REPEATS):
        threads = [Thread(target=copy, args=(i,)) for i in (0, 1)]
        before = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        best = max(best, 3 * 2 * COPY_BYTES / (time.perf_counter() - before) / 1e9)
    return best


def main(arguments: Sequence[str]) -> int:
    """Measure members and append them to a file, as TOML."""
    path = Path(arguments[0])
    with path.open("a") as file:
        for name in arguments[1:]:
            if name == "bandwidth":
                file.write(f"core_gbytes_per_s = {bandwidth():.1f}\n")
                continue
            file.write(f"\n[kernel.{name}]\npoints = [\n")
            for p in measure(name):
                file.write(f"  [{p.window}, {p.rows}, {p.threads}, {p.us:.2f}],\n")
                file.flush()
            file.write("]\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
