"""What a beat of a job takes on a board, as a law in cycles and waiting.

Cycles were measured once, with one kernel thread of the real daemon and the real operators, on one
core of an AMD EPYC of family 26 (Zen 5) at 3.57 GHz (six dependent one-cycle instructions a turn,
timed), Python 3.11, November 2026:

    daemon     seven loads of `edged bench e2e`'s job: 1 000 to 3 M rows/s, 1 to 19 beats/s,
               messages of 10 to 30 000 rows; CPU seconds of the process by least squares over
               beats, rows and messages, residuals within a third: 3.6 ms a beat, 78 ns a row,
               6.8 us a message.  Of a beat's fixed part 1.9 ms are ingest, race and seal, the rest
               is commit, acks and wakes beside it.  The join's part (below) is taken out.
    operators  median of 0.6 s each, beats of 16 to 65 536 rows; the join's beats of 16 384 rows.

They become cycles of the board's cores by the width of the cores' front ends (`CORES`), which is
an assumption with an error of half: what a core does a cycle in these kernels is not published.
What a join waits for memory is the time that it takes beyond the smallest window; it stays the
same time, and begins at windows that are smaller as the board's last cache is smaller.

With the profile of `edged calibrate` the join's times are those that it measured (`rows`).  With a
kernel on a GPU the kernel's time is the GPU's; the rest of the join, of which that kernel is no
part, stays with the CPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

import governors.profile
from edged.data.schema import Schema
from edged.job.plan import JobPlan
from edged.operators.interval_join import JOIN_PARALLEL_ROWS
from edged.operators.window import WindowPlan
from edged.placement.placement import Curve, KernelProfile
from governors.errors import ProfileError
from governors.work import RaceCost

HOST_HZ = 3.57e9
HOST_CACHE_BYTES = 32 << 20
HOST_WIDTH = 8
RACE_CYCLES = 6.4e6
"""Fixed, of ingest, race and seal on the beat's thread."""
BESIDE_CYCLES = 6.0e6
"""Fixed, of a commit, its acks and the wakes of a beat, on another core beside the next wait."""
COMMIT_CYCLES = 2.6e6
"""Fixed, of a beat that only commits, on its thread: ingest and seal."""
MESSAGE_CYCLES = 24e3
ROW_CYCLES = 207.0
COMMIT_US = 900
"""Of the measured store; an SD card takes longer."""
UNMEASURED = WindowPlan.cycles
"""Cycles of an operator that was not measured: those of a window."""
KERNEL_CYCLES = 15.0
"""Of the join's cycles a row, the kernel's (`chain`, windows of 10 000, beats of 16 384 rows); the
rest is hashing, sharing out, keeping columns and making pairs of rows."""
JOIN_STALL_NS = ((10_000, 0.0), (100_000, 7.1), (1_000_000, 11.4))
"""Beyond the smallest window: window (rows a side) and ns a row."""
CORES = {"Cortex-A57": 3, "Cortex-A76": 4, "Cortex-A78AE": 4, "x86-64": 6}
"""Instructions that a core's front end decodes a cycle (vendors' optimisation guides; x86-64 is
Gracemont, the N100's core)."""
MOVES = 8
"""Times that a row's bytes cross the memory bus (socket, staging, log, window, page): assumed."""
STATE_BYTES = 40
"""Beside its columns, what a row of a window takes (`edged.joins.chain`)."""


@dataclass(frozen=True)
class ArrivalLoad:
    """What arrives."""

    rate: float
    """Rows a second of each stream."""
    sends_per_s: float = 20.0
    """Messages a second of each stream, at most one a row."""
    matches: float = 0.01
    """Pairs that a join finds a row."""


@dataclass(frozen=True)
class JobWork:
    """A job on a board at a load."""

    cost: RaceCost
    """Of a race, by rows of all streams."""
    rows_per_s: float
    messages_per_s: float
    window: int
    """Rows a side of the largest join."""
    state_bytes: float
    row_bytes: float
    """Mean, of what arrives."""
    output_bytes_per_s: float
    ingest_share: float
    """Of a race's time, what is ingest."""
    notes: tuple[str, ...]
    device: str = "cpu"
    """Where it races: cpu or gpu."""


