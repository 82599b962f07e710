"""Text form of the status's energy section."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Section = Mapping[str, Any]
UNKNOWN = "power not known: no meter of the input, and no power model of this machine"


def lines(energy: Section) -> Iterator[str]:
    """Power, energy per tuple, clocks, sleep, policy, and problems."""
    board = energy["board"]
    name = f"{board['name']}{' (simulated)' if board['simulated'] else ''}"
    yield f"{name}: {power(energy)}; {per_mtuple(energy)}"
    mark = "simulated clocks" if board["simulated"] else "clocks"
    yield f"{mark}: {clocks(energy) or 'not known'}; {sleep(energy)}"
    yield from _times(energy)
    yield from _health(energy)
    ran = energy["policy"]
    parts = (ran["policy"], ran["reason"], ran["forecast"])
    yield "policy: " + "; ".join(part for part in parts if part)
    if ran["problem"]:
        yield f"policy problem: {ran['problem']}"
    if energy["saturated"]:
        yield f"saturated: the board would be {energy['busy_share']:.0%} busy"
    for rail in energy["rails"]:
        if rail["problem"] or rail["gap_us"]:
            gap_s = rail["gap_us"] / 1e6
            yield f"{rail['rail']}: not read for {gap_s:.1f} s {rail['problem']}".rstrip()
    for change in energy["changes"]:
        yield f"limits: {change['text']}"
    yield from _books(energy["ledger"])


def power(energy: Section) -> str:
    """Current watts and joules so far, with their provenance."""
    figures, watts = energy["input"], energy["watts"]
    now = "" if watts is None else f"{watts['input']:.2f} W now, "
    if figures is None:
        return UNKNOWN
    return f"{now}{figures['joules']:.1f} J ({figures['rail']}, {figures['provenance']})"


def per_mtuple(energy: Section) -> str:
    """Joules per million tuples, above idle and of the whole input."""
    pair = energy["joules_per_mtuple"]
    if pair is None:
        return "no tuples yet" if energy["input"] else "joules not known"
    above = "?" if pair["above_idle"] is None else f"{pair['above_idle']:.3g}"
    return f"{above} J a million tuples above idle, {pair['input']:.3g} J whole input"


def clocks(energy: Section) -> str:
    """Current clock of each domain, and time of races by clock."""
    now = [
        f"{name} {limits['hz'] / 1e6:.0f} MHz"
        for name, limits in energy["limits"].items()
        if limits["hz"] is not None
    ]
    raced = [f"{s:.1f} s at {int(hz) / 1e6:.0f} MHz" for hz, s in energy["race_clock_s"].items()]
    return ", ".join(now) + (f"; raced {', '.join(raced)}" if raced else "")


def sleep(energy: Section) -> str:
    """Wakeups and shares of time in idle states."""
    if energy["wakeups_per_s"] is None:
        return "the board has no idle counters"
    shares = ", ".join(f"{name} {share:.1%}" for name, share in energy["idle_states"].items())
    return f"{energy['wakeups_per_s']:.1f} wakeups/s, {shares}"


def hottest(energy: Section) -> str:
    """The highest temperature with its zone and what is throttled now; empty where neither is
    known."""
    zones = [zone for zone in energy["temperatures"] if zone["celsius"] is not None]
    top = max(zones, key=lambda zone: float(zone["celsius"]), default=None)
    heat = "" if top is None else f"{top['celsius']:.0f} °C ({top['zone']})"
    causes = [found["cause"] for found in energy["throttling"] if found["now"]]
    slowed = f"throttled now: {', '.join(causes)}" if causes else ""
    return "; ".join(part for part in (heat, slowed) if part)


def _health(energy: Section) -> Iterator[str]:
    """Heat, GPU load, and what throttled since boot."""
    loads = [g for g in energy["gpu_load"] if g["share"] is not None]
    busy = ", ".join(f"{g['gpu']} {g['share']:.0%} busy" for g in loads)
    if line := "; ".join(part for part in (hottest(energy), busy) if part):
        yield f"heat: {line}" if hottest(energy) else line
    past = [
        found["cause"] + (f" {found['events']} times" if found["events"] else "")
        for found in energy["throttling"] if found["since_boot"]
    ]  # fmt: skip
    if past:
        yield f"throttled since boot: {', '.join(past)}"


def _times(energy: Section) -> Iterator[str]:
    """Shares of time at each clock, where known."""
    for name, figures in energy["clock_s"].items():
        whole = sum(figures["at"].values())
        shares = [
            f"{s / whole:.1%} at {int(hz) / 1e6:.0f} MHz" for hz, s in figures["at"].items() if s
        ]
        if shares:
            yield f"{name}: {', '.join(shares)} ({figures['how']})"


def _books(books: Section | None) -> Iterator[str]:
    """The ledger's entries, largest first."""
    if books is None:
        return
    share = books["baseline"]
    yield f"board idle: {share['joules']:.1f} ± {share['error_j']:.1f} J ({books['provenance']})"
    entries = sorted(books["entries"], key=lambda e: -float(e["above_idle"]["joules"]))
    for entry in entries:
        above, whole = entry["above_idle"], entry["whole_input"]
        owner = ".".join(part for part in (entry["job"], entry["operator"]) if part)
        name = " ".join(part for part in (entry["phase"], owner) if part)
        yield (
            f"  {name}: {above['joules']:.2f} ± {above['error_j']:.2f} J above idle,"
            f" {whole['joules']:.1f} J of the whole"
        )
    left = books["unattributed"]
    yield f"  unattributed: {left['joules']:.2f} ± {left['error_j']:.2f} J"
