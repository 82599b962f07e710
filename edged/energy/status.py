"""Energy figures of the daemon: the status section, and cumulative figures.

Every figure names its provenance: `measured` by a named sensor, `modelled`, or `simulated`. An
unknown figure is null, and time without readings is a gap.
"""

from __future__ import annotations

from typing import Any

from edged.energy.runtime import EnergyGovernor
from governors.energy import Provenance, RailEnergy
from governors.health import Health
from governors.ledger import JoulesEstimate, LedgerEntry, Report
from governors.meters.rails import input_watts


def energy(side: EnergyGovernor, now_us: int) -> dict[str, Any]:
    """Cumulative figures since the process began (command `energy`; see the package)."""
    watch = side.watch
    side.settle()
    if not watch.sampler.wholes:
        side.read()  # without a meter there is no timer: book the time since the last call
    rail_energy = watch.sampler.input_energy({})
    whole = next(iter(watch.sampler.wholes), None)
    modelled = None if side.tariff is None else _modelled(side, now_us)
    return {
        "at_us": watch.at_us,
        "tuples": watch.tuples_read,
        "beats": watch.beats_read,
        "policy": side.policy()["policy"],
        "idle_watts": None if side.tariff is None else side.tariff.idle_watts,
        "lag_us": 0 if rail_energy is None else watch.sampler.lag_us(rail_energy.rail.name),
        "input": modelled
        if rail_energy is None
        else _input(rail_energy, whole.covers if whole else ""),
        "rails": _rails(side),
    }


def status(side: EnergyGovernor, now_us: int) -> dict[str, Any]:
    """The energy section of the status."""
    figures = energy(side, now_us)
    watch, site = side.watch, side.site
    idle = watch.idle_states(now_us)
    return {
        "board": {
            "name": site.board.name,
            "model": site.board.model,
            "simulated": site.simulated is not None,
            "profile": site.board.profile_name,
            "power_model": None if site.model is None else site.model.profile.name,
            "processor": site.cores.model,
            "cores": len(site.cores.online),
        },
        "policy": side.policy(),
        "knobs": [
            {
                "name": k.name, "kind": k.kind, "floor_hz": k.floor_hz,
                "ceiling_hz": k.ceiling_hz, "steps_hz": k.table_hz,
            }
            for k in site.knobs
        ],
        "switches": [
            {"name": s.name, "kind": s.kind, "values": s.values} for s in site.sleeps.switches
        ],
        **side.limits.describe(),
        "input": figures["input"],
        "watts": _watts(side),
        "rails": figures["rails"],
        "joules_per_mtuple": _per_mtuple(figures),
        "race_clock_s": {str(hz): round(us / 1e6, 6) for hz, us in sorted(watch.clocks_us.items())},
        "idle_states": None if idle is None else {k: round(v, 6) for k, v in idle[0].items()},
        "wakeups_per_s": None if idle is None else round(idle[1], 3),
        "sleep_s": _sleep(side),
        "clock_s": {
            name: {"how": how, "at": {str(hz): us / 1e6 for hz, us in spent.items()}}
            for name, (how, spent) in watch.residency.times().items()
        },
        **_health(side.health.look(now_us)),
        "gpu_share": side.gpu.describe(),
        "suspend": side.suspends.describe(),
        "heat": _heat(side, now_us),
        "busy_share": None if site.simulated is None else site.simulated.busy_share(now_us),
        "saturated": site.simulated is not None and site.simulated.saturated(now_us),
        "meters": [
            {
                "name": s.meter, "interval_us": s.interval_us, "wanted_us": s.wanted_us,
                "cost_us": round(s.cost_us, 1), "reads": s.reads,
            }
            for s in watch.sampler.schedules()
        ],
        "missing": [str(m) for m in site.meters.missing if m.meter != "model"],
        "ledger": _books(watch.report(), site.simulated is not None),
    }  # fmt: skip


def _health(health: Health) -> dict[str, Any]:
    """Temperatures, throttling and GPU load."""
    return {
        "temperatures": [
            {"zone": z.name, "celsius": z.celsius, "trips": dict(z.trips)} for z in health.zones
        ],
        "throttling": [
            {
                "cause": t.cause,
                "now": t.now,
                "since_boot": t.since_boot,
                "events": t.events,
                "seen_s": t.seen_s,
            }
            for t in health.throttling
        ],
        "gpu_load": [{"gpu": name, "share": share} for name, share in health.gpu_load],
    }