def job_work(
    plan: JobPlan,
    board: governors.profile.BoardProfile,
    load: ArrivalLoad,
    calibrated: KernelProfile | None = None,
    kernel: str = "chain",
    cores: int | None = None,
) -> JobWork:
    """The law for one job, board and load; `cores`: how many are online, by default all;
    `calibrated`: times of kernels on this board (`rows`).

    Raises ProfileError for cores that are not known.
    """
    scale, scaled = scale_of(board)
    rates, state, window, output = _flows(plan, load)
    rows_per_s = load.rate * len(plan.streams)
    messages = min(load.sends_per_s, load.rate) * len(plan.streams)
    per_row = ROW_CYCLES + MESSAGE_CYCLES * messages / rows_per_s
    fixed, parallel, stall_us = RACE_CYCLES, 0.0, 0.0
    away = RaceCost(0.0, 0.0, cores=0.0)
    notes = [scaled]
    for id, operator in plan.operators.items():
        read = sum(rates[name] for name in plan.inputs[id]) / rows_per_s
        a_beat, a_row = operator.cycles or UNMEASURED
        if operator.cycles is None:
            notes.append(f"{operator.kind} was not measured: as window")
        if operator.window_schemas():
            join = _join(board, window, calibrated, kernel, a_row)
            a_row, stall_us = join.cycles_per_unit / scale, stall_us + read * join.stall_us_per_unit
            away = _and(away, join.gpu, read)
        fixed += a_beat
        parallel += a_row * read
    row_bytes = _row_bytes(plan)
    beat = rows_per_s * plan.promises.latency_us / 1e6
    threads = (cores or board.core_count) if beat >= JOIN_PARALLEL_ROWS else 1
    longest = scale * (per_row + parallel / threads)
    total = scale * (per_row + parallel)
    cost = RaceCost(
        scale * fixed, longest, 0.0, stall_us / threads,
        (scale * fixed + beat * total) / (scale * fixed + beat * longest), MOVES * row_bytes,
        scale * BESIDE_CYCLES, scale * COMMIT_CYCLES,
    )  # fmt: skip
    ingest_share, device = scale * per_row / longest, "cpu"
    if away.cores > 0:
        top_hz = board.clusters[0].opps[-1].hz
        each_us = [cost.us(1, top_hz) - cost.us(0, top_hz), away.us(1, board.gpu_top_hz)]
        each_us[1] -= away.us(0, board.gpu_top_hz)
        ingest_share, device = ingest_share * each_us[0] / sum(each_us), "gpu"
        cost = on_gpu(cost, away)
    return JobWork(
        cost, rows_per_s, messages, window, state, row_bytes, output, ingest_share, tuple(notes),
        device,
    )  # fmt: skip


def on_gpu(rest: RaceCost, away: RaceCost) -> RaceCost:
    """A beat whose kernel is on the GPU: `away` there, `rest` on the CPU before it."""
    host = replace(rest, bytes_per_unit=0.0, beside_cycles=0.0, commit_cycles=0.0)
    return replace(
        away, bytes_per_unit=rest.bytes_per_unit, beside_cycles=rest.beside_cycles,
        commit_cycles=rest.commit_cycles, host=host,
    )  # fmt: skip


def scale_of(board: governors.profile.BoardProfile) -> tuple[float, str]:
    """Cycles of a board's cores for one of those that were measured, and on what that rests.

    Raises ProfileError for cores that are not known.
    """
    core = board.clusters[0].core.partition(" (")[0]
    width = CORES.get(core)
    if width is None:
        raise ProfileError(
            f"board {board.name}: cores {core!r} are not known to the simulator;"
            f" it knows {', '.join(sorted(CORES))}"
        )
    scale = HOST_WIDTH / width
    return scale, f"cycles x {scale:.2f} for {core}, by decode width (assumed, off by half)"


