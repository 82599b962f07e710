"""The answer of `edged simulate`: one run or a sweep, as JSON, as tables, or as a figure.

Every figure belongs to a board that is not there, so an answer carries `"provenance": "simulated"`.
Power comes with one standard deviation of the board's model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import governors.profile
from edged.console.figures import BLUE, RED, new_figure, save
from edged.documents.units import show_size
from edged.job.plan import JobPlan
from edged.placement.placement import KernelProfile
from edged.placement.profile import EnergyCalibration
from edged.simulate.bounds import LINK_BITS_PER_S, available_memory, find_bounds
from edged.simulate.device import SimulatedDevice
from edged.simulate.engine import Engine, GpuLoad, Setup, SimulationOutcome
from edged.simulate.rows import clocks_of, on_board
from edged.simulate.suspending import suspend_lines, suspend_outlook
from edged.simulate.work import ArrivalLoad, job_work
from governors.board_tariffs import Measured

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Question:
    """The input of one answer: a job, a board, a load and a policy."""

    plan: JobPlan
    board: governors.profile.BoardProfile
    load: ArrivalLoad
    policy: str = "hands_off"
    settings: dict[str, Any] = field(default_factory=dict)
    mode: str | None = None
    seconds: float = 600.0
    seed: int = 1
    battery_j: float | None = None
    day_us: int = 0
    upload_within_us: int = 0
    calibrated: KernelProfile | None = None
    """Kernel times, of this board or of another machine (`rows`)."""
    energy: EnergyCalibration | None = None
    """Power over the clocks; used only if it is this board's."""
    gpu: bool = False
    """Whether the placer may use GPU kernels with times from the board's data sheet."""
    memory_cap: bool = False
    gpu_load: GpuLoad | None = None
    """Load of other processes on the GPU."""
    gpu_share: float = 0.5
    suspend_watts: float | None = None
    """Of the suspended board, 0 for its profile's; None: the board is never suspended."""
    ambient_celsius: float | None = None
    """Temperature of the air; None: heat is not simulated."""
    max_celsius: float | None = None
    """Limit of the chip's temperature."""


def answer(asked: Question) -> dict[str, Any]:
    """Simulate one question; returns the answer as a JSON document.

    Raises ProfileError for an unknown power mode, or for a board whose cores have no cost model.
    """
    device, device_notes = _device(asked)
    setup = _setup(asked, device)
    outcome = Engine(setup, device).run()
    bounds = find_bounds(_at(asked, device), device)
    error = _error_watts(device, setup, outcome)
    saturated = outcome.waiting > 3 * setup.work.rows_per_s * setup.latency_us / 1e6
    return {
        "provenance": "simulated",
        "job": asked.plan.name, "board": asked.board.name, "mode": device.mode,
        "input_is": asked.board.input_is, "policy": asked.policy, "seed": asked.seed,
        "rate_per_stream": asked.load.rate, "streams": len(asked.plan.streams),
        "latency_us": setup.latency_us, **_figures(outcome, asked, error),
        "saturated": saturated and not outcome.held_back, "bounded_by": bounds.by,
        "beyond": [k for k, v in bounds.rows_per_s.items() if asked.load.rate > v],
        "bounds_rows_per_s_per_stream": {k: round(v, 1) for k, v in bounds.rows_per_s.items()},
        "notes": [*setup.work.notes, *setup.notes, *device_notes,
                  *_unpriced(device, outcome), _limits(setup, device)],
    }  # fmt: skip


def _error_watts(device: SimulatedDevice, setup: Setup, outcome: SimulationOutcome) -> float:
    """One standard deviation of the power model: that of the idle board, or that of races weighted
    by their share of time, whichever is larger."""
    tariff, seconds = device.modelled, max(outcome.seconds, 1e-9)
    on_gpu = sum(device.gpu_clocks_us.values()) / 1e6 / seconds
    load = tariff.race_load("cpu", device.dials[0].max_hz, setup.work.cost.cores)
    busy = (outcome.busy_share - on_gpu) * tariff.model.error_watts(load)
    if on_gpu:
        busy += on_gpu * tariff.model.error_watts(tariff.race_load("gpu", device.gpu_hz, 1.0))
    return max(tariff.model.error_watts(tariff.idle_load), busy)