def _heat(side: EnergyGovernor, now_us: int) -> dict[str, Any]:
    """The limit of the temperature, the headroom, and what the limit has done."""
    state, hottest = side.policies.heat.state, side.health.look(now_us).hottest
    limit, celsius = state.limit_celsius, state.celsius if hottest is None else hottest.celsius
    if limit is None and hottest is not None:
        lowest = min((degrees for _, degrees in hottest.trips), default=None)
    else:
        lowest = limit
    headroom = None if lowest is None or celsius is None else lowest - celsius
    return {
        "max_celsius": limit,
        "headroom_celsius": headroom,
        "ceiling_hz": state.ceiling_hz or None, "holds": state.holds,
        "held_s": state.held_us / 1e6, "lowered_s": state.bent_us / 1e6,
    }  # fmt: skip


def _sleep(side: EnergyGovernor) -> dict[str, Any] | None:
    """Core-seconds in each idle state and awake, and wakeups, since the process began."""
    watch = side.watch
    if not watch.core_s:
        return None
    awake_s = max(0.0, watch.core_s - sum(watch.idle_s.values()))
    states = {name: round(s, 6) for name, s in watch.idle_s.items()}
    return {"awake": round(awake_s, 6), "states": states, "wakeups": round(watch.wakeups)}


def _input(rail_energy: RailEnergy, covers: str) -> dict[str, Any]:
    return {"rail": rail_energy.rail.name, "covers": covers, **_joules(rail_energy)}


def _joules(rail_energy: RailEnergy) -> dict[str, Any]:
    return {
        "joules": rail_energy.joules,
        "provenance": rail_energy.provenance.value,
        "since_us": rail_energy.since_us,
        "until_us": rail_energy.until_us,
        "gap_us": rail_energy.gap_us,
    }


def _modelled(side: EnergyGovernor, now_us: int) -> dict[str, Any]:
    """Joules of the idle board and edged's own work, where no meter measures the input."""
    watch, covers = side.watch, side.site.modelled
    source = Provenance.MODELLED if side.site.simulated is None else Provenance.SIMULATED
    return {
        "rail": "model", "covers": f"{covers}; of work, edged's own alone",
        "joules": watch.joules(now_us), "provenance": source.value,
        "since_us": watch.started_us, "until_us": watch.at_us, "gap_us": 0,
    }  # fmt: skip


def _rails(side: EnergyGovernor) -> list[dict[str, Any]]:
    sampler = side.watch.sampler
    problems, watts = sampler.problems(), sampler.watts
    return [
        {
            "meter": meter, "rail": name, "part_of": rail_energy.rail.part_of,
            "feeds": list(rail_energy.rail.feeds), "watts": watts[meter, name],
            **_joules(rail_energy),
            "problem": problems.get((meter, name), ""),
        }
        for (meter, name), rail_energy in sampler.totals.items()
    ]  # fmt: skip


def _watts(side: EnergyGovernor) -> dict[str, Any] | None:
    """Current power of the whole input by the best meter; None without one."""
    for whole in side.watch.sampler.wholes:
        watts = input_watts(whole, side.watch.sampler.watts)
        if watts is not None:
            return {"input": watts, "rail": whole.name, "provenance": whole.provenance.value}
    return None


def _per_mtuple(figures: dict[str, Any]) -> dict[str, Any] | None:
    """Joules per million tuples over the whole time, above idle and of the whole input.  Gaps are
    taken to draw like the rest."""
    rail_energy, tuples = figures["input"], figures["tuples"]
    if rail_energy is None or not tuples:
        return None
    span_us = rail_energy["until_us"] - rail_energy["since_us"]
    read_us = span_us - rail_energy["gap_us"]
    if read_us <= 0:
        return None
    joules = rail_energy["joules"] * span_us / read_us
    idle = figures["idle_watts"]
    above = None if idle is None else joules - idle * span_us / 1e6
    return {
        "above_idle": None if above is None else 1e6 * above / tuples,
        "input": 1e6 * joules / tuples,
        "provenance": rail_energy["provenance"],
    }


def _books(report: Report | None, simulated: bool) -> dict[str, Any] | None:
    """The ledger by phase, job and operator."""
    if report is None or not report.measured_s + report.unmeasured_s:
        return None
    return {
        "provenance": (Provenance.SIMULATED if simulated else report.provenance).value,
        "measured_s": report.measured_s,
        "unmeasured_s": report.unmeasured_s,
        "input": _figure(report.input),
        "baseline": _figure(report.baseline),
        "unattributed": _figure(report.unattributed),
        "entries": [_entry(account, entry) for account, entry in report.entries.items()],
    }


def _entry(account: Any, entry: LedgerEntry) -> dict[str, Any]:
    return {
        "phase": account.phase, "job": account.job, "operator": account.operator,
        "above_idle": _figure(entry.above_idle), "whole_input": _figure(entry.whole_input),
        "modelled_j": entry.modelled_j,
    }  # fmt: skip


def _figure(figure: JoulesEstimate) -> dict[str, float]:
    return {"joules": figure.joules, "error_j": figure.error_j}
