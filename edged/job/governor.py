"""A job's energy policy, where its document names one (docs/energy.md says what policies do).

    [governor]
    policy = "power_cap"              # any of `governors.policies`
    settings = { watts = 5 }          # of the policy

It counts from when the job runs until a command names another for it (`edged.beat.jobs`).  Whether
a board has what the policy needs, a power model or a right to set clocks, the daemon finds out: the
job runs in any case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edged.documents import reader as doc
from edged.errors import JobError
from governors.board_tariffs import Unpriced
from governors.cost import CostModel
from governors.errors import GovernorError
from governors.policies.base import load_all
from governors.policies.running import Running

KEYS = ("policy", "settings")


@dataclass(frozen=True)
class GovernorPlan:
    """A checked choice."""

    policy: str
    settings: dict[str, Any]


def parse(given: Mapping[str, Any]) -> GovernorPlan:
    """The table `governor` of a document.  Raises JobError."""
    doc.refuse_unknown("governor", given, KEYS)
    known = load_all()
    name = doc.choice("governor", given, "policy", sorted(known))
    settings = doc.table("governor", given, "settings", {})
    doc.refuse_unknown("governor.settings", settings, known[name].defaults)
    try:
        Running(name, settings, CostModel(Unpriced()))
    except GovernorError as problem:
        raise JobError("governor.settings", str(problem)) from problem
    return GovernorPlan(name, settings)
