"""Cost of a job's beat on a board: a law in CPU cycles and memory stalls.

The cycles were measured in November 2026 with the real daemon and operators, one kernel thread and
Python 3.11, on one core of an AMD EPYC of family 26 (Zen 5). A timed chain of dependent one-cycle
instructions gives its clock, 3.57 GHz.

    daemon     `edged bench cost --seconds 7` of 25 November 2026, 19:35, no other load: CPU seconds
               of the process for seven loads of `edged bench e2e`'s job. Least squares over beats,
               rows and messages (residuals within 18 %) give 1.986 ms a beat on the beats' thread
               and 2.739 ms on all threads; 39.7 ns a row on all threads; 2.0 us a message on the
               beats' thread, the larger of the two fits. The difference of the beats is commit,
               acks and wakeups in the background. A beat that only commits takes 1.32 ms on its
               thread: two runs of 8 s, 20 such beats a second of 50 rows, on the same day. What
               `IntervalJoinPlan.cycles` charges for the join, 430 000 cycles a beat and 34 a row,
               is subtracted, so that the sum is the total that was measured. All of a row's time
               counts as the race's, though half of it is spent on other threads: an upper bound
    operators  median of 0.6 s each, beats of 16 to 65 536 rows; the join's beats of 16 384 rows

Scaling to a board:

    cycles     by the width of the cores' front ends (`CORES`). This is an assumption with an error
               of one half: the throughput of these kernels on the board's cores is not published
    stalls     the time of a join beyond that at the smallest window. It does not change, but starts
               at windows that are smaller in the ratio of the last-level caches

With a profile of `edged calibrate` the join has its calibrated times (`rows`). A kernel on a GPU
has the GPU's time; the rest of the join stays on the CPU.
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
RACE_CYCLES = 6.7e6
"""Fixed cycles of ingest, race and seal, on the beat's thread."""
BESIDE_CYCLES = 2.7e6
"""Fixed cycles of a beat's commit, acks and wakeups, on another core during the next wait."""
COMMIT_CYCLES = 4.7e6
"""Cycles of a beat that only commits, on its thread."""
MESSAGE_CYCLES = 7.2e3
ROW_CYCLES = 108.0
COMMIT_US = 900
"""Commit time of the measured store; an SD card takes longer."""
UNMEASURED = WindowPlan.cycles
"""Cycles assumed for an operator that was not measured: those of a window."""
KERNEL_CYCLES = 15.0
"""The kernel's share of the join's cycles a row (`chain`, windows of 10 000, beats of 16 384 rows).
The rest is hashing, partitioning, storing columns and materialising pairs."""
JOIN_STALL_NS = ((10_000, 0.0), (100_000, 7.1), (1_000_000, 11.4))
"""Memory stall beyond that at the smallest window: window (rows a side) and ns a row."""
CORES = {"Cortex-A57": 3, "Cortex-A76": 4, "Cortex-A78AE": 4, "x86-64": 6}
"""Instructions that a core's front end decodes per cycle. Source: the vendors' optimisation guides;
x86-64 is Gracemont, the N100's core."""
MOVES = 8
"""Assumed crossings of the memory bus by a row's bytes (socket, staging, log, window, page)."""
STATE_BYTES = 40
"""Bytes of a row in a window in addition to its columns (`edged.joins.chain`)."""


@dataclass(frozen=True)
class ArrivalLoad:
    """The load: arrival rate, message rate and match rate."""

    rate: float
    """Rows a second of each stream."""
    sends_per_s: float = 20.0
    """Messages a second of each stream; more than the rate counts as the rate."""
    matches: float = 0.01
    """Pairs that a join finds for each row."""


@dataclass(frozen=True)
class JobWork:
    """The cost of a job on a board at a load."""

    cost: RaceCost
    """Cost of a race; its unit is a row of any stream."""
    rows_per_s: float
    messages_per_s: float
    window: int
    """Rows a side of the largest join."""
    state_bytes: float
    row_bytes: float
    """Mean bytes of an arriving row."""
    output_bytes_per_s: float
    ingest_share: float
    """Share of a race's time that is ingest."""
    notes: tuple[str, ...]
    device: str = "cpu"
    """Processor of the races: cpu or gpu."""


def job_work(
    plan: JobPlan,
    board: governors.profile.BoardProfile,
    load: ArrivalLoad,
    calibrated: KernelProfile | None = None,
    kernel: str = "chain",
    cores: int | None = None,
) -> JobWork:
    """The cost of a job on a board at a load.

    `calibrated` has kernel times on this board (`rows`); without it the join's time is modelled.
    `cores` is the number of online cores, by default all. Raises ProfileError if the board's cores
    are unknown.
    """
    scale, scaled = scale_of(board)
    rates, state, window, output = _flows(plan, load)
    rows_per_s = load.rate * len(plan.streams)
    messages = min(load.sends_per_s, load.rate) * len(plan.streams)
    per_row = ROW_CYCLES + MESSAGE_CYCLES * messages / rows_per_s
    fixed, parallel, stall_us = RACE_CYCLES, 0.0, 0.0
    gpu = RaceCost(0.0, 0.0, cores=0.0)
    notes = [scaled]
    for id, operator in plan.operators.items():
        read = sum(rates[name] for name in plan.inputs[id]) / rows_per_s
        a_beat, a_row = operator.cycles or UNMEASURED
        if operator.cycles is None:
            notes.append(f"{operator.kind} was not measured: counted as a window")
        if operator.window_schemas():
            join = _join(board, window, calibrated, kernel, a_row)
            a_row, stall_us = join.cycles_per_unit / scale, stall_us + read * join.stall_us_per_unit
            gpu = _add_gpu_join(gpu, join.gpu, read)
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
    if gpu.cores > 0:
        top_hz = board.clusters[0].opps[-1].hz
        each_us = [cost.us(1, top_hz) - cost.us(0, top_hz), gpu.us(1, board.gpu_top_hz)]
        each_us[1] -= gpu.us(0, board.gpu_top_hz)
        ingest_share, device = ingest_share * each_us[0] / sum(each_us), "gpu"
        cost = on_gpu(cost, gpu)
    return JobWork(
        cost, rows_per_s, messages, window, state, row_bytes, output, ingest_share, tuple(notes),
        device,
    )  # fmt: skip


