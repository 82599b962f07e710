"""A collector's counters."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import asdict, dataclass, field
from typing import Any

from edged.central.admission import CONFLICT, DAMAGED, FENCED, FULL, GAP, QUOTA, DeliveryOutcome
from edged.metrics.central import DEVICES_MAX


@dataclass(slots=True)
class CollectorStats:
    """Counters since the start.  The most recent devices are kept, at most `devices_max`."""

    devices_max: int = DEVICES_MAX

    requests: int = 0
    pages: int = 0
    bytes: int = 0
    duplicates: int = 0
    conflicts: int = 0
    gaps: int = 0
    fenced: int = 0
    damaged: int = 0
    full: int = 0
    quota: int = 0
    refused: int = 0
    unauthorized: int = 0
    codes: dict[int, int] = field(default_factory=dict)
    """Answers by HTTP status."""
    devices: OrderedDict[str, dict[str, int]] = field(default_factory=OrderedDict)

    def count(self, device: str, outcome: DeliveryOutcome, now_us: int) -> None:
        """Count a delivery of `device` decided at `now_us` (wall clock)."""
        size = sum(len(page) for _, page in outcome.landed)
        self.pages += len(outcome.landed)
        self.bytes += size
        self.duplicates += outcome.duplicates
        if outcome.problem is not None:
            self._count_problem(outcome.problem.problem)
        seen = self.devices.setdefault(device, {"pages": 0, "bytes": 0, "last_seen_us": 0})
        seen["pages"] += len(outcome.landed)
        seen["bytes"] += size
        seen["last_seen_us"] = now_us
        self.devices.move_to_end(device)
        while len(self.devices) > self.devices_max:
            self.devices.popitem(last=False)

    def _count_problem(self, problem: str) -> None:
        self.conflicts += problem == CONFLICT
        self.gaps += problem == GAP
        self.fenced += problem == FENCED
        self.damaged += problem == DAMAGED
        self.full += problem == FULL
        self.quota += problem == QUOTA
        self.refused += problem not in (CONFLICT, GAP, FENCED, DAMAGED, FULL, QUOTA)

    def to_json(self) -> dict[str, Any]:
        """The counters as a JSON object."""
        return {key: value for key, value in asdict(self).items() if key != "devices_max"}