def _flows(plan: JobPlan, load: ArrivalLoad) -> tuple[dict[str, float], float, int, float]:
    """Rows a second of every link; bytes of state; rows a side of the largest join; bytes a second
    that sinks ship."""
    rates = dict.fromkeys(plan.streams, load.rate)
    rates |= {f"{name}.late": 0.0 for name in plan.streams}
    state, window = 0.0, 0
    for id in plan.order:
        operator, read = plan.operators[id], sum(rates[n] for n in plan.inputs[id])
        if sides := operator.window_schemas():
            held = read * operator.window_us() / 1e6
            kept = sum(map(_width, sides)) / len(sides)
            state += held * (kept + STATE_BYTES)
            window = max(window, round(held / 2))
            rates[id] = read * load.matches
        else:
            rates[id] = read * operator.rows_out
    shipped = sum(
        rates[plan.inputs[id][0]] * _width(plan.links[plan.inputs[id][0]].schema)
        for id in plan.sinks
    )
    return rates, state, window, shipped


@dataclass(frozen=True)
class _Join:
    """What a row of a join takes."""

    cycles_per_unit: float
    """Of the board's cores."""
    stall_us_per_unit: float
    gpu: RaceCost | None = None


def _join(
    board: governors.profile.BoardProfile,
    window: int,
    calibrated: KernelProfile | None,
    kernel: str,
    default: float,
) -> _Join:
    scale, _ = scale_of(board)
    curve = None if calibrated is None else calibrated.kernels.get(kernel)
    if curve is None or calibrated is None:
        return _Join(scale * default, stall_ns(board, window) / 1e3)
    rest = scale * (default - KERNEL_CYCLES)
    if curve.device != "cpu":
        return _Join(rest, 0.0, _gpu_cost(curve, window, calibrated.clocks.get(curve.device, 0)))
    hz = calibrated.clocks.get("cpu") or board.clusters[0].opps[-1].hz
    least = _each_us(curve, curve.windows[0])
    return _Join(rest + 1e-6 * least * hz, max(0.0, _each_us(curve, window) - least))


def _gpu_cost(curve: Curve, window: int, hz: int) -> RaceCost:
    """What a GPU's kernel takes, as it was measured at a clock (0: not known); what a beat takes
    without rows is launches, which the GPU's clock does not shorten."""
    few, many = (curve.cost(window, n) for n in (curve.rows[0], curve.rows[-1]))
    each_us = max(0.0, (many.us - few.us) / (curve.rows[-1] - curve.rows[0]))
    fixed_us = max(0.0, few.us - each_us * curve.rows[0])
    stalled = curve.stalled if hz else 1.0
    return RaceCost(
        0.0, (1 - stalled) * each_us * hz / 1e6, fixed_us, stalled * each_us, many.cpu_us / many.us
    )


def _and(cost: RaceCost, more: RaceCost | None, rows: float) -> RaceCost:
    """Another join on the GPU, which reads so many rows for one that arrives."""
    if more is None:
        return cost
    return replace(
        more, cycles_per_unit=cost.cycles_per_unit + rows * more.cycles_per_unit,
        stall_us=cost.stall_us + more.stall_us,
        stall_us_per_unit=cost.stall_us_per_unit + rows * more.stall_us_per_unit,
        cores=max(cost.cores, more.cores),
    )  # fmt: skip


def _each_us(curve: Curve, window: int) -> float:
    """Time a row, without what a beat takes anyway."""
    few, many = curve.rows[0], curve.rows[-1]
    each = (curve.cost(window, many).cpu_us - curve.cost(window, few).cpu_us) / (many - few)
    return max(0.0, each)


def cache_ratio(board: governors.profile.BoardProfile) -> float:
    """How many times the measured machine's last cache is the board's; 1 at least."""
    cluster = board.clusters[0]
    cache = max(cluster.l3_bytes or 0, cluster.l2_bytes or 0) or HOST_CACHE_BYTES
    return max(1.0, HOST_CACHE_BYTES / cache)


def stall_ns(board: governors.profile.BoardProfile, window: int) -> float:
    """What a row waits for memory in a join, beyond the smallest window: begins at windows that are
    smaller as the board's last cache is smaller than that of the machine that was measured."""
    here = max(1.0, window * cache_ratio(board))
    windows, ns = zip(*JOIN_STALL_NS, strict=True)
    return float(np.interp(math.log(here), np.log(windows), ns))


def _row_bytes(plan: JobPlan) -> float:
    widths = [_width(stream.schema) for stream in plan.streams.values()]
    return sum(widths) / len(widths)


def _width(schema: Schema) -> float:
    """Bytes of a row; a column of variable size counts with 16."""
    return float(sum(f.dtype.width or 16 for f in schema))
