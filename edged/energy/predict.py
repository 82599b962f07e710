"""Predicted energy of a job on a board at a rate, next to the figures of a running daemon."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import governors.profile_reader
from edged.errors import ConfigError
from edged.job.plan import JobPlan
from edged.simulate import stages, suspending
from edged.simulate.report import Question, answer
from edged.simulate.work import ArrivalLoad
from governors.base import HANDS_OFF
from governors.board_tariffs import ModelTariff
from governors.errors import GovernorError
from governors.power import PowerModel

SECONDS = 120.0
"""Simulated time."""


def policy_of(
    plan: JobPlan, policy: str | None, settings: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Policy and settings for a prediction: the named policy, else the job's own with `settings`
    applied over its settings."""
    if policy is not None or plan.governor is None:
        return policy or HANDS_OFF, dict(settings)
    return plan.governor.policy, {**plan.governor.settings, **settings}


def predict(
    plan: JobPlan, board: str, rate: float, policy: str | None = None, suspend_watts: float = 0.0
) -> dict[str, Any]:
    """Prediction by `edged simulate` at `rate` tuples/s per stream, without `policy` under the
    job's own; and whether a suspend between beats would pay, at `suspend_watts` (0: the board's).
    Raises ConfigError."""
    name, settings = policy_of(plan, policy, {})
    try:
        profile = governors.profile_reader.load(board)
        found = answer(Question(plan, profile, ArrivalLoad(rate), name, settings, seconds=SECONDS))
    except GovernorError as problem:
        raise ConfigError(str(problem)) from problem
    found["stages"] = stages.stage_prices(profile)
    tariff = ModelTariff(PowerModel(profile))
    outlook = suspending.suspend_outlook(tariff, profile, plan, suspend_watts)
    found["suspend"] = {**suspending.suspend_document(outlook),
                        "text": suspending.suspend_lines(outlook)}  # fmt: skip
    keys = ("provenance", "board", "mode", "input_is", "policy", "rate_per_stream", "watts",
            "joules_per_mtuple", "busy_share", "wakeups_per_s", "saturated", "notes",
            "stages", "suspend")  # fmt: skip
    return {key: found[key] for key in keys}


def measured(door: Path, plan: JobPlan) -> dict[str, Any]:
    """The same figures of a running daemon over its whole run time.  Raises ConfigError."""
    from edged.control.door import ask

    status = ask(door, "status")
    energy = status["energy"]
    if energy is None or plan.name not in status["jobs"]:
        what = "watches no board" if energy is None else f"runs no job {plan.name}"
        raise ConfigError(f"the daemon at {door} {what}")
    figures, books = energy["input"], energy["ledger"]
    seconds = None if figures is None else (figures["until_us"] - figures["since_us"]) / 1e6
    mine = [] if books is None else [e for e in books["entries"] if e["job"] == plan.name]
    return {
        "provenance": None if figures is None else figures["provenance"],
        "board": energy["board"]["name"],
        "policy": energy["policy"]["policy"],
        "seconds": seconds,
        "rate_per_stream": _rate(status, plan, seconds),
        "watts": _mean(figures, seconds),
        "joules_per_mtuple": energy["joules_per_mtuple"],
        "wakeups_per_s": energy["wakeups_per_s"],
        "operators": mine,
    }


def lines(predicted: dict[str, Any], figures: dict[str, Any] | None) -> list[str]:
    """Text lines: the prediction, and the measurement if given."""
    w, j = predicted["watts"], predicted["joules_per_mtuple"]
    found = [
        f"on {predicted['board']} at {predicted['rate_per_stream']:g} tuples/s a stream,"
        f" {predicted['policy']} ({predicted['provenance']}; {predicted['input_is']}):",
        f"  {w['input']:.2f} ± {w['error']:.2f} W, {w['above_idle']:.3f} W of it above idle",
    ]
    if j is not None:
        found.append(
            f"  {j['input']:.3g} J a million tuples, {j['above_idle']:.3g} J of it above idle"
        )
    if predicted["saturated"]:
        found.append("  SATURATED: more arrives than is processed")
    found += stages.lines(predicted["stages"])
    found += [f"  {line}" for line in predicted["suspend"]["text"]]
    if figures is None:
        return found
    pair, watts = figures["joules_per_mtuple"], figures["watts"]
    rate, source = figures["rate_per_stream"] or 0, figures["provenance"] or "power not known"
    found.append(f"running on {figures['board']} at {rate:.3g} tuples/s a"
                 f" stream, {figures['policy']} ({source}):")  # fmt: skip
    found.append("  no power figure" if watts is None else f"  {watts:.2f} W on average")
    if pair is not None:
        above = "?" if pair["above_idle"] is None else f"{pair['above_idle']:.3g}"
        found.append(f"  {pair['input']:.3g} J a million tuples, {above} J of it above idle")
    for entry in figures["operators"]:
        above = entry["above_idle"]
        found.append(f"  {entry['operator']}: {above['joules']:.2f} ± {above['error_j']:.2f} J"
                     " above idle")  # fmt: skip
    return found


def _rate(status: dict[str, Any], plan: JobPlan, seconds: float | None) -> float | None:
    rows = sum(s["rows"] for s in status["jobs"][plan.name]["streams"].values())
    return rows / len(plan.streams) / seconds if seconds else None


def _mean(figures: dict[str, Any] | None, seconds: float | None) -> float | None:
    if figures is None or not seconds or seconds * 1e6 <= figures["gap_us"]:
        return None
    return float(figures["joules"] / (seconds - figures["gap_us"] / 1e6))
