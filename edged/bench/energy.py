"""`edged bench energy`: the paper's experiments on the simulated Nano; four arms on the Orin Nano.

Every figure is simulated: the batcher, the policies and the cost model are the daemon's, the board
is its power model, service times were measured on one machine, frozen, and scaled by specifications
(`energy_service`).  The model is calibrated on a published sweep of clocks and cores and on the
idle power only; what the paper published of joins (`energy_published`) is the check and no input.
What runs in each arm, and what was settled beforehand: `energy_arms`.

`error_above_idle` is (watts − published) / (published − idle), told where the published value is
at least 0.2 W above idle.
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
    """Run all experiments; returns the result as JSON."""
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
        "claims": claims(rows4, sustained),
        "aims": aims(rows3, sustained), "notes": list(NOTES),
    }  # fmt: skip


NOTES = (
    "the model of ecoJoin is its published program and settings, our bucket join's core cycles and"
    " the Nano's published memory latencies; it was committed before it was compared.  Before, with"
    " our bucket join's waits scaled from another machine and a computed race clock, it missed by"
    " -20, -45 and -43 % at 262 k, 524 k and 1.05 M",
    "`edged` is like for like with the paper's programs: tuples lie in memory, results go nowhere;"
    " the whole daemon decodes from sockets, writes a log with an fsync and pages besides: at low"
    " rates it is a beat's fixed part that it pays for, at high ones decoding",
    "the GPU's arms are intervals, `watts` their middle: the published GPU sweep is flat and"
    " calibrates nothing.  Our HELLS is below what was published at 256 to 2048 tuples/s: it stages"
    " the window in shared memory, theirs reads it anew for each pair",
    "our nested loop and Handshake compare with 128-bit vectors (the paper's Handshake has SIMD"
    " disabled, its nested loop loads four columns anew for each pair): they keep up to higher"
    " rates, for less",
    "Handshake is the model's power of four busy cores: it does not grow with the rate",
    "fixed batches keep up to 1.15 M tuples/s where 0.5 M were published (1 M was the next that was"
    " tried there): what waking OpenMP's workers 1000 times a second takes has no figure here",
    "at 131 k ecoJoin is 1.30 W (1.22 published), which is no part of the check: 0.19 W above idle",
    "frequency scaling saves nothing from 524 k on, as the authors' clock there is the highest",
    "Figure 5's 1.46 W at batches of 100 k contradicts Figure 3's 1.05 W at about that rate; the"
    " model gives what Figure 3 says",
    "the paper's latencies leave out the waiting for the batch: one of 100 k tuples takes 10 s to"
    " fill at 10 k tuples/s (race_ms is what its program takes, latency_ms includes the waiting)",
    "Figure 5's 4.93 W at batches of 10: OpenMP's workers spin on after each batch, 0.42 ms at the"
    " highest clock, which makes 2.8 W here; waking 2000 times a second has no figure",
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
        "error_above_idle": published.error_above_idle(run.watts, watts), "provenance": "simulated",
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
    """ecoJoin at the checked rates, with half and 1.5 times the assumed cycles and waits."""
    found = []
    for what in ("cycles", "waits"):
        for times in (0.5, 1.5):
            nano = Nano(service, **{what: times})
            for rate in published.RATES[-3:]:
                row = _row("ecoJoin", "rate", rate, nano.run("ecoJoin", rate),
                           published.figure3("ecoJoin", rate))  # fmt: skip
                keys = ("rate", "watts", "published_watts", "error_above_idle")
                found.append({"assumed": what, "times": times} | {k: row[k] for k in keys})
    return found


def by_rate(rows: list[dict[str, Any]], variant: str) -> dict[int, float]:
    """W by rate of a variant; rates without watts are left out."""
    return {r["rate"]: r["watts"] for r in rows if r["variant"] == variant and r["watts"]}


def claims(rows4: list[dict[str, Any]], sustained: dict[str, Any]) -> list[dict[str, Any]]:
    """The paper's statements about Figure 4 beside the simulated values."""
    fb, ab, fs = (by_rate(rows4, name) for name in FIGURE4)
    both = fb.keys() & ab.keys()
    return [
        {"claim": published.FIGURE4["FB"], "published": published.FB_RATE, "unit": "tuples/s",
         "here": sustained["FB"]["tuples_per_s_per_stream"]},
        {"claim": published.FIGURE4["AB"], "published": published.AB_SAVES, "unit": "%",
         "here": max(1 - ab[r] / fb[r] for r in both),
         "rate": max(both, key=lambda r: 1 - ab[r] / fb[r])},
        {"claim": published.FIGURE4["AB+FS"], "published": published.FS_SAVES, "unit": "%",
         "here": max(1 - fs[r] / ab[r] for r in fs),
         "rate": max(fs, key=lambda r: 1 - fs[r] / ab[r])},
        {"claim": "together more than 1 W", "published": published.BOTH_SAVE_W, "unit": "W",
         "here": max(fb[r] - fs[r] for r in both),
         "rate": max(both, key=lambda r: fb[r] - fs[r])},
    ]  # fmt: skip


def aims(rows: list[dict[str, Any]], sustained: dict[str, Any]) -> list[dict[str, Any]]:
    """Each aim, the value reached, and whether the aim is met."""
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
    "batched": "one wake for many tuples; below 64 tuples/s a beat's fixed part costs more",
    "batched, clocks": "the kernel meets a short race at a low clock; from 131 k on it is at the"
    " highest by itself, which is the best one too",
    "batched, clocks, sleep, uploads": "the cap on the memory's clock in races (0.9 W/GHz in the"
    " model, ± 0.3); the board's profile has no figure of sleeps that must be asked for, nor of a"
    " radio: those two save nothing here",
}
"""What makes the difference to the arm before."""


def orin_saves(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What each arm saves against the arm before it, at every rate that both sustain."""
    arms = {name: by_rate(rows, name) for name in ORIN_ARMS}
    found = []
    for before, arm in pairwise(ORIN_ARMS):
        saved = {r: arms[before][r] - w for r, w in arms[arm].items() if r in arms[before]}
        most = max(saved, key=lambda r: saved[r])
        found.append({"arm": arm, "against": before, "watts": saved, "most": saved[most],
                      "at": most, "why": ORIN_WHY[arm]})  # fmt: skip
    return found


def _less(own: float | None, other: float | None) -> float | None:
    """Relative saving of the power above idle; None where a value is missing."""
    if own is None or other is None:
        return None
    return 1 - (own - IDLE_W) / (other - IDLE_W)


@click.command(name="energy")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the figures here.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the figures here (PNG).")
def command(path: Path | None, plot: Path | None) -> None:
    """The ecoJoin paper's three experiments on a simulated Jetson Nano, and the Orin Nano's arms.

    Takes seconds: nothing is measured, all figures are simulated.  Published values stand beside
    them with the error above idle.
    """
    from rich.console import Console

    from edged.bench.energy_report import draw, show

    checks.output("--json", path)
    checks.output("--plot", plot)
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        console.width = 110
    with console.status("") as status:
        result = measure(status.update)
    if path is not None:
        path.write_text(json.dumps(result, indent=1) + "\n")
    if plot is not None:
        draw(result, plot)
    show(result, console)