def on_gpu(rest: RaceCost, kernel: RaceCost) -> RaceCost:
    """The cost of a beat whose join kernel runs on the GPU: `rest` on the CPU, then `kernel`."""
    host = replace(rest, bytes_per_unit=0.0, beside_cycles=0.0, commit_cycles=0.0)
    return replace(
        kernel, bytes_per_unit=rest.bytes_per_unit, beside_cycles=rest.beside_cycles,
        commit_cycles=rest.commit_cycles, host=host,
    )  # fmt: skip


def scale_of(board: governors.profile.BoardProfile) -> tuple[float, str]:
    """Cycles of a board's cores for one measured cycle, and a note with the assumption behind it.

    Raises ProfileError if the board's cores are unknown.
    """
    core = board.clusters[0].core.partition(" (")[0]
    width = CORES.get(core)
    if width is None:
        raise ProfileError(
            f"board {board.name}: the simulator does not know cores {core!r};"
            f" it knows {', '.join(sorted(CORES))}"
        )
    scale = HOST_WIDTH / width
    return scale, f"cycles x {scale:.2f} for {core}, by decode width (assumed, off by half)"


def _flows(plan: JobPlan, load: ArrivalLoad) -> tuple[dict[str, float], float, int, float]:
    """Rows/s of every link, bytes of state, rows a side of the largest join, bytes/s of sinks."""
    rates = dict.fromkeys(plan.streams, load.rate)
    rates |= {f"{name}.late": 0.0 for name in plan.streams}
    state, window = 0.0, 0
    for id in plan.order:
        operator, read = plan.operators[id], sum(rates[n] for n in plan.inputs[id])
        if sides := operator.window_schemas():
            rows = read * operator.window_us() / 1e6
            row_bytes = sum(map(_width, sides)) / len(sides)
            state += rows * (row_bytes + STATE_BYTES)
            window = max(window, round(rows / 2))
            rates[id] = read * load.matches
        else:
            rates[id] = read * operator.rows_out
        rates |= {f"{id}.{name}": rates[id] for name in operator.outputs()}
    shipped = sum(
        rates[plan.inputs[id][0]] * _width(plan.links[plan.inputs[id][0]].schema)
        for id in plan.sinks
    )
    return rates, state, window, shipped


@dataclass(frozen=True)
class _Join:
    """The cost of a row of a join."""

    cycles_per_unit: float
    """Cycles of the board's cores."""
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
    """The cost of a GPU kernel with times calibrated at the clock `hz` (0: unknown).

    The time of an empty beat is launches, which do not depend on the GPU's clock.
    """
    few, many = (curve.cost(window, n) for n in (curve.rows[0], curve.rows[-1]))
    each_us = max(0.0, (many.us - few.us) / (curve.rows[-1] - curve.rows[0]))
    fixed_us = max(0.0, few.us - each_us * curve.rows[0])
    stalled = curve.stalled if hz else 1.0
    return RaceCost(
        0.0, (1 - stalled) * each_us * hz / 1e6, fixed_us, stalled * each_us, many.cpu_us / many.us
    )


def _add_gpu_join(cost: RaceCost, join: RaceCost | None, rows: float) -> RaceCost:
    """`cost` plus a join on the GPU that reads `rows` rows for each arriving row."""
    if join is None:
        return cost
    return replace(
        join, cycles_per_unit=cost.cycles_per_unit + rows * join.cycles_per_unit,
        stall_us=cost.stall_us + join.stall_us,
        stall_us_per_unit=cost.stall_us_per_unit + rows * join.stall_us_per_unit,
        cores=max(cost.cores, join.cores),
    )  # fmt: skip


def _each_us(curve: Curve, window: int) -> float:
    """CPU time of a row (µs), without a beat's fixed part."""
    few, many = curve.rows[0], curve.rows[-1]
    each = (curve.cost(window, many).cpu_us - curve.cost(window, few).cpu_us) / (many - few)
    return max(0.0, each)


def cache_ratio(board: governors.profile.BoardProfile) -> float:
    """Ratio of the last-level caches of the measured machine and the board; at least 1."""
    cluster = board.clusters[0]
    cache = max(cluster.l3_bytes or 0, cluster.l2_bytes or 0) or HOST_CACHE_BYTES
    return max(1.0, HOST_CACHE_BYTES / cache)


def stall_ns(board: governors.profile.BoardProfile, window: int) -> float:
    """Memory stall of a row in a join (ns), beyond that at the smallest window.

    Windows scale with the ratio of the last-level caches of the measured machine and the board.
    """
    equivalent = max(1.0, window * cache_ratio(board))
    windows, ns = zip(*JOIN_STALL_NS, strict=True)
    return float(np.interp(math.log(equivalent), np.log(windows), ns))


def _row_bytes(plan: JobPlan) -> float:
    widths = [_width(stream.schema) for stream in plan.streams.values()]
    return sum(widths) / len(widths)


def _width(schema: Schema) -> float:
    """Bytes of a row; a column of variable width counts as 16."""
    return float(sum(f.dtype.width or 16 for f in schema))
