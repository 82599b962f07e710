"""Who took the joules: modelled joules of many accounts, scaled to what was measured.

Sensors refresh in tenths of a second and beats last milliseconds, so what an operator took cannot
be measured.  What can be is the whole input over windows of seconds, in which the accounts' shares
differ.  In window i of length T_i

    E_i = P0 T_i + sum over columns k of s_k m_ik + e_i

where m_ik are modelled joules above idle, s_k says how wrong the model is there, and e_i is what
the sensor's noise and load that nobody modelled add.  A column is an account at one operating point
(OPP): a model that extrapolates to a clock is wrong in its own way at each.  P0 and s have priors,

    P0 ~ N(idle watts, its error²)
    cov(s_j, s_k) = MODEL_SD²                            one model, one board: wrong together
                  + OPP_SD²      where the OPP is one    ... at this clock
                  + ACCOUNT_SD²  where the account is    this work costs more than most
                  (each only within one part: CPU and radio are wrong independently; mean 1)

which is a ridge regression towards the model.  Where the accounts' shares never vary only their sum
is determined, and all are scaled alike; where they do, each finds its own.  Load that nobody
modelled must not be booked to those that were at work: windows that fit badly, by the residuals'
median, count less and less (Geman and McClure's weights), and what they hold above the fit stays
unattributed.

All intervals are 95 %, of the Gaussian posterior: they cover noise and the priors' spread, not a
wrong gain of the sensor.
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
"""Relative.  The Nano's model misses its own calibration by 0.08 W on average and 0.6 W at worst,
of 0.1 to 3.6 W above idle (hardware.md 2.1); these admit that much and let the data decide."""
FAR = 3.0
"""Standard deviations at which a window counts a quarter."""
ROUNDS = 8
CONFIDENT = 1.96


@dataclass(frozen=True, slots=True)
class Column:
    """What the modelled joules of one column are of."""

    account: int
    """Which account, as a number."""
    opp: str
    part: str
    """What is modelled as one: cpu, radio."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Posterior of (P0, s_1 .. s_n)."""

    mean: Floats
    covariance: Floats
    residual_j: Floats
    """Of each window: measured above the fit."""


def fit(
    seconds: Floats,
    measured_j: Floats,
    modelled_j: Floats,
    columns: Sequence[Column],
    idle_w: tuple[float, float],
    noise_w: float,
) -> Fit:
    """`seconds[i]`, `measured_j[i]`, `modelled_j[i, k]`; idle watts with their standard error;
    `noise_w` is the standard error of a window's mean power, from the sensor."""
    design = np.column_stack([seconds, modelled_j])
    prior_mean = np.concatenate([[idle_w[0]], np.ones(len(columns))])
    prior = prior_covariance(columns, idle_w[1])
    expected = measured_j - design @ prior_mean
    sd = np.maximum(noise_w, 1e-6) * seconds
    weight_sd = sd
    mean, covariance = prior_mean, prior
    for _ in range(ROUNDS if len(seconds) else 0):
        gain_of = prior @ design.T
        gain = np.linalg.solve(design @ gain_of + np.diag(weight_sd**2), gain_of.T).T
        mean = prior_mean + gain @ expected
        covariance = prior - gain @ gain_of.T
        residual = measured_j - design @ mean
        spread = 1.4826 * float(np.median(np.abs(residual / seconds))) * seconds
        scale = np.maximum(sd, spread)
        weight_sd = scale * (1.0 + (residual / (FAR * scale)) ** 2)
    return Fit(mean, (covariance + covariance.T) / 2, measured_j - design @ mean)


def prior_covariance(columns: Sequence[Column], idle_sd_w: float) -> Floats:
    """Of (P0, s); see the module."""

    def same(of: Sequence[object]) -> NDArray[np.bool_]:
        numbers = np.unique([str(o) for o in of], return_inverse=True)[1] if of else np.zeros(0)
        return np.asarray(numbers[:, None] == numbers[None, :])

    part = same([c.part for c in columns])
    shared = np.full(part.shape, MODEL_SD**2)
    shared += OPP_SD**2 * same([c.opp for c in columns])
    shared += ACCOUNT_SD**2 * same([c.account for c in columns])
    covariance = np.zeros((len(columns) + 1, len(columns) + 1))
    covariance[0, 0] = idle_sd_w**2
    covariance[1:, 1:] = shared * part
    return covariance


@dataclass(frozen=True, slots=True)
class Booked:
    """What some windows took, with covariances (J²), of which any sum's error can be told."""

    seconds: float
    input_j: float
    joules: Floats
    """Of the baseline, then of each account above idle."""
    covariance: Floats
    whole_j: Floats
    """By account, with its share of everything else: baseline and unattributed are shared in the
    proportion of the joules above idle, so that these add up to the input."""
    whole_covariance: Floats
    parts: int = 1
    """How many bookings were added up."""

    def added(self, more: Booked) -> Booked:
        """Both; accounts that only `more` has come last."""
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
        """Half-width of the 95 % interval of the sum of what is `chosen` (a 1 each).

        Bookings that were added up rest on fits that know each other; their errors may all have one
        sign, and the variance of a sum of n is at most n times the sum of the variances.
        """
        variance = self.parts * float(chosen @ covariance @ chosen)
        return CONFIDENT * float(np.sqrt(max(0.0, variance)))


def book(
    found: Fit,
    seconds: Floats,
    measured_j: Floats | None,
    modelled_j: Floats,
    columns: Sequence[Column],
    accounts: int,
) -> Booked:
    """Book windows to `accounts` accounts.  Without measured joules the input is the fit's."""
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
        if measured_j is None:
            slope += part[:, None]
        whole_covariance = slope @ covariance @ slope.T
    return Booked(float(books[0, 0]), input_j, joules, covariance, whole, whole_covariance)


def _grown(array: Floats, length: int) -> Floats:
    return np.pad(array, [(0, length - n) for n in array.shape])
