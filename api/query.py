"""Query parameters: a route takes those that it documents and refuses others.

A misspelt parameter would otherwise do nothing, and the answer would be one to another request.
"""

from __future__ import annotations

from collections.abc import Collection

from fastapi import Request

from api.problems import ApiProblem, ProblemFault
from edged.documents.reader import did_you_mean

FAULTS_MAX = 10
"""Most unknown parameters that a problem lists."""
NAME_CHARS_MAX = 80
"""Longest part of a name that a problem repeats."""


def refuse_unknown_parameters(request: Request, known: Collection[str]) -> None:
    """Raise ApiProblem 422 for query parameters that are not `known`, with the nearest ones."""
    unknown = [name for name in request.query_params if name not in known]
    if not unknown:
        return
    none = "remove it: this resource takes no query parameters"
    faults = tuple(
        ProblemFault(
            f"query.{name[:NAME_CHARS_MAX]}",
            "unknown parameter",
            did_you_mean(name[:NAME_CHARS_MAX], known) if known else none,
        )
        for name in unknown[:FAULTS_MAX]
    )
    first = f"{faults[0].where}: {faults[0].what}"
    more = f", and {len(unknown) - 1} more" if len(unknown) > 1 else ""
    raise ApiProblem("invalid", first + more, "" if more else faults[0].do, faults)
