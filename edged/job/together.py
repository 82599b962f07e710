"""What jobs must not do to each other in one daemon."""

from __future__ import annotations

from collections.abc import Sequence

from edged.errors import ConfigError, JobError
from edged.job.plan import JobPlan

STORE_PER_MEMORY = 3
"""Least size of a bounded store, as a multiple of the jobs' memory."""


def check_together(plans: Sequence[JobPlan]) -> None:
    """Jobs of one daemon must not clash: names, and what their sinks write to.

    Raises ConfigError or JobError.
    """
    names = [plan.name for plan in plans]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two jobs are called {name}; rename one of them")
    owners: dict[str, str] = {}
    for plan in plans:
        for sink in plan.sinks.values():
            for claim in sink.claims():
                if owners.setdefault(claim, plan.name) != plan.name:
                    raise JobError(
                        f"{plan.name}.sinks.{sink.id}",
                        f"job {owners[claim]} makes {claim} already",
                        "name another stream, or another path",
                    )


def check_room(store_bytes_max: int | None, plans: Sequence[JobPlan]) -> None:
    """A bounded store must have room for a snapshot beside the one before it, and for a beat's
    inputs; raises ConfigError.

    Both are bounded by the jobs' memory; below that the store could be full for good.
    """
    least = STORE_PER_MEMORY * sum(plan.promises.memory_bytes for plan in plans)
    if store_bytes_max is not None and store_bytes_max < least:
        raise ConfigError(
            f"a store of {store_bytes_max} bytes is too small for the jobs' memory: allow "
            f"at least {least} bytes ({STORE_PER_MEMORY} times what they promise to stay below), "
            "or let them promise less memory"
        )
