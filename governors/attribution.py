"""Attribution of measured joules to accounts by a Bayesian regression on modelled joules.  Sans-IO.

Sensors refresh in tenths of a second and beats last milliseconds, so the energy of one operator
cannot be measured directly.  The whole input is measured over windows of seconds, in which the
accounts' shares differ.  In window i of length T_i

    E_i = P0 T_i + sum over columns k of s_k m_ik + e_i

m_ik are modelled joules above idle, s_k is the model's error factor, and e_i is sensor noise and
unmodelled load.  A column is one account at one operating point (OPP), since a model that
extrapolates to a clock has a different error at each.  P0 and s have priors:

    P0 ~ N(idle watts, its error²)
    cov(s_j, s_k) = MODEL_SD²                            one model of one board: a common error
                  + OPP_SD²      where the OPP is one    an error of this clock
                  + ACCOUNT_SD²  where the account is    an error of this kind of work
                  (within one part only: CPU and radio have independent errors; mean 1)

This is a ridge regression towards the model, in the effects of model, OPP and account.  Where the
accounts' shares never vary, only their sum is determined and all are scaled alike.  Unmodelled load
must not be booked to accounts that were active at the time: windows with large residuals, relative
to the median residual, get lower weights (Geman and McClure), and their excess stays unattributed.

Intervals are 95 % intervals of the Gaussian posterior.  They cover noise and the spread of the
priors, not a wrong gain of the sensor.  On a simulated board the total comes from the model itself,
so that no measurement narrows anything: intervals are those of the priors (`unproved`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MODEL_SD = 0.3
OPP_SD = 0.2
ACCOUNT_SD = 0.15
"""Relative standard deviations of the priors.  The Nano's model misses its own calibration by 0.08
W on average and 0.6 W at worst, at 0.1 to 3.6 W above idle (docs/hardware.md); the priors are wider
than that so that the data decide."""
FAR = 3.0
"""Residual, in standard deviations, at which a window's weight is a quarter."""
ROUNDS = 8
CONFIDENT = 1.96


@dataclass(frozen=True, slots=True)
class ModelColumn:
    """Account, operating point and part of one column of modelled joules."""

    account: int
    """Number of the account."""
    opp: str
    part: str
    """What is modelled as one: cpu, radio."""


@dataclass(frozen=True, slots=True)
class AttributionFit:
    """Posterior of (P0, s_1 .. s_n)."""

    mean: Floats
    covariance: Floats


def fit(
    seconds: Floats,
    measured_j: Floats,
    modelled_j: Floats,
    columns: Sequence[ModelColumn],
    idle_w: tuple[float, float],
    noise_w: float,
) -> AttributionFit:
    """Posterior from `seconds[i]`, `measured_j[i]` and `modelled_j[i, k]`.

    `idle_w`: idle watts and their standard error; `noise_w`: standard error of a window's mean
    power due to the sensor.
    """
    design = np.column_stack([seconds, modelled_j])
    spread_by = effects(columns, idle_w[1])
    prior_mean = np.concatenate([[idle_w[0]], np.ones(len(columns))])
    expected = measured_j - design @ prior_mean
    by_effect = design @ spread_by
    sd = weight_sd = np.maximum(noise_w, 1e-6) * seconds
    found, spread = np.zeros(spread_by.shape[1]), np.eye(spread_by.shape[1])
    for _ in range(ROUNDS if len(seconds) else 0):
        weighed = by_effect / weight_sd[:, None] ** 2
        spread = np.linalg.inv(np.eye(len(found)) + by_effect.T @ weighed)
        found = spread @ (weighed.T @ expected)
        residual = expected - by_effect @ found
        usual = 1.4826 * float(np.median(np.abs(residual / seconds))) * seconds
        scale = np.maximum(sd, usual)
        weight_sd = scale * (1.0 + (residual / (FAR * scale)) ** 2)
    return AttributionFit(prior_mean + spread_by @ found, spread_by @ spread @ spread_by.T)


