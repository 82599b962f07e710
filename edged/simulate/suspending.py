"""Whether a suspend between beats pays for a job on a board, in figures and in words."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from edged.documents.units import show_duration
from edged.job.plan import JobPlan
from edged.simulate.work import COMMIT_US
from governors.board_tariffs import suspend_cost
from governors.profile import BoardProfile
from governors.suspend import SuspendCost
from governors.tariff import Tariff


@dataclass(frozen=True)
class SuspendOutlook:
    """The figures of one job on one board."""

    cost: SuspendCost | None
    """None: the watts of the suspended board are not known, or a source would be deaf."""
    deaf: tuple[str, ...]
    """Streams whose source does not poll, with its kind."""
    latency_us: int

    @property
    def promise_us_min(self) -> float | None:
        """The shortest promise with which a suspend pays; None: none does."""
        if self.cost is None or not math.isfinite(self.cost.wait_us_min):
            return None
        return self.cost.wait_us_min + COMMIT_US


def suspend_outlook(
    tariff: Tariff, board: BoardProfile, plan: JobPlan, watts: float
) -> SuspendOutlook:
    """`watts`: of the suspended board, 0 for its profile's."""
    deaf = tuple(
        f"{s.section}.{name} ({s.source.kind})"
        for name, s in plan.streams.items() if not s.source.polls
    )  # fmt: skip
    top_hz = max(cluster.opps[-1].hz for cluster in board.clusters)
    cost = None if deaf else suspend_cost(tariff, board, watts, top_hz)
    return SuspendOutlook(cost, deaf, plan.promises.latency_us)


def suspend_document(outlook: SuspendOutlook) -> dict[str, Any]:
    """The figures as JSON values."""
    cost, promise_us = outlook.cost, outlook.promise_us_min
    return {
        "deaf": list(outlook.deaf),
        "watts": None if cost is None else cost.watts,
        "source": "" if cost is None else cost.source,
        "idle_watts": None if cost is None else cost.idle_watts,
        "transition_s": None if cost is None else cost.transition_us / 1e6,
        "transition_watts": None if cost is None else cost.transition_watts,
        "break_even_s": None if promise_us is None or cost is None else cost.break_even_us / 1e6,
        "promise_s_min": None if promise_us is None else promise_us / 1e6,
        "pays": promise_us is not None and outlook.latency_us >= promise_us,
    }


def suspend_lines(outlook: SuspendOutlook) -> list[str]:
    """The outlook in words."""
    cost, promise_us = outlook.cost, outlook.promise_us_min
    if outlook.deaf:
        return [
            f"suspend: not with {', '.join(outlook.deaf)}: a source with peers would miss input"
        ]
    if cost is None:
        return ["suspend: the watts of the suspended board are not known: measure its whole input,"
                " and pass --suspend-watts"]  # fmt: skip
    if promise_us is None:
        return [f"suspend: never pays: {cost.watts:g} W suspended, {cost.idle_watts:.2f} W idle"]
    pays = "pays" if outlook.latency_us >= promise_us else "does not pay"
    return [
        f"suspend: {pays} with a promise of {show_duration(outlook.latency_us)}; it does from"
        f" {promise_us / 1e6:.1f} s on: {cost.break_even_us / 1e6:.1f} s to break even"
        f" ({cost.watts:g} W suspended, by {cost.source}; {cost.idle_watts:.2f} W idle;"
        f" {cost.transition_us / 1e6:g} s to enter and leave,"
        f" {'timed' if cost.timed else 'assumed'}, at {cost.transition_watts:.2f} W), and the time"
        " that the clock's whole seconds and leaving take"
    ]
