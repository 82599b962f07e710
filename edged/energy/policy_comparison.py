"""A/B comparison of two policies on a running job: which draws less, with a confidence interval.

**Order.** Blocks of equal length run in the order A B B A, A B B A, … Both arms of a quad have the
same mean time, so a drift that is linear over the quad (warming up, a battery running down, a
growing rate) favours neither.  The order is that of double substitution weighing (NIST IR 6969, SOP
4).

**Settling.** The policy is switched at the beginning of a block, and the next `settle_s` are not
counted: BEATS beats until the policy has set its clocks and planned a wait, and the meter's lag as
the daemon reports it (for the sensor of an Orin: a mean over half a second, up to half a second
old, read up to three quarters of a second apart). A reading that still contained the other arm's
power would reduce every difference.

    d = (B2 + B3) / 2 − (A1 + A4) / 2                      one difference per quad

**Interval.** The result is the mean of the differences with Student's t interval, mean ± t(n − 1) s
/ √n (NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.5.2). Quads are taken as independent:
noise within a quad may be of any kind, but slow noise across quads is not covered.  A difference
whose interval contains zero is not significant.

A block with meter gaps longer than GAP_SHARE of it, or without readings, is excluded together with
its quad, since three blocks do not cancel a drift.

All functions except `Experiment` are arithmetic; `Experiment` gets its client, clock and sleep as
arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from edged.errors import ConfigError

ORDER = "ABBA"
CONFIDENCE = 0.95
BLOCKS = 32
"""Number of blocks in the given time, unless blocks would become shorter than BLOCK_S_MIN."""
BLOCK_S_MIN = 15.0
BEATS = 2
"""A policy sets its clocks before the first race after the switch, and its wait after it."""
SETTLE_SHARE, SETTLE_SHARE_MAX = 0.2, 0.5
GAP_SHARE = 0.1
METHOD = ("order A B B A; a difference a quad, (B2 + B3)/2 − (A1 + A4)/2, which a linear drift is"
          " not in (double substitution, NIST IR 6969, SOP 4); Student's t interval of their mean"
          " (NIST/SEMATECH e-Handbook 1.3.5.2)")  # fmt: skip

Ask = Callable[..., Any]
Progress = Callable[[str], None]


@dataclass(frozen=True)
class EnergyReading:
    """Cumulative figures of the daemon at one moment (its command `energy`)."""

    at_us: int
    tuples: int
    joules: float
    until_us: int
    """Time of the meter's last reading."""
    gap_us: int
    provenance: str
    covers: str
    """What the joules include."""


@dataclass(frozen=True)
class Block:
    """One arm for one block."""

    arm: str
    first: EnergyReading
    last: EnergyReading

    @property
    def seconds(self) -> float:
        """Between the two meter readings, gaps included."""
        return (self.last.until_us - self.first.until_us) / 1e6

    @property
    def gap_s(self) -> float:
        """Time without readings."""
        return (self.last.gap_us - self.first.gap_us) / 1e6

    @property
    def tuples(self) -> int:
        """Tuples taken in."""
        return self.last.tuples - self.first.tuples

    @property
    def joules(self) -> float:
        """Of the time without gaps."""
        return self.last.joules - self.first.joules

    @property
    def watts(self) -> float:
        """Mean over the time without gaps."""
        return self.joules / (self.seconds - self.gap_s)

    @property
    def joules_per_mtuple(self) -> float:
        """At the block's mean watts and rate."""
        rate = self.tuples / ((self.last.at_us - self.first.at_us) / 1e6)
        return 1e6 * self.watts / rate

    def problem(self) -> str:
        """Why the block is excluded; empty where it counts."""
        if self.last.joules < self.first.joules or self.last.tuples < self.first.tuples:
            return "the daemon restarted"
        if self.seconds <= 0 or self.last.at_us <= self.first.at_us:
            return "no reading of the meter"
        if self.gap_s > GAP_SHARE * self.seconds:
            return f"a gap of {self.gap_s:.1f} s"
        return "" if self.tuples else "no tuples"


