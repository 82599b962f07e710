"""Compares what a board shows with the profile that is taken for it."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from governors import board_report as report
from governors.health import FAKE_ZONES
from governors.profile import BoardProfile
from governors.profile_reader import load
from governors.suspend import MEM

SHOWN = 6
"""Names in a detail at most."""


def compared(found: report.BoardReport, profile: str) -> tuple[report.MatchFacts, ...]:
    """Each part of the profile that a kernel can show."""
    return tuple(_parts(found, load(profile)))


def _parts(found: report.BoardReport, profile: BoardProfile) -> Iterator[report.MatchFacts]:
    yield _one("model", found.board.model, profile.tree.model)
    yield _one("cores", str(found.system.cores), str(profile.core_count))
    tables = {clock.name: clock for clock in found.clocks}
    for cluster in profile.clusters:
        clock = tables.get(cluster.name)
        if clock is None:
            yield report.MatchFacts(cluster.name, "absent", "")
            continue
        ends = cluster.opps[0].hz, cluster.opps[-1].hz
        same = clock.table_hz == cluster.table_hz and (clock.min_hz, clock.max_hz) == ends
        detail = "" if same else f"{len(clock.table_hz)} clocks, {_span(clock)}"
        yield report.MatchFacts(cluster.name, "same" if same else "differs", detail)
    drivers = {clock.driver for clock in found.clocks if clock.kind == "cpu"}
    yield _names("cpufreq driver", drivers, {profile.tree.cpufreq_driver})
    yield from _gpu(tables.get("gpu"), profile)
    yield _names("idle states", {s.name for s in found.idle_states},
                 {s.name for s in profile.idle_states})  # fmt: skip
    yield _names("rails", {(r.rail, r.device, r.index) for r in found.rails},
                 {(c.rail, c.device, c.index) for c in profile.sensor.channels})  # fmt: skip
    if profile.suspend is not None or MEM in found.suspend.states:
        known = {MEM} if profile.suspend is not None else set()
        yield _names("suspend to memory", {MEM} & {*found.suspend.states}, known)
    yield _names("thermal zones", {zone.name for zone in found.zones},
                 {*profile.tree.thermal_zones} - {*FAKE_ZONES})  # fmt: skip


def _gpu(clock: report.ClockFacts | None, profile: BoardProfile) -> Iterator[report.MatchFacts]:
    if profile.gpu is None:
        if clock is not None:
            yield report.MatchFacts("gpu", "new", _span(clock))
        return
    if clock is None:
        yield report.MatchFacts("gpu", "absent", "")
        return
    same = clock.table_hz == tuple(opp.hz for opp in profile.gpu.opps)
    yield report.MatchFacts("gpu", "same" if same else "differs", "" if same else _span(clock))


def _one(part: str, here: str, profile: str) -> report.MatchFacts:
    same = here == profile
    return report.MatchFacts(part, "same" if same else "differs", "" if same else here)


def _names(part: str, here: Collection[object], profile: Collection[object]) -> report.MatchFacts:
    """Two sets of names: which of the board are missing in the profile (+), and the other way
    (-)."""
    here, profile = {*here} - {""}, {*profile}
    if here == profile:
        return report.MatchFacts(part, "same", "")
    if not here or not profile:
        return report.MatchFacts(part, "new" if here else "absent", "")
    more = [f"+{_text(n)}" for n in here - profile] + [f"-{_text(n)}" for n in profile - here]
    detail = " ".join(sorted(more)[:SHOWN]) + " ..." * (len(more) > SHOWN)
    return report.MatchFacts(part, "differs", detail)


def _text(name: object) -> str:
    return "@".join(map(str, name[:2])) if isinstance(name, tuple) else str(name)


def _span(clock: report.ClockFacts) -> str:
    return f"{clock.min_hz / 1e6:g} to {clock.max_hz / 1e6:g} MHz"
