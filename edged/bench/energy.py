"""`edged bench energy`: the paper's experiments on the simulated Nano; four arms on the Orin Nano.

Every figure is simulated. The batcher, the policies and the cost model are those of the daemon. The
board is its power model, calibrated on the authors' sweep of clocks and cores and on idle power.
Service times were measured on one machine, frozen, and scaled by specifications (`energy_service`).
The paper's results for joins (`energy_published`) are the reference, not an input. `energy_arms`
defines each arm and the assumptions fixed before the comparison.

`error_watts` is watts − published; `error_above_idle` is that over (published − idle), reported if
the published value is at least 0.2 W above idle.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from edged.bench import energy_published as published
from edged.bench.energy_arms import GPU_VARIANTS, LATENCY_US, ORIN_ARMS, Nano, Orin, Run
from edged.bench.energy_claims import by_rate, claims
from edged.bench.energy_service import Service, load
from edged.bench.rig import machine
from edged.console import options as checks
from governors.fit_nano import IDLE_W

FIGURE3 = ("nested loop", "HELLS", "Handshake", "ecoJoin", "ecoJoin GPU", "edged", "edged daemon")
FIGURE4 = ("FB", "AB", "AB+FS")
BATCHES = (10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000)
WITHIN, LESS = 0.25, 0.40
"""Targets of the aims table."""
Say = Callable[[str], None]


def measure(say: Say = lambda _: None) -> dict[str, Any]:
    """Run all experiments; returns the result as a JSON document."""
    service = load()
    nano, orin = Nano(service), Orin()
    rows3 = [_figure3(nano, v, rate, say) for v in FIGURE3 for rate in published.RATES]
    rows4 = [_figure4(nano, v, rate, say) for v in FIGURE4 for rate in published.RATES]
    rows5 = [_figure5(nano, batch, say) for batch in BATCHES]
    rows = [_orin(orin, arm, rate, say) for arm in ORIN_ARMS for rate in published.RATES]
    sustained = {v: _sustained(nano, v) for v in (*FIGURE3, "FB") if v not in GPU_VARIANTS}
    return {
        "provenance": "simulated", "board": nano.board.name, "idle_watts": IDLE_W,
        "latency_us": LATENCY_US, "service": _service(service), "machine": machine(),
        "figure3": rows3, "figure4": rows4, "figure5": rows5, "orin_nano": rows,
        "sustained": sustained, "orin_bounds": _bounds(orin.bounds()),
        "orin_saves": orin_saves(rows), "sensitivity": sensitivity(service),
        "claims": claims(rows3, rows4, sustained), "full_power_watts": nano.full_power(),
        "aims": aims(rows3, sustained), "notes": list(NOTES),
    }  # fmt: skip


NOTES = (
    "the model of ecoJoin uses its published program and settings, core cycles of edged's bucket"
    " join and the Nano's published memory latencies; it was committed before the comparison. An"
    " earlier model, with the bucket join's stalls scaled from another machine and a computed race"
    " clock, missed by -20, -45 and -43 % at 262 k, 524 k and 1.05 M",
    "`edged` matches the paper's programs: tuples lie in memory, results are discarded. The whole"
    " daemon also decodes from sockets and writes a log with an fsync and pages. At low rates a"
    " beat's fixed part dominates its extra cost, at high rates decoding",
    "the GPU arms are intervals, `watts` is their middle: the published GPU sweep is flat and"
    " calibrates nothing. From 256 to 2048 tuples/s edged's HELLS is below the published values: it"
    " stages the window in shared memory, the authors' kernel reads it again for each pair",
    "edged's nested loop and Handshake compare with 128-bit vectors. The paper's Handshake has SIMD"
    " disabled, its nested loop loads four columns for each pair. So edged's sustain higher rates"
    " with less power",
    "Handshake draws the model's power of four busy cores at every rate",
    "fixed batches sustain 1.15 M tuples/s; 0.5 M is published, and the next tested rate was 1 M."
    " The model has no figure for waking OpenMP's workers 1000 times a second",
    "at 131 k ecoJoin draws 1.30 W (1.22 published), 42 % more above idle; the aim leaves out what"
    " is less than 0.2 W above idle as published",
    "the board's model is fitted to the same authors' sweep of clocks and busy cores on that board",
    "frequency scaling saves nothing from 524 k on: the authors' clock there is the highest",
    "Figure 5's 1.46 W at batches of 100 k contradicts Figure 3's 1.05 W at about that rate; the"
    " model agrees with Figure 3",
    "the paper's latencies exclude the time in which a batch fills: 100 k tuples take 10 s at 10 k"
    " tuples/s. race_ms is the program's time, latency_ms includes the filling",
    "Figure 5 has 4.93 W at batches of 10, the model 2.8 W: OpenMP's workers spin for 0.42 ms at"
    " the highest clock after each batch. The model has no figure for 2000 wakeups a second",
)


def _figure3(nano: Nano, variant: str, rate: int, say: Say) -> dict[str, Any]:
    say(f"figure 3: {variant}, {rate} tuples/s")
    return _row(variant, "rate", rate, nano.run(variant, rate), published.figure3(variant, rate))


def _figure4(nano: Nano, variant: str, rate: int, say: Say) -> dict[str, Any]:
    say(f"figure 4: {variant}, {rate} tuples/s")
    row = _row(variant, "rate", rate, nano.run(variant, rate), None)
    if variant == "AB+FS":
        watts = published.figure3("ecoJoin", rate)
        row |= {"published_watts": watts, "published_in": "figure 3, ecoJoin: taken as the same",
                "error_watts": published.error_watts(row["watts"], watts),
                "error_above_idle": published.error_above_idle(row["watts"], watts)}  # fmt: skip
    return row


def _figure5(nano: Nano, batch: int, say: Say) -> dict[str, Any]:
    say(f"figure 5: batches of {batch}")
    watts, latency_ms = published.FIGURE5.get(batch, (None, None))
    row = _row("ecoJoin", "batch", batch, nano.ecojoin(published.FIGURE5_RATE, batch), watts)
    return row | {"published_latency_ms": latency_ms}


def _orin(orin: Orin, arm: str, rate: int, say: Say) -> dict[str, Any]:
    say(f"Orin Nano: {arm}, {rate} tuples/s")
    return _row(arm, "rate", rate, orin.run(arm, rate), None)


def _row(variant: str, x: str, at: int, run: Run, watts: float | None) -> dict[str, Any]:
    return {
        "variant": variant, x: at, "watts": run.watts, "published_watts": watts,
        "error_above_idle": published.error_above_idle(run.watts, watts),
        "error_watts": published.error_watts(run.watts, watts), "provenance": "simulated",
        "interval_watts": run.interval, "note": run.note, "busy_share": run.busy,
        "race_ms": run.race_ms, "latency_ms": run.latency_ms, "wakeups_per_s": run.wakes_per_s,
    }  # fmt: skip


def _sustained(nano: Nano, variant: str) -> dict[str, Any]:
    return _bounds(nano.bounds(variant)) | {"published": _published_highest(variant)}


def _bounds(bounds: Any) -> dict[str, Any]:
    limits = {name: round(rate) for name, rate in bounds.rows_per_s.items()}
    return {"tuples_per_s_per_stream": limits[bounds.by], "bounded_by": bounds.by, "all": limits}


def _published_highest(variant: str) -> int | None:
    if variant == "FB":
        return published.FB_RATE
    values = published.FIGURE3.get(variant)
    return published.RATES[len(values) - 1] if values else None


def _service(service: Service) -> dict[str, Any]:
    return {
        "machine": service.machine, "date": service.date, "how": service.how,
        "fit_residual": {name: m.law.residual for name, m in service.members.items()},
    }  # fmt: skip


def sensitivity(service: Service) -> list[dict[str, Any]]:
    """ecoJoin at the checked rates, with 0.5 and 1.5 times the assumed cycles and stalls."""
    found = []
    for assumed in ("cycles", "waits"):
        for times in (0.5, 1.5):
            nano = Nano(service, **{assumed: times})
            for rate in published.RATES[-3:]:
                row = _row("ecoJoin", "rate", rate, nano.run("ecoJoin", rate),
                           published.figure3("ecoJoin", rate))  # fmt: skip
                keys = ("rate", "watts", "published_watts", "error_above_idle")
                found.append({"assumed": assumed, "times": times} | {k: row[k] for k in keys})
    return found


def aims(rows: list[dict[str, Any]], sustained: dict[str, Any]) -> list[dict[str, Any]]:
    """Each aim with the simulated value and whether it is met."""
    errors = {r["rate"]: r["error_above_idle"] for r in rows
              if r["variant"] == "ecoJoin" and r["error_above_idle"] is not None}  # fmt: skip
    eco, top = by_rate(rows, "ecoJoin"), published.RATES[-1]
    read = published.FIGURE3["ecoJoin"][-1]
    found = [{
        "aim": f"ecoJoin CPU within {WITHIN:.0%} above idle", "value": errors,
        "met": all(abs(e) <= WITHIN for e in errors.values()),
    }]  # fmt: skip
    own = by_rate(rows, "edged")
    above = [r for r in eco if r not in own or own[r] > eco[r] + 1e-9]
    less = {
        against: _less(own.get(top), watts)
        for against, watts in {"simulated": eco.get(top), "published": read}.items()
    }
    daemon = {r: w - eco[r] for r, w in by_rate(rows, "edged daemon").items() if r in eco}
    return [
        *found,
        {"aim": "edged never above ecoJoin (simulated)", "value": {"above_at": above},
         "met": not above},
        {"aim": f"edged at least {LESS:.0%} less above idle at 1 M tuples/s a stream",
         "value": less, "met": all(x is not None and x >= LESS for x in less.values())},
        {"aim": "highest rate that edged sustains", "value": sustained["edged"], "met": None},
        {"aim": "the whole daemon, W more than ecoJoin's join alone", "value": daemon,
         "met": None},
        {"aim": "highest rate that the whole daemon sustains", "value": sustained["edged daemon"],
         "met": None},
    ]  # fmt: skip


ORIN_WHY = {
    "batched": "one wakeup serves many tuples; below 64 tuples/s a beat's fixed part costs more",
    "batched, clocks": "the kernel's governor starts a short race at a low clock; from 131 k on it"
    " reaches the highest clock, which is also the cheapest",
    "batched, clocks, sleep, uploads": "the cap on the memory clock in races (0.9 W/GHz in the"
    " model, ± 0.3); the board's profile has no figures of deeper sleep states or of a radio, so"
    " these two save nothing in the simulation",
}
"""Cause of each arm's saving against the previous arm."""


