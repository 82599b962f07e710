"""Ledger of joules by job and operator, from modelled bookings and a measured total.  Sans-IO.

    board idle                                  baseline
    edged: idle, ingest, race, commit, ship     by job and operator
    other processes
    unattributed                                measured, but booked to no account

Callers `book` the joules above idle that the power model gives for their work.  The sampler reports
the whole input in pieces, one per reading (`measure`). Pieces without a gap form windows of at
least WINDOW_S, over which bookings are scaled to the measured total (`governors.attribution` has
the method and its intervals). Pieces with a gap, and pieces from a model, form windows of their
own, whose total is modelled.

Each entry has two figures: joules above idle, and joules of the whole input, in which baseline and
unattributed joules are shared in proportion to the joules above idle.  The second figures of all
entries add up to the input; so do the first together with baseline and unattributed.

The last HISTORY windows are fitted together.  Older windows keep their last booking.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import numpy as np

from governors.attribution import Booked, Floats, ModelColumn, book, fit, unproved
from governors.energy import Provenance, RailEnergy

PHASES = ("idle", "ingest", "race", "commit", "ship")
OTHER = "other processes"
WINDOW_S = 5.0
"""Readings are up to 0.5 s old, so at most a tenth ends in the wrong window."""
HISTORY = 240
SLOT_US = 50_000
"""Bookings are kept in slots of this length and spread evenly within a slot."""
SLOTS_MAX = 1200
"""Slots of one booking at most, a minute's worth; a longer booking uses every n-th slot.  Without a
meter nothing is booked until a client reads the ledger, which may be after a month."""


@dataclass(frozen=True, slots=True)
class LedgerAccount:
    """An account to which joules are booked."""

    phase: str
    """One of PHASES, or OTHER."""
    job: str = ""
    operator: str = ""
    part: str = "cpu"
    """Part of the board that is modelled as one: cpu, gpu, memory, radio."""

    def __post_init__(self) -> None:
        if self.phase not in (*PHASES, OTHER):
            raise ValueError(f"{self.phase!r} is no phase: {', '.join((*PHASES, OTHER))}")


@dataclass(frozen=True, slots=True)
class JoulesEstimate:
    """Joules, with the half-width of their 95 % interval."""

    joules: float
    error_j: float


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """Joules of one account or of a group of accounts."""

    above_idle: JoulesEstimate
    whole_input: JoulesEstimate
    modelled_j: float
    """Booked joules above idle; the difference to `above_idle` is the model's error."""


@dataclass(frozen=True, slots=True)
class Report:
    """The ledger at one time."""

    provenance: Provenance
    """MODELLED: bookings scaled to a measured total; SIMULATED where that total is simulated."""
    measured_s: float
    unmeasured_s: float
    """Time in which the total itself is modelled for lack of readings."""
    input: JoulesEstimate
    baseline: JoulesEstimate
    unattributed: JoulesEstimate
    entries: dict[Hashable, LedgerEntry]


@dataclass(slots=True)
class _BookedWindow:
    measured: bool
    seconds: float = 0.0
    joules: float = 0.0
    modelled: dict[tuple[int, str], float] = field(default_factory=dict)
    """By number of the account and OPP."""


