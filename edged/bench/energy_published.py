"""Published results of the ecoJoin paper, the reference of `edged bench energy`.

"An Energy-Efficient Stream Join for the Internet of Things", DaMoN 2021 (TU Berlin).

    section 3.1       the board, the probe (2 kHz), idle power, windows of 10 s, runs of 2 minutes
    Figure 3 (3.2.1)  values read off the plot, ±0.05 W; rates are powers of two
    Figure 4 (3.2.2)  values quoted in the text only
    Figure 5 (3.2.3)  values quoted in the text only

The sustained rate of a join is the highest tested rate with which the join kept up.

The joins' models use none of these values. The board's model is not independent of the authors: it
is fitted to their own sweep of clocks and busy cores on the same board
(`governors/data/nano_power`), and its idle power is the paper's.
"""

from __future__ import annotations

from governors.fit_nano import IDLE_W

WINDOW_S = 10
ABOVE_W_MIN = 0.2
"""Smallest published power above idle for which a relative error is reported."""
RATES = tuple(2**i for i in range(5, 21))
"""Tuples/s of each stream."""
FIGURE3: dict[str, tuple[float, ...]] = {
    "nested loop": (1.05, 1.05, 1.05, 1.1, 1.2, 1.6, 2.9),
    "HELLS": (1.05, 1.05, 1.1, 1.15, 1.2, 1.4, 1.9, 3.0),
    "Handshake": (5.3, 5.5, 5.5, 5.75, 5.7, 5.75, 5.87, 5.95),
    "ecoJoin": (1.03, 1.03, 1.03, 1.03, 1.03, 1.03, 1.03, 1.05, 1.05, 1.1, 1.08, 1.1, 1.22, 1.55,
                2.53, 3.93),
    "ecoJoin GPU": (1.08, 1.08, 1.08, 1.08, 1.08, 1.08, 1.08, 1.08, 1.08, 1.1, 1.15, 1.22, 1.4,
                    2.0, 2.55, 3.4),
}  # fmt: skip
"""W by rate. A shorter row ends at the join's highest sustained rate."""
FIGURE4 = {
    "FB": "fixed batches of 1024 stop at 0.5 M tuples/s",
    "AB": "adaptive batches reach 1 M tuples/s and save up to 28 % against FB",
    "AB+FS": "with frequency scaling 1 M tuples/s, up to 20 % less again at high rates; together"
             " more than 1 W",
}  # fmt: skip
FB_RATE = 500_000
AB_SAVES, FS_SAVES, BOTH_SAVE_W = 0.28, 0.20, 1.0
HANDSHAKE, HANDSHAKE_SAVES = "up to 81 % less power than Handshake", 0.81
HELLS, HELLS_SAVES = "up to 65 % less power than HELLS", 0.65
SCALED, SCALED_TIMES = "two orders of magnitude more throughput within an energy budget", 100
"""The abstract; the budget here is HELLS's power at its highest rate, 3.0 W."""
FIGURE5_RATE = 10_000
FIGURE5 = {10: (4.93, 1.28), 100_000: (1.46, 1590.0)}
"""Batch: W, ms of latency. The latency excludes the time in which the batch fills. The text does
not say whether 10 k tuples/s is the rate of each stream; this is assumed."""


def figure3(variant: str, rate: int) -> float | None:
    """W in Figure 3, or None without a published value."""
    values = FIGURE3.get(variant, ())
    at = RATES.index(rate) if rate in RATES else len(values)
    return values[at] if at < len(values) else None


def error_watts(watts: float | None, published: float | None) -> float | None:
    """Simulated minus published power; None if a value is missing."""
    return None if watts is None or published is None else watts - published


def error_above_idle(watts: float | None, published: float | None) -> float | None:
    """Relative error of the power above idle.

    None if a value is missing, or if the published power above idle is below `ABOVE_W_MIN`.
    """
    if watts is None or published is None or published - IDLE_W < ABOVE_W_MIN - 1e-9:
        return None
    return (watts - published) / (published - IDLE_W)
