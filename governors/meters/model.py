"""The power model as a meter, with provenance `modelled`.

It gives joules: mean watts since the previous reading times that interval.  Trapezoids between
momentary watts would follow the load at those moments, which is meaningless for beats of
milliseconds.
"""

from __future__ import annotations

from governors.energy import Provenance
from governors.meters.base import (
    COUNTER_SPAN_US,
    BoardLike,
    Found,
    Missing,
    PlainMeter,
    Reading,
    opener,
)
from governors.meters.rail_labels import COVERS, SUMS
from governors.meters.settings import MeterSettings, Modelled
from governors.sysfs import Sysfs


class Model(PlainMeter):
    """Meter over a power model."""

    name = "model"
    rank = 90  # used where nothing is measured
    covers = COVERS
    sums = SUMS
    provenance = Provenance.MODELLED

    def __init__(self, model: Modelled) -> None:
        self.rails, self.interval_us = model.rails, model.interval_us
        self.span_us: int | None = COUNTER_SPAN_US
        self._watts = model.watts
        self._joules = dict.fromkeys((rail.name for rail in model.rails), 0.0)
        self._last_us: int | None = None

    def read(self, now_us: int) -> list[Reading]:
        """Joules of each rail since the first reading."""
        watts = self._watts(now_us)
        since_us, self._last_us = self._last_us, now_us
        passed_s = 0.0 if since_us is None else (now_us - since_us) / 1e6
        readings = []
        for rail in self.rails:
            rail_watts = watts.get(rail.name)
            self._joules[rail.name] += (rail_watts or 0.0) * passed_s
            lost = "the model has no figure" if rail_watts is None else ""
            readings.append(Reading(rail, now_us, rail_watts, self._joules[rail.name], lost))
        return readings


@opener("model")
def find(sysfs: Sysfs, board: BoardLike, settings: MeterSettings) -> Found:
    """The configured model."""
    if settings.model is not None:
        return Found((Model(settings.model),))
    what = f"no power model of {board.profile_name or board.name}"
    return Found(missing=(Missing("model", what, ""),))