def _unpriced(device: SimulatedDevice, outcome: SimulationOutcome) -> list[str]:
    tariff = device.modelled
    load = replace(tariff.race_load("cpu", device.dials[0].max_hz, 1.0), wakeups_per_s=1.0,
                   memory_gbytes_per_s=1.0)  # fmt: skip
    if device.gpu_clocks_us:
        gpu = tariff.race_load("gpu", device.gpu_hz, 1.0)
        load = replace(gpu, wakeups_per_s=1.0, memory_gbytes_per_s=1.0,
                       gpu_wakeups_per_s=device.gpu_wakes / outcome.seconds)  # fmt: skip
    missing = tariff.model.unpriced(load)
    up = device.profile.uplink
    if None in (up.fixed_joules, up.joules_per_byte, up.tail_joules):
        missing.append("uplink")
    text = f"not included, since no figure is published: {', '.join(missing)}"
    return [text] if missing else []


def _limits(setup: Setup, device: SimulatedDevice) -> str:
    """The note on the assumed memory and network bandwidth."""
    size, origin = available_memory(setup, device.profile.memory.bytes)
    return (f"bounds: memory is {show_size(size)}, {origin}; the network link is assumed to have"
            f" {LINK_BITS_PER_S / 1e9:g} Gbit/s")  # fmt: skip


def _figures(o: SimulationOutcome, asked: Question, error: float) -> dict[str, Any]:
    watts = o.joules / o.seconds
    above = watts - o.idle_watts
    raced = o.raced / 1e6

    def shares(times: dict[Any, float]) -> dict[str, float]:
        return {str(k): round(us / 1e6 / o.seconds, 6) for k, us in times.items()}

    hours = None if asked.battery_j is None else asked.battery_j / watts / 3600
    return {
        "seconds": round(o.seconds, 6),
        "watts": {"above_idle": above, "input": watts, "error": error},
        "joules_per_mtuple": None if not raced else {
            "above_idle": above * o.seconds / raced, "input": watts * o.seconds / raced,
        },
        "latency_ms": o.latency_ms, "late_share": o.late_share,
        "clock_shares_hz": shares(o.clocks_us), "state_shares": shares(o.states_us),
        "beats_per_s": o.beats / o.seconds, "wakeups_per_s": o.wakes / o.seconds,
        "busy_share": o.busy_share, "battery_hours": hours, "kernel": o.kernel,
        "gpu_clock_shares_hz": shares(o.gpu_clocks_us), "gpu_wakes_per_s": o.gpu_wakes / o.seconds,
        "gpu_moves": o.gpu_moves,
        "tuples": {"arrived": o.arrived, "processed": o.raced, "waiting": o.waiting},
        "heat": None if asked.ambient_celsius is None else _heat(o, asked),
        "held_back_beats": o.held_back, "forecast": o.forecast,
        "reasons": [{"text": text, "count": count} for count, text in o.reasons],
    }  # fmt: skip


def _heat(o: SimulationOutcome, asked: Question) -> dict[str, Any]:
    """Temperatures, and what throttling and the limit did."""
    return {
        "ambient_celsius": asked.ambient_celsius, "max_celsius": asked.max_celsius,
        "celsius": o.celsius, "celsius_max": o.celsius_max,
        "off_after_s": o.seconds if o.is_off else None,
        "throttled_share": o.throttled_share, "held_share": o.held_share,
        "ceiling_changes": o.ceiling_changes,
    }  # fmt: skip