class Ledger:
    """Ledger of one board."""

    def __init__(
        self, idle_w: float, idle_error_w: float, noise_w: float = 0.02, lag_us: int = 0
    ) -> None:
        """`idle_w`, `idle_error_w`: power of the idle board and its standard error; `noise_w`:
        standard error that the sensor adds to a mean over WINDOW_S; `lag_us`: delay of the sensor
        (half its averaging time)."""
        self._idle_w = (idle_w, idle_error_w)
        self._noise_w, self._lag_us = noise_w, lag_us
        self._accounts: dict[LedgerAccount, int] = {}
        self._slots: dict[int, dict[tuple[int, str], float]] = {}
        self._until_us: int | None = None
        self._open = {measured: _BookedWindow(measured) for measured in (True, False)}
        self._windows: list[_BookedWindow] = []
        self._settled: dict[bool, Booked] = {}
        self._settled_modelled: dict[int, float] = {}
        self._simulated = False
        self.closed = 0
        """Number of closed windows; a report changes only when it grows."""

    def book(
        self, account: LedgerAccount, joules: float, since_us: int, until_us: int, opp: str = ""
    ) -> None:
        """Book `joules` above idle to work between two times, at operating point `opp`. Raises
        ValueError for negative joules or times in reverse."""
        if not (math.isfinite(joules) and joules >= 0 and since_us <= until_us):
            raise ValueError(f"{account}: {joules} J between {since_us} and {until_us} µs")
        column = (self._accounts.setdefault(account, len(self._accounts)), opp)
        since_us, until_us = since_us + self._lag_us, until_us + self._lag_us
        first, last = since_us // SLOT_US, max(since_us, until_us - 1) // SLOT_US
        step = 1 + (last - first) // SLOTS_MAX
        for slot in range(first, last + 1, step):
            begin, end = max(since_us, slot * SLOT_US), min(until_us, (slot + step) * SLOT_US)
            share = (end - begin) / (until_us - since_us) if until_us > since_us else 1.0
            into = self._slots.setdefault(slot, {})
            into[column] = into.get(column, 0.0) + joules * share

    def measure(self, energy: RailEnergy) -> None:
        """Add the whole input's `energy`. Time that an earlier call covered (by another meter) is
        not counted again; uncovered time is a gap."""
        if self._until_us is None:
            self._until_us = min([energy.since_us, *(slot * SLOT_US for slot in self._slots)])
        if energy.since_us > self._until_us:
            self._piece(energy.since_us, None)
        if energy.until_us <= self._until_us:
            return
        self._simulated |= energy.provenance is Provenance.SIMULATED
        whole = energy.gap_us == 0 and energy.provenance is not Provenance.MODELLED
        new = (energy.until_us - self._until_us) / (energy.until_us - energy.since_us)
        self._piece(energy.until_us, new * energy.joules if whole else None)

    def _piece(self, until_us: int, joules: float | None) -> None:
        """Add the time up to `until_us` to a window, and close the window when it is long
        enough."""
        window = self._open[joules is not None]
        window.seconds += (until_us - (self._until_us or 0)) / 1e6
        window.joules += joules or 0.0
        self._until_us = until_us
        self._collect(window, until_us)
        if window.seconds >= WINDOW_S:
            self._windows.append(window)
            self.closed += 1
            self._open[window.measured] = _BookedWindow(window.measured)
        if len(self._windows) >= HISTORY:
            self._settle(HISTORY // 2)

    def _collect(self, window: _BookedWindow, until_us: int) -> None:
        """Move bookings before `until_us` into the window; a slot may be split."""
        for slot in sorted(s for s in self._slots if s * SLOT_US < until_us):
            booked = self._slots.pop(slot)
            ended = min(1.0, (until_us - slot * SLOT_US) / SLOT_US)
            for column, joules in booked.items():
                window.modelled[column] = window.modelled.get(column, 0.0) + ended * joules
            if ended < 1.0:
                self._slots[slot] = {c: (1.0 - ended) * j for c, j in booked.items()}

    def _settle(self, count: int) -> None:
        """Make the bookings of the oldest windows final."""
        for measured, booked in self._booked(count).items():
            before = self._settled.get(measured)
            self._settled[measured] = booked if before is None else before.added(booked)
        for (account, _), joules in _summed(self._windows[:count]).items():
            now = self._settled_modelled.get(account, 0.0)
            self._settled_modelled[account] = now + joules
        del self._windows[:count]

    def _booked(self, count: int) -> dict[bool, Booked]:
        """Bookings of the oldest `count` windows, by whether they are measured, from a fit over all
        windows."""
        keys = sorted({key for window in self._windows for key in window.modelled})
        parts = {number: account.part for account, number in self._accounts.items()}
        columns = [ModelColumn(account, opp, parts[account]) for account, opp in keys]
        seconds, joules, modelled = _arrays(self._windows, keys)
        measured = np.array([w.measured for w in self._windows], np.bool_)
        found = fit(seconds[measured], joules[measured], modelled[measured], columns,
                    self._idle_w, self._noise_w)  # fmt: skip
        if self._simulated:
            found = unproved(found, columns, self._idle_w[1])
        booked = {}
        for kind in (True, False):
            chosen = np.flatnonzero(measured[:count] == kind)
            if len(chosen):
                measured_j = joules[chosen] if kind else None
                booked[kind] = book(
                    found,
                    seconds[chosen],
                    measured_j,
                    modelled[chosen],
                    columns,
                    len(self._accounts),
                    exact=not self._simulated,
                )
        return booked

    def report(
        self,
        by: Callable[[LedgerAccount], Hashable] = lambda account: account,
        recent: bool = False,
    ) -> Report:
        """The ledger over all closed windows, grouped by `by`. `recent`: over the last HISTORY
        windows only."""
        booked = self._booked(len(self._windows))
        modelled: dict[int, float] = {} if recent else dict(self._settled_modelled)
        for (account, _), joules in _summed(self._windows).items():
            modelled[account] = modelled.get(account, 0.0) + joules
        for measured, settled in {} if recent else self._settled.items():
            now = booked.get(measured)
            booked[measured] = settled if now is None else settled.added(now)
        return self._written(booked, modelled, by)

    def _written(
        self,
        booked: dict[bool, Booked],
        modelled: dict[int, float],
        by: Callable[[LedgerAccount], Hashable],
    ) -> Report:
        count = len(self._accounts)
        groups: dict[Hashable, Floats] = {}
        for account, number in self._accounts.items():
            groups.setdefault(by(account), np.zeros(count))[number] = 1.0
        entries = {}
        for name, members in groups.items():
            above = _sum(booked, "joules", np.concatenate([[0.0], members]))
            whole = _sum(booked, "whole_j", members)
            numbers = np.flatnonzero(members)
            entries[name] = LedgerEntry(
                above, whole, sum(modelled.get(int(n), 0.0) for n in numbers)
            )
        baseline = _sum(booked, "joules", np.concatenate([[1.0], np.zeros(count)]))
        everything = _sum(booked, "joules", np.ones(count + 1))
        unmeasured = booked.get(False)
        total_j = sum(b.input_j for b in booked.values())
        modelled_parts = {k: b for k, b in booked.items() if self._simulated or not k}
        total_error = _sum(modelled_parts, "joules", np.ones(count + 1)).error_j
        return Report(
            Provenance.SIMULATED if self._simulated else Provenance.MODELLED,
            booked[True].seconds if True in booked else 0.0,
            unmeasured.seconds if unmeasured is not None else 0.0,
            JoulesEstimate(total_j, total_error),
            baseline,
            JoulesEstimate(total_j - everything.joules, everything.error_j),
            entries,
        )


def _summed(windows: list[_BookedWindow]) -> dict[tuple[int, str], float]:
    total: dict[tuple[int, str], float] = {}
    for window in windows:
        for column, joules in window.modelled.items():
            total[column] = total.get(column, 0.0) + joules
    return total


def _arrays(
    windows: list[_BookedWindow], keys: list[tuple[int, str]]
) -> tuple[Floats, Floats, Floats]:
    seconds = np.array([w.seconds for w in windows], np.float64)
    joules = np.array([w.joules for w in windows], np.float64)
    rows = [[w.modelled.get(key, 0.0) for key in keys] for w in windows]
    return seconds, joules, np.array(rows, np.float64).reshape(len(windows), len(keys))


def _sum(booked: dict[bool, Booked], of: str, chosen: Floats) -> JoulesEstimate:
    """Sum over measured and unmeasured windows; their errors are taken to have one sign."""
    joules = error = 0.0
    for part in booked.values():
        values = part.joules if of == "joules" else part.whole_j
        covariance = part.covariance if of == "joules" else part.whole_covariance
        n = len(values)
        joules += float(chosen[:n] @ values)
        error += part.error(covariance, chosen[:n])
    return JoulesEstimate(joules, error)
