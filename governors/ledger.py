"""The ledger: who took the joules, from modelled bookings and a measured total.  Sans-IO.

    board idle                                  baseline
    edged: idle, ingest, race, commit, ship     by job and operator
    other processes
    unattributed                                what was measured and nobody booked

Whoever does work books what the power model says that it took above idle (`book`); the sampler's
whole input is told piece by piece, as often as there are readings (`measure`).  Pieces without a
gap make windows of at least WINDOW_S, over which bookings are scaled to the measured total
(`attribution` says how, and with which intervals).  Pieces with a gap, or of a model, make windows
of their own: in them bookings are scaled as elsewhere, and the total is modelled.

Every entry is a pair: joules above idle, and of the whole input, in which baseline and unattributed
are shared in the proportion of the joules above idle.  So the wholes of all entries add up to the
input, and the aboves with baseline and unattributed do too.

The last HISTORY windows are fitted together; older ones stay as they were booked last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import numpy as np

from governors.attribution import Booked, Floats, ModelColumn, book, fit
from governors.energy import Provenance, RailEnergy

PHASES = ("idle", "ingest", "race", "commit", "ship")
OTHER = "other processes"
WINDOW_S = 5.0
"""Of readings that are up to 0.5 s old: what ends in the wrong window is a tenth at most."""
HISTORY = 240
SLOT_US = 50_000
"""Bookings are kept in slots of so much, spread evenly within."""
SLOTS_MAX = 1200
"""Of one booking, a minute; a longer one leaves slots out between.  Where no meter is read nothing
is booked until somebody asks, which may be after a month."""


@dataclass(frozen=True, slots=True)
class LedgerAccount:
    """What joules are booked to."""

    phase: str
    """One of PHASES, or OTHER."""
    job: str = ""
    operator: str = ""
    part: str = "cpu"
    """What of the board is modelled as one: cpu, gpu, memory, radio."""

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
    """What one account, or a group of them, took."""

    above_idle: JoulesEstimate
    whole_input: JoulesEstimate
    modelled_j: float
    """As it was booked, above idle: beside `above_idle` it shows what the model is worth."""


@dataclass(frozen=True, slots=True)
class Report:
    """The books."""

    provenance: Provenance
    """MODELLED: bookings scaled to a measured total; SIMULATED where that total is."""
    measured_s: float
    unmeasured_s: float
    """Time in which the total itself is modelled, because nothing was measured."""
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
    """By account's number and OPP."""


class Ledger:
    """One board's books."""

    def __init__(
        self, idle_w: float, idle_error_w: float, noise_w: float = 0.02, lag_us: int = 0
    ) -> None:
        """Power of the idle board with its standard error, what the sensor adds to a mean over
        WINDOW_S (standard error), and how late it tells (half the time it averages over)."""
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
        """Windows so far: reports are the same until there is one more."""

    def book(
        self, account: LedgerAccount, joules: float, since_us: int, until_us: int, opp: str = ""
    ) -> None:
        """`joules` above idle are modelled for work between two times, at clocks named `opp`."""
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
        """The whole input took `energy` since the last call.  Time that was told already (by
        another meter) is not counted again; time that nobody told is a gap."""
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
        """Add the time up to `until_us` to a window, and begin the next where that is long."""
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
        """Move what was booked before `until_us` into the window; a slot may be cut."""
        for slot in sorted(s for s in self._slots if s * SLOT_US < until_us):
            booked = self._slots.pop(slot)
            ended = min(1.0, (until_us - slot * SLOT_US) / SLOT_US)
            for column, joules in booked.items():
                window.modelled[column] = window.modelled.get(column, 0.0) + ended * joules
            if ended < 1.0:
                self._slots[slot] = {c: (1.0 - ended) * j for c, j in booked.items()}

    def _settle(self, count: int) -> None:
        """Book the oldest windows for good."""
        for measured, booked in self._booked(count).items():
            before = self._settled.get(measured)
            self._settled[measured] = booked if before is None else before.added(booked)
        for (account, _), joules in _summed(self._windows[:count]).items():
            now = self._settled_modelled.get(account, 0.0)
            self._settled_modelled[account] = now + joules
        del self._windows[:count]

    def _booked(self, count: int) -> dict[bool, Booked]:
        """The oldest windows by whether they are measured; all that are still there are fitted."""
        keys = sorted({key for window in self._windows for key in window.modelled})
        parts = {number: account.part for account, number in self._accounts.items()}
        columns = [ModelColumn(account, opp, parts[account]) for account, opp in keys]
        seconds, joules, modelled = _arrays(self._windows, keys)
        measured = np.array([w.measured for w in self._windows], np.bool_)
        found = fit(seconds[measured], joules[measured], modelled[measured], columns,
                    self._idle_w, self._noise_w)  # fmt: skip
        booked = {}
        for kind in (True, False):
            chosen = np.flatnonzero(measured[:count] == kind)
            if len(chosen):
                told = joules[chosen] if kind else None
                booked[kind] = book(
                    found, seconds[chosen], told, modelled[chosen], columns, len(self._accounts)
                )
        return booked

    def report(
        self,
        by: Callable[[LedgerAccount], Hashable] = lambda account: account,
        recent: bool = False,
    ) -> Report:
        """The books of all closed windows (`recent`: of the last HISTORY at most), by a property
        of the accounts."""
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
        unmeasured_error = 0.0
        if unmeasured is not None:
            unmeasured_error = _sum({False: unmeasured}, "joules", np.ones(count + 1)).error_j
        return Report(
            Provenance.SIMULATED if self._simulated else Provenance.MODELLED,
            booked[True].seconds if True in booked else 0.0,
            unmeasured.seconds if unmeasured is not None else 0.0,
            JoulesEstimate(total_j, unmeasured_error),
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
    """A sum over measured and unmeasured windows; their errors are taken to have one sign."""
    joules = error = 0.0
    for part in booked.values():
        values = part.joules if of == "joules" else part.whole_j
        covariance = part.covariance if of == "joules" else part.whole_covariance
        n = len(values)
        joules += float(chosen[:n] @ values)
        error += part.error(covariance, chosen[:n])
    return JoulesEstimate(joules, error)
