"""`edged bench heat`: what heat costs, with and without a limit of the chip's temperature.

Runs the simulator of `edged simulate --ambient` for each board, temperature of the air, load and
policy.  The job joins two streams over one second to each side and promises results within one
second; the load is a share of the highest rate that the board's CPU allows when cool.  The arms:

    hands_off, race_to_idle      nothing but the board's own throttling
    the same with a limit        `max_celsius`, BELOW_TRIP_C below the board's trip point
    cool                         the policy, with that limit

A row is late where it is sealed later than promised, or never: a board that reaches its critical
trip point switches itself off.  Each run begins with the idle board settled in that air and lasts
until the box is warm.  Every figure is simulated; resistances and capacities are the profiles',
most of them assumed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

import governors.profile_reader
from edged.bench.policies import JOB
from edged.console import options as checks
from edged.console.figures import COLOURS, new_figure, save
from edged.job.plan import parse_job
from edged.simulate.report import Question, answer
from edged.simulate.work import ArrivalLoad
from governors.policies.cool import BELOW_TRIP_C
from governors.profile import BoardProfile

BOARDS = ("orin-nano", "jetson-nano")
AMBIENTS = (25.0, 50.0, 60.0, 75.0)
LOADS = (0.8,)
SECONDS = 2400.0
ARMS = (
    ("hands_off", False), ("hands_off", True), ("race_to_idle", False), ("race_to_idle", True),
    ("cool", True),
)  # fmt: skip
"""Policies, each without or with the limit."""
Say = Callable[[str], None]


def measure(
    boards: Sequence[str] = BOARDS, ambients: Sequence[float] = AMBIENTS,
    loads: Sequence[float] = LOADS, seconds: float = SECONDS, say: Say = lambda _: None,
) -> dict[str, Any]:  # fmt: skip
    """All rows as a JSON document."""
    rows = []
    for name in boards:
        board = governors.profile_reader.load(name)
        top = _top_rate(board)
        for load in loads:
            for ambient in ambients:
                for policy, limited in ARMS:
                    say(f"{name} at {ambient:g} °C, load {load:.0%}, {policy}")
                    rows.append(_row(board, load, top, ambient, policy, limited, seconds))
    return {"provenance": "simulated", "seconds": seconds, "rows": rows}


def _question(board: BoardProfile, rate: float, **more: Any) -> Question:
    return Question(parse_job(JOB), board, ArrivalLoad(rate), **more)


def _top_rate(board: BoardProfile) -> float:
    """The highest rate of each stream that the cool CPU allows."""
    found = answer(_question(board, 1000.0, seconds=1.0))["bounds_rows_per_s_per_stream"]
    return float(found["cpu"])


def _row(
    board: BoardProfile, load: float, top: float, ambient: float, policy: str, limited: bool,
    seconds: float,
) -> dict[str, Any]:  # fmt: skip
    assert board.thermal is not None, "every shipped profile has a thermal model"
    limit = board.thermal.throttle.celsius - BELOW_TRIP_C if limited else None
    found = answer(
        _question(
            board, load * top, policy=policy, seconds=seconds, ambient_celsius=ambient,
            max_celsius=limit,
        )
    )  # fmt: skip
    heat, tuples = found["heat"], found["tuples"]
    joules = found["joules_per_mtuple"]
    sent = load * top * found["streams"] * seconds
    processed = min(1.0, tuples["processed"] / sent)
    return {
        "board": board.name, "ambient_c": ambient, "load": load, "policy": policy,
        "max_celsius": limit, "trip_celsius": board.thermal.throttle.celsius,
        "late_fraction": 1.0 - processed * (1.0 - found["late_share"]),
        "joules_per_mtuple": None if joules is None else joules["input"],
        "throttled_fraction": heat["throttled_share"], "held_fraction": heat["held_share"],
        "processed_fraction": processed, "off_after_s": heat["off_after_s"],
        "celsius_max": heat["celsius_max"], "watts": found["watts"]["input"],
        "p99_ms": found["latency_ms"]["p99"], "source": "simulated",
    }  # fmt: skip


def label(row: dict[str, Any]) -> str:
    """The arm of a row, in words."""
    limit = row["max_celsius"]
    return row["policy"] if limit is None else f"{row['policy']}, at most {limit:g} °C"


def lines(result: dict[str, Any]) -> list[str]:
    """One line of text for each row."""
    return [
        f"{r['board']:11} {r['ambient_c']:3.0f} °C  load {r['load']:.0%}  {label(r):34}"
        f" {r['late_fraction']:7.2%} late  {r['processed_fraction']:7.2%} processed "
        f" {r['joules_per_mtuple'] or 0.0:.3f} J/M  {r['throttled_fraction']:6.1%} throttled "
        f" {r['held_fraction']:6.1%} held  {r['celsius_max']:.1f} °C at most"
        + ("" if r["off_after_s"] is None else f", off after {r['off_after_s']:.0f} s")
        for r in result["rows"]
    ]


def draw(result: dict[str, Any], path: Path) -> None:
    """Late results and joules over the temperature of the air, at the highest load."""
    boards = list(dict.fromkeys(r["board"] for r in result["rows"]))
    figure, axes = new_figure(len(boards), 2, 3.6 * len(boards), squeeze=False)
    most = max(r["load"] for r in result["rows"])
    for board, (left, right) in zip(boards, axes, strict=True):
        rows = [r for r in result["rows"] if r["board"] == board and r["load"] == most]
        for arm, colour in zip(dict.fromkeys(map(label, rows)), COLOURS, strict=False):
            mine = [r for r in rows if label(r) == arm]
            style = {"color": colour, "marker": "o", "markersize": 4, "label": arm}
            style["linestyle"] = "--" if mine[0]["max_celsius"] is None else "-"
            air = [r["ambient_c"] for r in mine]
            left.plot(air, [100 * r["late_fraction"] for r in mine], **style)
            right.plot(air, [r["joules_per_mtuple"] for r in mine], **style)
        left.set(title=f"{board}, load {most:.0%}", ylabel="late (%, simulated)")
        right.set(title="Energy of the whole input", ylabel="J per million tuples (simulated)")
        for each in (left, right):
            each.set(xlabel="air (°C)")
            each.legend()
    save(figure, path)


def _numbers(context: Any, option: Any, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(f"{text!r} is no list of numbers") from None


@click.command(name="heat")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the figures here.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the figures here (PNG).")
@click.option("--board", "boards", multiple=True, default=BOARDS, show_default=True,
              type=checks.Board(simulated=True), metavar="NAME|simulated:NAME",
              help="A profile (`edged board --list`); may be repeated.")  # fmt: skip
@click.option("--ambient", "ambients", default=",".join(f"{a:g}" for a in AMBIENTS),
              show_default=True, callback=_numbers, help="Air, °C.")  # fmt: skip
@click.option("--load", "loads", default=",".join(f"{a:g}" for a in LOADS), show_default=True,
              callback=_numbers, help="Shares of the highest rate of the cool board.")  # fmt: skip
@click.option("--seconds", default=SECONDS, show_default=True, type=checks.ABOVE_ZERO,
              help="Simulated time of each run.")  # fmt: skip
def command(
    path: Path | None, plot: Path | None, boards: tuple[str, ...], ambients: tuple[float, ...],
    loads: tuple[float, ...], seconds: float,
) -> None:  # fmt: skip
    """Late results and joules in warm air, with and without a limit of the temperature.

    Every figure is simulated, none is measured; a run is deterministic.
    """
    from edged.console.consoles import figures_console

    checks.output("--json", path)
    checks.output("--plot", plot)
    console = figures_console()
    with console.status("") as status:
        result = measure(boards, ambients, loads, seconds, status.update)
    if path is not None:
        path.write_text(json.dumps(result, indent=1) + "\n")
    if plot is not None:
        draw(result, plot)
    for line in lines(result):
        click.echo(line)