def unproved(
    found: AttributionFit, columns: Sequence[ModelColumn], idle_sd_w: float
) -> AttributionFit:
    """`found` with the uncertainty of its priors: the fit's data agree with the model because they
    come from it."""
    spread_by = effects(columns, idle_sd_w)
    return AttributionFit(found.mean, spread_by @ spread_by.T)


def effects(columns: Sequence[ModelColumn], idle_sd_w: float) -> Floats:
    """Map from independent effects of variance 1 (idle power; in each part: model, OPP, account) to
    (P0, s)."""
    names = [
        [(c.part, 0, "") for c in columns],
        [(c.part, 1, c.opp) for c in columns],
        [(c.part, 2, str(c.account)) for c in columns],
    ]
    numbers: dict[tuple[str, int, str], int] = {}
    for name in (name for kind in names for name in kind):
        numbers.setdefault(name, len(numbers) + 1)
    moved = np.zeros((len(columns) + 1, len(numbers) + 1))
    moved[0, 0] = idle_sd_w
    for kind, sd in zip(names, (MODEL_SD, OPP_SD, ACCOUNT_SD), strict=True):
        for k, name in enumerate(kind, 1):
            moved[k, numbers[name]] = sd
    return moved


@dataclass(frozen=True, slots=True)
class Booked:
    """Joules of some windows with covariances (J²), from which the error of any sum follows."""

    seconds: float
    input_j: float
    joules: Floats
    """Baseline, then each account above idle."""
    covariance: Floats
    whole_j: Floats
    """Per account with its share of the rest: baseline and unattributed joules are shared in
    proportion to the joules above idle, so that these add up to the input."""
    whole_covariance: Floats
    parts: int = 1
    """Number of bookings in this sum."""

    def added(self, more: Booked) -> Booked:
        """Sum of both; accounts that only `more` has come last."""
        n = len(more.whole_j)
        return Booked(
            self.seconds + more.seconds,
            self.input_j + more.input_j,
            _grown(self.joules, n + 1) + more.joules,
            _grown(self.covariance, n + 1) + more.covariance,
            _grown(self.whole_j, n) + more.whole_j,
            _grown(self.whole_covariance, n) + more.whole_covariance,
            self.parts + more.parts,
        )

    def error(self, covariance: Floats, chosen: Floats) -> float:
        """Half-width of the 95 % interval of the sum over `chosen` (a 0/1 vector).

        Summed bookings rest on correlated fits, so their errors may share one sign.  The variance
        of a sum of n is at most n times the sum of the variances, which is the bound used.
        """
        variance = self.parts * float(chosen @ covariance @ chosen)
        return CONFIDENT * float(np.sqrt(max(0.0, variance)))


def book(
    found: AttributionFit,
    seconds: Floats,
    measured_j: Floats | None,
    modelled_j: Floats,
    columns: Sequence[ModelColumn],
    accounts: int,
    exact: bool = True,
) -> Booked:
    """Books windows to `accounts` accounts.  Without measured joules the input is the fit's; unless
    they are `exact`, its error is that of its parts."""
    books = np.zeros((accounts + 1, len(columns) + 1))
    books[0, 0] = seconds.sum()
    for k, column in enumerate(columns):
        books[column.account + 1, k + 1] += modelled_j[:, k].sum()
    joules = np.maximum(books @ found.mean, 0.0)
    covariance = books @ found.covariance @ books.T
    above, total = joules[1:], float(joules[1:].sum())
    input_j = float(joules.sum()) if measured_j is None else float(measured_j.sum())
    whole, whole_covariance = np.zeros(accounts), np.zeros((accounts, accounts))
    if total > 0:
        part = above / total
        whole = part * input_j
        slope = np.zeros((accounts, accounts + 1))
        slope[:, 1:] = (np.eye(accounts) - part[:, None]) / total * input_j
        if measured_j is None or not exact:
            slope += part[:, None]
        whole_covariance = slope @ covariance @ slope.T
    return Booked(float(books[0, 0]), input_j, joules, covariance, whole, whole_covariance)


def _grown(array: Floats, length: int) -> Floats:
    return np.pad(array, [(0, length - n) for n in array.shape])
