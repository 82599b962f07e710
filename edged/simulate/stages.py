"""Prices of a beat's stages: what `edged explain --board` shows beside a prediction.

Times are wall times of the machine of `work`, measured, not the board's. They are least squares
over the stage times of the seven loads of `edged bench cost` (25 November 2026, 19:35, with the
prices of `work`), at most 38 % off at one load, the uplink's 81 %. The stage of log and fsync
waits for the disk, so the sum is above the CPU time. Log and fsync are not told apart.

The energy of a wake is modelled: it is the board's figure, null where its profile has none.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from governors.board_tariffs import ModelTariff
from governors.power import PowerModel
from governors.profile import BoardProfile


@dataclass(frozen=True)
class StagePrice:
    """Wall time of a stage of a beat on the measured machine."""

    stage: str
    thread: str
    us_per_beat: float
    ns_per_tuple: float


PRICES = (
    StagePrice("receive and decode", "beats", 592, 6.9),
    StagePrice("operators", "beats", 938, 16.6),
    StagePrice("pages", "beats", 202, 0.0),
    StagePrice("log and fsync", "commit", 766, 17.3),
    StagePrice("acks", "commit", 93, 0.3),
    StagePrice("pages to the uplink", "commit", 56, 0.4),
)
"""The pages' price of a tuple is within the noise: one tuple in a hundred finds a match there."""


def stage_prices(board: BoardProfile) -> dict[str, Any]:
    """The prices as a JSON document; times are measured, the joules of a wake modelled."""
    wake_j = ModelTariff(PowerModel(board)).wake_j
    return {
        "provenance": "measured", "machine": "the measured one, not the board",
        "stages": [asdict(price) for price in PRICES],
        "wake": {"provenance": "modelled", "joules": wake_j or None},
    }  # fmt: skip


def lines(prices: dict[str, Any]) -> list[str]:
    """The prices as text."""
    found = ["a beat's stages (measured wall time, on another machine):"]
    found += [
        f"  {p['stage']:<20} {p['us_per_beat']:>5.0f} µs a beat,"
        f" {p['ns_per_tuple']:>4.1f} ns a tuple"
        for p in prices["stages"]
    ]
    wake_j = prices["wake"]["joules"]
    found.append("  wake: no figure" if wake_j is None else f"  wake: {wake_j:.2g} J (modelled)")
    return found
