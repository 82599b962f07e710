"""The energy policy in a job document (docs/energy.md describes the policies).

    [governor]
    policy = "power_cap"              # any of `governors.policies`
    settings = { watts = 5 }          # of the policy

The policy applies from the job's start until a command sets another for the job
(`edged.beat.jobs`).  Whether the board has what the policy needs, a power model or permission to
set clocks, is checked at run time; the job runs in either case.
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
    """A checked policy and its settings."""

    policy: str
    settings: dict[str, Any]


def parse(given: Mapping[str, Any]) -> GovernorPlan:
    """The table `governor` of a document.  Raises JobError."""
    doc.refuse_unknown("governor", given, KEYS)
    known = load_all()
    name = doc.choice("governor", given, "policy", sorted(known))
    settings = doc.table("governor", given, "settings", {})
    doc.refuse_unknown("governor.settings", settings, known[name].declared)
    try:
        Running(name, settings, CostModel(Unpriced()))
    except GovernorError as problem:
        raise JobError("governor.settings", str(problem)) from problem
    return GovernorPlan(name, settings)