@dataclass(frozen=True)
class MeanDifference:
    """Mean difference B − A with its confidence interval."""

    mean: float
    half_width: float
    quads: int
    a_mean: float
    """Mean of the counted blocks of A."""

    @property
    def low(self) -> float:
        """Lower end."""
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        """Upper end."""
        return self.mean + self.half_width

    @property
    def excludes_zero(self) -> bool:
        """Whether zero lies outside the interval."""
        return not self.low <= 0 <= self.high


def plan(minutes: float, settle_s: float, block_s: float | None = None) -> tuple[int, float]:
    """Number of quads and seconds per block.

    Raises ConfigError for fewer than two quads, and for blocks with more than half uncounted.
    """
    least_s = max(BLOCK_S_MIN, settle_s / SETTLE_SHARE) if block_s is None else block_s
    if least_s <= 0 or settle_s > SETTLE_SHARE_MAX * least_s:
        raise ConfigError(
            f"--block {least_s:g} is too short: the first {settle_s:.3g} s of a block are not"
            " counted, since the policy starts and the meter still reflects the previous one;"
            f" give it {settle_s / SETTLE_SHARE_MAX:.3g} s or more"
        )
    total_s = 60 * minutes
    each_s = max(least_s, total_s / BLOCKS) if block_s is None else block_s
    quads = int(total_s / each_s / len(ORDER) + 1e-9)
    if quads < 2:
        raise ConfigError(
            f"--minutes {minutes:g} is too short for an interval: two times A B B A in blocks of"
            f" {least_s:.3g} s take {2 * len(ORDER) * least_s / 60:.3g} minutes"
        )
    return quads, total_s / quads / len(ORDER) if block_s is None else each_s


def settle_s(ask: Ask) -> float:
    """Time after a switch during which the daemon's joules still include the previous policy (see
    the module)."""
    promises = [job["promises"] for job in ask("status")["jobs"].values()]
    beat_us = min((p["latency_us"] for p in promises), default=0)
    return float(BEATS * beat_us + ask("energy")["lag_us"]) / 1e6


def quads(blocks: Sequence[Block]) -> list[Sequence[Block]]:
    """Complete quads without excluded blocks."""
    size = len(ORDER)
    whole = [blocks[i : i + size] for i in range(0, len(blocks) - size + 1, size)]
    return [quad for quad in whole if not any(block.problem() for block in quad)]


def differences(values: Sequence[Sequence[float]]) -> list[float]:
    """B − A of each quad of values in the order A B B A."""
    return [(b1 + b2) / 2 - (a1 + a2) / 2 for a1, b1, b2, a2 in values]


def interval(
    values: Sequence[Sequence[float]], confidence: float = CONFIDENCE
) -> MeanDifference | None:
    """Mean difference over quads of values; None with fewer than two."""
    found = differences(values)
    n = len(found)
    if n < 2:
        return None
    mean = math.fsum(found) / n
    deviation = math.sqrt(math.fsum((d - mean) ** 2 for d in found) / (n - 1))
    half = t_quantile((1 + confidence) / 2, n - 1) * deviation / math.sqrt(n)
    a_mean = math.fsum(v[0] + v[3] for v in values) / (2 * n)
    return MeanDifference(mean, half, n, a_mean)


@cache
def t_quantile(probability: float, freedom: int) -> float:
    """Quantile of Student's t for a probability of at least a half."""
    low, high = 0.0, 1.0
    while t_below(high, freedom) < probability:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if t_below(middle, freedom) < probability else (low, middle)
    return high


