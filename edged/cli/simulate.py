"""`edged simulate`: the cost of a job on a board, before the board is bought."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from edged.console import options as checks
from edged.errors import ConfigError
from governors.quantities import ENERGY, POWER, SHARE

_SUFFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}
SWEEP_POINTS_A_DECADE = 4


@click.command(
    name="simulate",
    epilog="For example: edged simulate job.toml --rate 20k --policy power_cap --set watts=3.8"
    " --battery 50Wh; or over rates: --sweep rate=1k..1M --plot sweep.png",
)
@click.argument("job", type=click.Path())
@checks.board_option("[default: orin-nano]", default="orin-nano", simulated=True)
@click.option("--mode", help="The board's power mode; default: the one it boots in.")
@click.option("--rate", default="10k", show_default=True, help="Tuples/s of each stream.")
@click.option("--latency", help="Latency promise; default: the job's.")
@click.option("--policy", help="hands_off, race_to_idle, cool, power_cap, energy_budget or"
              " fixed.  [default: the job's own, else hands_off]")  # fmt: skip
@click.option("--set", "pairs", multiple=True, metavar="KEY=VALUE",
              help="A setting of the policy: watts=3.8, cpu_mhz=1113, until=06:00.")  # fmt: skip
@click.option("--battery", "battery_j", type=checks.WithUnit(ENERGY, plain=False),
              help="50Wh or 180kJ: show how long it lasts.")  # fmt: skip
@click.option("--seconds", default=600.0, show_default=True, type=checks.ABOVE_ZERO,
              help="Simulated time.")  # fmt: skip
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0),
              help="Seed of the arrivals; equal seeds give equal results.")  # fmt: skip
@click.option("--sends", default=20.0, show_default=True, type=checks.ABOVE_ZERO,
              help="Messages/s of each stream.")  # fmt: skip
@click.option("--matches", default=0.01, show_default=True, type=checks.Number(0),
              help="Matches of joins per tuple.")  # fmt: skip
@click.option("--upload-within", help="Longest wait of results for an upload window.")
@click.option("--suspend-watts", type=checks.WithUnit(replace(POWER, zero=True), plain=False),
              help="Suspend the board between beats; 150mW: what its input draws then, 0W: as its"
              " profile says.")  # fmt: skip
@click.option("--memory-cap", is_flag=True, help="Policies may cap the memory clock.")
@click.option("--ambient", type=checks.Number(-40, 100), metavar="CELSIUS",
              help="Simulate heat and throttling in air of this temperature.")  # fmt: skip
@click.option("--max-celsius", type=checks.Number(0, 150, min_open=True), metavar="CELSIUS",
              help="With --ambient: limit of the chip's temperature for any policy.")  # fmt: skip
@click.option(
    "--sweep", metavar="rate=A..B", help="Or latency=50ms..2s; or a list, rate=1k,5k,20k."
)
@click.option(
    "--store",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A store of `edged calibrate`: its kernel times, and its watts for this board.",
)
@click.option("--gpu", is_flag=True, help="Kernels of the board's GPU may be placed too, by its"
              " data sheet where --store has none of it.")  # fmt: skip
@click.option("--gpu-load", metavar="SHARE:ON/OFF", help="With --gpu: other processes use the GPU"
              " for ON seconds and leave it for OFF, e.g. 80%:60/120.")  # fmt: skip
@click.option("--gpu-share", type=checks.WithUnit(SHARE), default=0.5, show_default=True,
              help="Share of the GPU above which joins keep off it.")  # fmt: skip
@click.option("--json", "json_path", type=click.Path(path_type=Path, allow_dash=True),
              help="Write the result here; - prints it.")  # fmt: skip
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw it here (PNG).")
def command(
    job: str, board: str, mode: str | None, rate: str, latency: str | None, policy: str | None,
    pairs: tuple[str, ...], battery_j: float | None, seconds: float, seed: int, sends: float,
    matches: float, upload_within: str | None, suspend_watts: float | None, memory_cap: bool,
    ambient: float | None, max_celsius: float | None, sweep: str | None, store: Path | None,
    gpu: bool, gpu_load: str | None, gpu_share: float, json_path: Path | None, plot: Path | None,
) -> None:  # fmt: skip
    """Run JOB's beats on a simulated board in virtual time: power, energy a tuple, latency, clocks
    and sleep, and what bounds the rate.

    Batcher, placement and policies are the daemon's.  The times of beats were measured on one
    machine and are scaled to the board, or calibrated there (--store).  Every figure is simulated,
    none is measured.
    """
    from edged.platform.libraries import use_libraries

    use_libraries()
    from rich.console import Console

    import governors.profile_reader
    from edged.energy.predict import policy_of
    from edged.energy.settings import setting
    from edged.job.plan import load_job
    from edged.placement.profile import load_energy, load_profile
    from edged.simulate import report
    from edged.simulate.work import ArrivalLoad
    from governors.errors import GovernorError

    if max_celsius is not None and ambient is None:
        raise ConfigError("--max-celsius needs --ambient: without it heat is not simulated")
    checks.output("--json", json_path)
    checks.output("--plot", plot)
    plan = _with_latency(load_job(job), latency)
    name, settings = policy_of(plan, policy, dict(setting(pair, "--set") for pair in pairs))
    try:
        question = report.Question(
            plan=plan,
            board=governors.profile_reader.load(board),
            load=ArrivalLoad(_number("--rate", rate), sends, matches),
            policy=name,
            settings=settings,
            mode=mode,
            seconds=seconds,
            seed=seed,
            battery_j=battery_j,
            upload_within_us=0 if upload_within is None else _us("--upload-within", upload_within),
            memory_cap=memory_cap,
            suspend_watts=suspend_watts,
            ambient_celsius=ambient,
            max_celsius=max_celsius,
            calibrated=None if store is None else load_profile(store),
            energy=None if store is None else load_energy(store),
            gpu=gpu,
            gpu_load=None if gpu_load is None else _gpu_load(gpu_load),
            gpu_share=gpu_share,
        )
        console = Console(highlight=False, stderr=json_path == Path("-"))
        if sweep is None:
            results, key = [report.answer(question)], "rate"
            report.show(results[0], console)
        else:
            key, values = _sweep(sweep)
            with console.status("simulating") as status:
                results = report.sweep(question, key, values, status.update)
            report.show_sweep(results, key, console)
    except GovernorError as problem:
        raise ConfigError(str(problem)) from problem
    _write(results if sweep is not None else results[0], json_path)
    if plot is not None:
        report.draw(results, key, plot)


def _gpu_load(text: str) -> Any:
    """The load of `80%:60/120`."""
    from edged.simulate.engine import GpuLoad

    share, _, times = text.partition(":")
    on, _, off = times.partition("/")
    try:
        load = GpuLoad(SHARE.parse_text(share), float(on), float(off))
    except ValueError:
        load = GpuLoad(0.0, 0.0, 0.0)
    if not (0 < load.share <= 1 and load.on_s > 0 and load.off_s > 0):
        raise ConfigError(f"--gpu-load: {text!r}; write e.g. 80%:60/120")
    return load


def _write(answer: Any, path: Path | None) -> None:
    if path is None:
        return
    text = json.dumps(answer, indent=1)
    if path == Path("-"):
        click.echo(text)
        return
    path.write_text(text + "\n")


def _with_latency(plan: Any, latency: str | None) -> Any:
    """The plan with another latency promise."""
    if latency is None:
        return plan
    us = _us("--latency", latency)
    given = "ack_within" in plan.document.get("promises", {})
    ack = min(plan.promises.ack_within_us, us) if given else us
    return replace(plan, promises=replace(plan.promises, latency_us=us, ack_within_us=ack))


def _us(option: str, text: str) -> int:
    from edged.documents.units import duration_us

    return duration_us(option, text, least=1)


def _number(option: str, text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kMG]?)", text.strip())
    if match is None or float(match[1]) <= 0:
        raise ConfigError(f"{option}: {text!r} is not a rate; write e.g. 500, 10k or 1.5M")
    return float(match[1]) * _SUFFIXES[match[2]]


def _sweep(text: str) -> tuple[str, list[float]]:
    """The swept parameter and its values: a range in even logarithmic steps, or a list."""
    key, equals, values = text.partition("=")
    if key not in ("rate", "latency") or not equals:
        raise ConfigError(f"--sweep: {text!r}; write rate=1k..1M or latency=50ms,200ms,1s")

    def read(one: str) -> float:
        return _number("--sweep", one) if key == "rate" else float(_us("--sweep", one))

    low, dots, high = values.partition("..")
    if not dots:
        return key, [read(one) for one in values.split(",")]
    first, last = read(low), read(high)
    if not first < last:
        raise ConfigError(f"--sweep: {values!r} does not rise")
    import math

    steps = max(1, round(SWEEP_POINTS_A_DECADE * math.log10(last / first)))
    even = [first * (last / first) ** (i / steps) for i in range(steps + 1)]
    return key, [first, *(float(f"{x:.3g}") for x in even[1:-1]), last]
