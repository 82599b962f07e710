"""What the ecoJoin paper published, for `edged bench energy` to be checked against.

"An Energy-Efficient Stream Join for the Internet of Things", DaMoN 2021 (TU Berlin).  Section 3.1
has the board, the probe (2 kHz), the idle power, windows of 10 s and runs of 2 minutes; Figure 3
(3.2.1) was read off the plot, ±0.05 W, its rates are powers of two; of Figures 4 (3.2.2) and 5
(3.2.3) the text gives the figures below, and no more was read.  A rate that a join sustains is the
highest of those that were tried.

Nothing here is an input of a model; the idle power alone is, in the board's profile
(`governors/profiles/jetson-nano.toml`).
"""

from __future__ import annotations

from governors.fit_nano import IDLE_W

WINDOW_S = 10
ABOVE_W_MIN = 0.2
"""Errors are told where the published value is at least so far above idle."""
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
"""W by rate; a shorter row ends where the join no longer keeps up."""
FIGURE4 = {
    "FB": "fixed batches of 1024 stop at 0.5 M tuples/s",
    "AB": "adaptive batches reach 1 M tuples/s and save up to 28 % against FB",
    "AB+FS": "with frequency scaling 1 M tuples/s, up to 20 % less again at high rates; together"
             " more than 1 W",
}  # fmt: skip
FB_RATE = 500_000
AB_SAVES, FS_SAVES, BOTH_SAVE_W = 0.28, 0.20, 1.0
FIGURE5_RATE = 10_000
FIGURE5 = {10: (4.93, 1.28), 100_000: (1.46, 1590.0)}
"""Batch: W, ms of latency (which leaves the waiting for the batch out).  The text does not say
whether 10 k tuples/s are of each stream: taken as such."""


def figure3(variant: str, rate: int) -> float | None:
    """W in Figure 3; None where there is no value."""
    values = FIGURE3.get(variant, ())
    at = RATES.index(rate) if rate in RATES else len(values)
    return values[at] if at < len(values) else None


def error_above_idle(watts: float | None, published: float | None) -> float | None:
    """Relative error of the power above idle, where the published one is high enough to tell."""
    if watts is None or published is None or published - IDLE_W < ABOVE_W_MIN - 1e-9:
        return None
    return (watts - published) / (published - IDLE_W)