def t_below(t: float, freedom: int) -> float:
    """Distribution function of Student's t, t >= 0 (Abramowitz and Stegun 26.7.3, 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    sin, cos = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = total = (cos if odd else 1.0) if freedom > 1 else 0.0
    for k in range(2 + odd, freedom - 1, 2):
        term *= cos * cos * (k - 1) / k
        total += term
    both = 2 / math.pi * (angle + sin * total) if odd else sin * total
    return (1 + both) / 2


def report(blocks: Sequence[Block], a: str, b: str, settle_s: float) -> dict[str, Any]:
    """All figures as JSON; the first `settle_s` of each block were not counted."""
    counted = quads(blocks)
    last = blocks[-1].last if blocks else None
    found = {
        "watts": interval([[x.watts for x in quad] for quad in counted]),
        "joules_per_mtuple": interval([[x.joules_per_mtuple for x in quad] for quad in counted]),
    }
    return {
        "a": a, "b": b, "order": ORDER, "method": METHOD, "confidence": CONFIDENCE,
        "provenance": last.provenance if last else None, "covers": last.covers if last else None,
        "settle_s": settle_s, "quads": len(counted), "blocks": [_shown(block) for block in blocks],
        "blocks_counted": len(ORDER) * len(counted),
        "blocks_excluded": len(blocks) - len(ORDER) * len(counted),
        "gap_s": round(sum(block.gap_s for block in blocks), 3),
        "difference": {name: None if i is None else {
            "mean": i.mean, "low": i.low, "high": i.high, "a_mean": i.a_mean,
            "told_from_zero": i.excludes_zero} for name, i in found.items()},
    }  # fmt: skip


def _shown(block: Block) -> dict[str, Any]:
    problem = block.problem()
    return {
        "arm": block.arm, "seconds": round(block.seconds, 6), "joules": block.joules,
        "tuples": block.tuples, "gap_s": block.gap_s, "excluded": problem or None,
        "watts": None if problem else block.watts,
        "joules_per_mtuple": None if problem else block.joules_per_mtuple,
    }  # fmt: skip


def reading(answer: Mapping[str, Any]) -> EnergyReading:
    """Figures from the reply to `energy`. Raises ConfigError where no meter measures the input."""
    whole = answer["input"]
    if whole is None:
        raise ConfigError(
            "no meter of this daemon measures the whole input, so nothing can be compared;"
            " `edged board` says what is missing"
        )
    return EnergyReading(
        answer["at_us"], answer["tuples"], whole["joules"], whole["until_us"], whole["gap_us"],
        whole["provenance"], whole["covers"],
    )  # fmt: skip


@dataclass
class Experiment:
    """Switches the policies of a running daemon and reads its meters."""

    ask: Ask
    """`ask(cmd, **arguments)` of the daemon's control socket."""
    now_s: Callable[[], float]
    sleep: Callable[[float], None]
    arms: Mapping[str, tuple[str, Mapping[str, Any]]]
    """Policy and settings of A and B."""
    settle_s: float
    """Uncounted time after each switch."""
    blocks: list[Block] = field(default_factory=list)

    def run(self, quads: int, block_s: float, progress: Progress) -> None:
        """Run all blocks; the previous policy is restored on every exit."""
        before = self.ask("governor")["own"]
        reading(self.ask("energy"))
        arms = ORDER * quads
        start_s = self.now_s()
        try:
            for i, arm in enumerate(arms):
                progress(f"block {i + 1} of {len(arms)}: {arm}, {self.arms[arm][0]}")
                self._switch(arm)
                self.sleep(self.settle_s)
                first = reading(self.ask("energy"))
                self._until(start_s + (i + 1) * block_s)
                self.blocks.append(Block(arm, first, reading(self.ask("energy"))))
        finally:
            self._restore_policy(before)

    def _until(self, at_s: float) -> None:
        left_s = at_s - self.now_s()
        if left_s > 0:
            self.sleep(left_s)

    def _restore_policy(self, own: Mapping[str, Any]) -> None:
        """Restore the policy; one that was not chosen by a command is restored by withdrawing the
        command's choice."""
        if own["origin"] == "command":
            self.ask("governor", policy=own["policy"], settings=own["settings"], keep=False)
        else:
            self.ask("governor", policy="none", keep=False)

    def _switch(self, arm: str) -> None:
        policy, settings = self.arms[arm]
        answer = self.ask("governor", policy=policy, settings=dict(settings), keep=False)
        if answer["policy"] == "combined":
            jobs = ", ".join(answer["jobs"])
            raise ConfigError(
                f"{policy} would not run alone, since jobs have policies of their own: {jobs}"
                " (`edged governor policy none --job JOB`, and no [governor] in their documents)"
            )
        if answer["policy"] != policy:
            raise ConfigError(
                f"the daemon does not run {policy} but {answer['policy']}: {answer['problem']}"
            )
