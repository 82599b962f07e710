"""Tukey's test of honestly significant differences between the means of several groups.

The distribution of the studentized range is integrated with numpy:

    P(Q < q; k, v) = ∫ f_v(s) ∫ k φ(z) (Φ(z) − Φ(z − q s))^(k−1) dz ds

where f_v is the density of sqrt(chi²_v / v).  Reference: Copenhaver, Holland (1988), "Computation
of the distribution of the maximum studentized range statistic".
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

_SIGMAS, _POINTS = 8.0, 400
Floats = npt.NDArray[np.float64]


def tukey_p_values(groups: Mapping[str, Sequence[float]]) -> dict[tuple[str, str], float]:
    """The p-value of each pair of groups, after Tukey and Kramer.

    Raises ValueError for less than two groups or a group of less than two values."""
    values = {name: np.asarray(own, np.float64) for name, own in groups.items()}
    if len(values) < 2 or any(own.size < 2 for own in values.values()):
        raise ValueError("needs two groups or more, with two values or more each")
    free = sum(own.size - 1 for own in values.values())
    variance = sum(float(((own - own.mean()) ** 2).sum()) for own in values.values()) / free
    found = {}
    for a, b in itertools.combinations(values, 2):
        error = math.sqrt(variance / 2 * (1 / values[a].size + 1 / values[b].size))
        apart = abs(float(values[a].mean() - values[b].mean()))
        q = apart / error if error else math.inf if apart else 0.0
        found[a, b] = 1.0 if q == 0 else studentized_range_above(q, len(values), free)
    return found


def studentized_range_above(q: float, groups: int, free: int) -> float:
    """The probability of a studentized range above `q`, of so many groups and degrees of
    freedom."""
    if math.isinf(q):
        return 0.0
    s = np.linspace(1e-6, 1 + _SIGMAS / math.sqrt(2 * free), _POINTS)
    log_density = (
        math.log(2) + free / 2 * math.log(free / 2) - math.lgamma(free / 2)
        + (free - 1) * np.log(s) - free * s * s / 2
    )  # fmt: skip
    below = np.array([_range_below(q * one, groups) for one in s])
    return float(min(1.0, max(0.0, _integral(np.exp(log_density) * (1 - below), s))))


def _range_below(width: float, groups: int) -> float:
    """The probability that the range of so many standard normal values is below `width`."""
    z = np.linspace(-_SIGMAS, _SIGMAS, _POINTS)
    density = np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    inside = _normal_below(z) - _normal_below(z - width)
    return _integral(groups * density * inside ** (groups - 1), z)


def _normal_below(z: Floats) -> Floats:
    below = [0.5 * (1 + math.erf(one / math.sqrt(2))) for one in z.tolist()]
    return np.array(below, np.float64)


def _integral(y: Floats, x: Floats) -> float:
    return float(((y[1:] + y[:-1]) / 2 * np.diff(x)).sum())
