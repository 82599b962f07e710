"""The price of energy for merges of tables: dear on battery, cheap where the board is awake anyway.

A second of merging costs the power of a busy core, in a board that would sleep otherwise also that
of staying awake.  While pages are sent the radio has the board awake, so that only the core counts.
A joule while the battery charges is worth a part of one out of it.  Merges run in beats only: no
price wakes an idle board.
"""

from __future__ import annotations

from collections.abc import Callable

from edged.energy.actuation import Windows
from edged.tables.costs import MergePricing
from governors.policies.base import Battery
from governors.tariff import Tariff

CHARGING_SHARE = 0.25
"""Worth of a joule while the battery charges, beside one out of it."""
UPLOAD_US = 5_000_000
"""Time after pages were given to the uplink in which the radio has the board awake."""
PRICE_US = 1_000_000
"""Least time between two looks."""


class MergePrices:
    """Sets the price of a daemon's merges; one thread."""

    def __init__(self, tariff: Tariff | None, clock_hz: Callable[[], int | None]) -> None:
        """`clock_hz` is the CPU's current clock."""
        self._tariff, self._clock_hz = tariff, clock_hz
        self._looked_us = -PRICE_US

    def set(
        self,
        pricing: MergePricing,
        battery: Callable[[int], Battery | None],
        held: Windows | None,
        now_us: int,
    ) -> None:
        """Set the price as of now, before a race.  A board without a battery pays the whole price,
        unless it is awake anyway."""
        if not pricing.states or now_us - self._looked_us < PRICE_US:
            return
        self._looked_us = now_us
        share, why, charge = 1.0, list[str](), battery(now_us)
        if charge is not None and charge.charging:
            share, why = CHARGING_SHARE, ["the battery charges"]
        hz = self._clock_hz()
        if self._tariff is not None and hz:
            busy = self._tariff.race_watts("cpu", hz, 1.0) - self._tariff.idle_watts
            pricing.watts = busy
            sent = held is not None and held.passed_us and now_us - held.passed_us < UPLOAD_US
            if sent and busy > 0:
                share *= max(0.0, busy - self._tariff.awake_watts) / busy
                why.append("pages are sent")
        pricing.share, pricing.why = share, " and ".join(why)