def _heat_text(heat: dict[str, Any]) -> str:
    """The same as a line."""
    limit = "" if heat["max_celsius"] is None else f", limit {heat['max_celsius']:g} °C"
    if heat["off_after_s"] is not None:
        limit += f"; SWITCHED OFF after {heat['off_after_s']:.0f} s at the critical trip point"
    return (
        f"{heat['celsius']:.1f} °C at the end, {heat['celsius_max']:.1f} at most, in air of"
        f" {heat['ambient_celsius']:g} °C{limit}; throttled {heat['throttled_share']:.1%} of the"
        f" time, races held for {heat['held_share']:.1%}"
    )


def sweep(
    asked: Question, key: str, values: Sequence[float], say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """One answer for each value of `rate` (rows/s of each stream) or `latency` (µs)."""
    found = []
    for value in values:
        say(f"{key} {value:g}")
        if key == "rate":
            one = replace(asked, load=replace(asked.load, rate=value))
        else:
            promises = replace(asked.plan.promises, latency_us=int(value))
            given = "ack_within" in asked.plan.document.get("promises", {})
            ack = min(promises.ack_within_us, int(value)) if given else int(value)
            plan = replace(asked.plan, promises=replace(promises, ack_within_us=ack))
            one = replace(asked, plan=plan)
        found.append(answer(one))
    return found


def show(result: dict[str, Any], console: Console) -> None:
    """Print one answer."""
    from rich.table import Table

    w, j, ms = result["watts"], result["joules_per_mtuple"], result["latency_ms"]
    table = Table(title=_title(result), show_header=False, title_justify="left")
    rows = [
        ("power", f"{w['above_idle']:.3f} W above idle, {w['input']:.3f} W input"
                  f" ± {w['error']:.2f} ({result['input_is']})"),
        ("energy", "nothing was processed" if j is None else
                   f"{j['above_idle']:.3g} J per million tuples above idle,"
                   f" {j['input']:.3g} J in total"),
        ("latency", f"median {ms['p50']:g} ms, 95 % {ms['p95']:g}, 99 % {ms['p99']:g},"
                    f" largest {ms['max']:g}; {result['late_share']:.2%} late"),
        ("clocks", _shares(result["clock_shares_hz"], _mhz)),
        ("states", _shares(result["state_shares"], str)),
        ("wakeups", f"{result['wakeups_per_s']:.2f} a second, {result['beats_per_s']:.2f} beats"),
        ("busy", f"{result['busy_share']:.2%} of the time"
                 + (" — SATURATED: rows arrive faster than they are processed"
                    if result["saturated"] else "")),
        ("bounds", f"{result['bounded_by']} first: "
                   + ", ".join(f"{k} {v:.3g}" for k, v in
                               result["bounds_rows_per_s_per_stream"].items())
                   + " tuples/s of each stream"
                   + (f" — BEYOND {', '.join(result['beyond'])}" if result["beyond"] else "")),
    ]  # fmt: skip
    if result["gpu_clock_shares_hz"]:
        rows.append(("GPU", _shares(result["gpu_clock_shares_hz"], _mhz)
                     + f"; woken {result['gpu_wakes_per_s']:.2g} times a second"
                     + (f"; {result['gpu_moves']} moves because of others"
                        if result["gpu_moves"] else "")))  # fmt: skip
    if result["heat"] is not None:
        rows.append(("heat", _heat_text(result["heat"])))
    rows.append(("kernel", result["kernel"]))
    if result["battery_hours"] is not None:
        rows.append(("battery", f"{result['battery_hours']:.1f} h"))
    if result["held_back_beats"]:
        rows.append(("held back", f"in {result['held_back_beats']} beats; nothing was dropped"))
    rows += [("policy", f"{r['text']} ({r['count']} times)") for r in result["reasons"][:2]]
    rows += [("note", text) for text in result["notes"]]
    for row in rows:
        table.add_row(*row)
    console.print(table)


def show_sweep(results: Sequence[dict[str, Any]], key: str, console: Console) -> None:
    """Print a sweep, one line for each value."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=_title(results[0], key), title_justify="left", box=SIMPLE_HEAD,
                  padding=(0, 1, 0, 0))  # fmt: skip
    lines = [_line(r, key) for r in results]
    used = [name for name in lines[0] if any(line[name] for line in lines)]
    for name in used:
        least = len(key) if name == key else None
        table.add_column(name, justify="right", no_wrap=not name, min_width=least)
    for line in lines:
        table.add_row(*(line[name] for name in used))
    console.print(table)
    limits = results[-1]["bounds_rows_per_s_per_stream"]
    console.print(f"bounded by {results[-1]['bounded_by']}, at {min(limits.values()):.3g} tuples/s"
                  " of each stream; all figures are simulated")  # fmt: skip


def _line(r: dict[str, Any], key: str) -> dict[str, str]:
    """One run as the columns of a sweep. `show_sweep` omits a column that is empty in all runs."""
    rate = r["rate_per_stream"]
    w, j, ms = r["watts"], r["joules_per_mtuple"], r["latency_ms"]
    hours = r["battery_hours"]
    mark = "saturated" if r["saturated"] else "held back" if r["held_back_beats"] else ""
    return {
        key: _short(rate) if key == "rate" else _brief(r["latency_us"]),
        "W above idle": f"{w['above_idle']:.3f}",
        "W input": f"{w['input']:.3f}",
        "J/M above idle": "–" if j is None else _short(j["above_idle"]),
        "J/M input": "–" if j is None else _short(j["input"]),
        "p50 ms": f"{ms['p50']:.0f}",
        "p99 ms": f"{ms['p99']:.0f}",
        "wakes": f"{r['wakeups_per_s']:.1f}",
        "busy": f"{r['busy_share']:.0%}",
        "hours": "" if hours is None else f"{hours:.1f}",
        "": f"> {r['beyond'][0]}" if r["beyond"] else mark,
    }


def _short(x: float) -> str:
    """Three significant digits with the suffix k, M or G."""
    for size, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(x) >= 0.9995 * size:
            return f"{x / size:.3g}{name}"
    return f"{x:.3g}"


def _brief(us: int) -> str:
    """A duration in s or ms with three significant digits."""
    return f"{us / 1e6:.3g}s" if us >= 1_000_000 else f"{us / 1e3:.3g}ms"


def draw(results: Sequence[dict[str, Any]], key: str, path: Path) -> None:
    """Write a figure as PNG.

    For a sweep over `key` (`rate` or `latency`): power on the left, latency on the right. For one
    run: the shares of time at each clock and in each sleep state on the left, latency on the right.
    """
    figure, (left, right) = new_figure(1, 2, 4.2)
    if len(results) == 1:
        figure.suptitle(_title(results[0]), fontsize=10)
        _draw_one(results[0], left, right)
    else:
        figure.suptitle(_title(results[0], key), fontsize=10)
        _draw_sweep(results, key, left, right)
    save(figure, path)


def _draw_one(r: dict[str, Any], left: Any, right: Any) -> None:
    clocks = {f"{int(hz) / 1e6:.0f} MHz": x for hz, x in r["clock_shares_hz"].items()}
    states = {k: x for k, x in r["state_shares"].items() if k not in ("race", "write")}
    shares = {**clocks, **states}
    bars = left.barh(list(shares), [100 * x for x in shares.values()], color=BLUE)
    left.bar_label(bars, fmt="%.2g %%", padding=3)
    left.set(xlabel="share of time (%, simulated)", xlim=(0, 120), title="Clocks and sleep states")
    bars = right.bar(list(r["latency_ms"]), list(r["latency_ms"].values()), color=RED)
    right.bar_label(bars, fmt="%.0f", padding=2)
    right.margins(y=0.1)
    right.set(ylabel="latency (ms, simulated)", title="Latency, arrival to sealed page")


def _draw_sweep(results: Sequence[dict[str, Any]], key: str, left: Any, right: Any) -> None:
    label = "rate of each stream (tuples/s)" if key == "rate" else "latency tolerance (ms)"
    x = [r["rate_per_stream"] if key == "rate" else r["latency_us"] / 1e3 for r in results]
    watts = [r["watts"]["input"] for r in results]
    error = [r["watts"]["error"] for r in results]
    left.errorbar(x, watts, error, marker="o", color=BLUE, label="whole input, ± one deviation")
    idle = [r["watts"]["input"] - r["watts"]["above_idle"] for r in results]
    left.plot(x, idle, "--", color=RED, label="idle")
    left.set(xlabel=label, ylabel="power (W, simulated)", title="Power of the whole input")
    left.set_ylim(0, 1.15 * left.get_ylim()[1])
    for name, colour in zip(("p50", "p99"), (BLUE, RED), strict=True):
        values = [r["latency_ms"][name] for r in results]
        right.plot(x, values, marker="o", color=colour, label=name)
    right.set(xlabel=label, ylabel="latency (ms, simulated)", ylim=(0, None),
              title="Latency, arrival to sealed page")  # fmt: skip
    for axes in (left, right):
        if x[0] > 0 and x[-1] / x[0] > 20:
            axes.set_xscale("log")
        axes.legend(loc="best")


def _device(asked: Question) -> tuple[SimulatedDevice, list[str]]:
    """The simulated board, and notes on its power.

    A calibration of a board of the same name supplies the power of races.
    """
    measured, notes = None, []
    energy = asked.energy
    if energy is not None and energy.board == asked.board.name:
        cpu, gpu = (energy.of_device(device) for device in ("cpu", "cuda"))
        if cpu is not None:
            on_gpu = None if gpu is None else Measured(gpu.curve, gpu.cores)
            measured = Measured(cpu.curve, cpu.cores), on_gpu
            notes = [
                f"power of races from a calibration ({cpu.curve.watts_from.value}, {energy.meter})"
            ]
    device = SimulatedDevice(
        asked.board,
        asked.mode,
        memory_cap=asked.memory_cap,
        measured=measured,
        ambient_celsius=asked.ambient_celsius,
    )
    if asked.suspend_watts is not None:
        found = suspend_outlook(device.tariff, asked.board, asked.plan, asked.suspend_watts)
        device.suspend, notes = found.cost, [*notes, *suspend_lines(found)]
    return device, notes


def _setup(asked: Question, device: SimulatedDevice) -> Setup:
    promises, board = asked.plan.promises, asked.board
    clocks = clocks_of(board, device.chosen_mode)
    rows, notes = on_board(asked.calibrated, board, clocks, device.cores, asked.gpu)
    kernels = {
        name: job_work(asked.plan, board, asked.load, rows, name, device.cores)
        for name in (rows.kernels if rows is not None else ())
    }
    work = job_work(asked.plan, board, asked.load, rows, cores=device.cores)
    return Setup(
        work, promises.latency_us, promises.ack_within_us, promises.memory_bytes, asked.policy,
        asked.settings, asked.seconds, asked.seed, asked.battery_j, asked.day_us,
        asked.upload_within_us or promises.upload_within_us, rows, kernels,
        asked.gpu_load, asked.gpu_share, asked.max_celsius, tuple(notes),
    )  # fmt: skip


def _at(asked: Question, device: SimulatedDevice) -> Callable[[float], Setup]:
    return lambda rate: _setup(replace(asked, load=replace(asked.load, rate=rate)), device)


def _mhz(hz: str) -> str:
    return f"{int(hz) / 1e6:.0f} MHz"


def _title(r: dict[str, Any], key: str = "") -> str:
    """The title of a table or figure, without the swept quantity."""
    rate = "" if key == "rate" else f" at {r['rate_per_stream']:g} tuples/s a stream"
    mode = f" ({r['mode']})" if r["mode"] else ""
    return f"{r['job']} on {r['board']}{mode}, {r['policy']}{rate}: simulated"


def _shares(shares: dict[str, float], name: Callable[[str], str]) -> str:
    return ", ".join(f"{name(k)} {share:.1%}" for k, share in shares.items() if share >= 0.0005)
