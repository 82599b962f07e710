"""Answers about jobs and long operations."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import Required, TypedDict

from edged.rest.answers.base import Cursor, Fault, Problem, etag_field

DOCUMENT: dict[str, Any] = {
    "name": "power_curve",
    "streams": {
        "power": {
            "source": {"type": "http"},
            "columns": {"turbine": "string", "time": "timestamp", "power_kw": "float64?"},
            "time": "time",
        }
    },
    "operators": {
        "producing": {"type": "filter", "input": "power", "where": "power_kw > 0"}
    },
    "sinks": {"curve": {"type": "pages", "input": "producing"}},
}  # fmt: skip
"""A job document, for examples."""


class Job(TypedDict, total=False):
    """A job: its definition and state."""

    name: Required[Annotated[str, Field(examples=["power_curve"])]]
    version: Annotated[int, Field(1, description="Increases with every replacement", examples=[3])]
    created_us: Annotated[
        int, Field(0, description="Wall clock of its first definition", examples=[1795338538961019])
    ]
    state: Annotated[
        str, Field("running", description="running, paused, draining, drained, failed or shelved")
    ]
    origin: Annotated[str, Field("", examples=["api", "file:/etc/edged/jobs.d/power_curve.toml"])]
    since_us: Annotated[
        int | None, Field(None, description="Wall clock of the last change of state")
    ]
    problem: Annotated[str, Field("")]
    document: Required[Annotated[dict[str, Any], Field(examples=[DOCUMENT])]]
    notes: Annotated[
        list[str],
        Field(
            default_factory=list,
            description="State that a replacement kept, and state that it dropped",
        ),
    ]
    etag: Required[Annotated[str, etag_field('"3.1795338538961019"')]]


class Jobs(TypedDict, total=False):
    """A page of the jobs, by name."""

    items: Required[list[Job]]
    next: Cursor


class Verdict(TypedDict, total=False):
    """Whether the device accepts a job document, and its faults; where the document itself has
    none, the one for which the daemon refuses it."""

    valid: Required[bool]
    name: Annotated[str | None, Field(None, examples=["power_curve"])]
    faults: Annotated[list[Fault], Field(default_factory=list)]
    warnings: Annotated[
        list[str],
        Field(default_factory=list, examples=[["operators.joined: no reader"]]),
    ]
    notes: Annotated[
        list[str],
        Field(
            default_factory=list,
            description="What the job keeps of the one that it replaces, starts and forgets",
            examples=[["job power_curve keeps streams.power, sinks.curve"]],
        ),
    ]
    unchecked: Annotated[
        list[str],
        Field(
            default_factory=list,
            description="What is not checked, because the daemon does not answer",
            examples=[["whether the store has room for its memory"]],
        ),
    ]


class Explanation(TypedDict, total=False):
    """The plan of a job, as in `edged explain --json`."""

    plan: Required[
        Annotated[
            dict[str, Any],
            Field(
                description="Promises, streams, order, operators, sinks, warnings",
                examples=[{"name": "power_curve", "order": ["producing"]}],
            ),
        ]
    ]


class Step(TypedDict, total=False):
    """Progress of an operation."""

    step: Required[Annotated[str, Field(examples=["expressions"])]]
    done: Required[Annotated[int, Field(examples=[1])]]
    of: Required[Annotated[int, Field(examples=[3])]]


class Operation(TypedDict, total=False):
    """A long request."""

    id: Required[Annotated[str, Field(examples=["5f2b1c0d9e8a7766"])]]
    kind: Required[Annotated[str, Field(examples=["validate"])]]
    state: Required[Literal["running", "done", "failed"]]
    progress: Required[Step]
    started_us: Required[int]
    ended_us: Annotated[int | None, Field(None)]
    result: Annotated[Any, Field(None, description="Response of the request")]
    problem: Annotated[Problem | None, Field(None)]


class Operations(TypedDict, total=False):
    """Operations that run or ended recently, newest first."""

    items: Required[list[Operation]]
    next: Cursor


class StateExport(TypedDict, total=False):
    """The state of a job's operators, packed, on its way to another daemon."""

    name: Required[str]
    bytes: Required[Annotated[int, Field(description="Bytes that are ready, or have come")]]
    crc: Required[Annotated[int, Field(description="CRC-32 of these bytes")]]


class StateChunk(TypedDict, total=False):
    """A part of an exported state."""

    offset: Required[int]
    data: Required[Annotated[str, Field(description="Base64")]]