def orin_saves(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The power that each arm saves against the previous arm, at every rate that both sustain."""
    arms = {name: by_rate(rows, name) for name in ORIN_ARMS}
    found = []
    for before, arm in pairwise(ORIN_ARMS):
        saved = {r: arms[before][r] - w for r, w in arms[arm].items() if r in arms[before]}
        most = max(saved, key=lambda r: saved[r])
        found.append({"arm": arm, "against": before, "watts": saved, "most": saved[most],
                      "at": most, "why": ORIN_WHY[arm]})  # fmt: skip
    return found


def _less(own: float | None, other: float | None) -> float | None:
    """Relative saving of the power above idle; None if a value is missing."""
    if own is None or other is None:
        return None
    return 1 - (own - IDLE_W) / (other - IDLE_W)


@click.command(name="energy")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the figures here.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the figures here (PNG).")
def command(path: Path | None, plot: Path | None) -> None:
    """The ecoJoin paper's three experiments on a simulated Jetson Nano, and the Orin Nano's arms.

    Takes seconds: all figures are simulated, nothing is measured. The tables show published values
    and the error above idle.
    """
    from edged.bench.energy_report import draw, show
    from edged.console.consoles import figures_console

    checks.output("--json", path)
    checks.output("--plot", plot)
    console = figures_console()
    with console.status("") as status:
        result = measure(status.update)
    if path is not None:
        path.write_text(json.dumps(result, indent=1) + "\n")
    if plot is not None:
        draw(result, plot)
    show(result, console)
