"""Jobs, and requests about them that take long."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, computed_field

from api.models.base import Answer, Fault, Problem

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


class Job(Answer):
    """A job: its definition and how it stands."""

    name: str = Field(examples=["power_curve"])
    version: int = Field(1, description="Rises with every replacement", examples=[3])
    created_us: int = Field(
        0, description="Wall clock of its first definition", examples=[1795338538961019]
    )
    state: str = Field("running", description="running, paused, draining, drained or failed")
    origin: str = Field("", examples=["api", "file:/etc/edged/jobs.d/power_curve.toml"])
    since_us: int | None = Field(None, description="Wall clock of the last change of state")
    problem: str = ""
    document: dict[str, Any] = Field(examples=[DOCUMENT])
    notes: list[str] = Field(
        default_factory=list, description="What a replacement kept of the state, and what not"
    )

    @computed_field(description="The ETag, for If-Match", examples=['"3.1795338538961019"'])  # type: ignore[prop-decorator]
    @property
    def etag(self) -> str:
        """No other definition of this name has it, or ever had."""
        return f'"{self.version}.{self.created_us}"'


class Jobs(Answer):
    """A page of the jobs, by name."""

    items: list[Job]
    next: str | None = Field(None, description="Cursor of the next page; null: the end")


class Verdict(Answer):
    """Whether a job document is right, and everything that is wrong with it."""

    valid: bool
    name: str | None = Field(None, examples=["power_curve"])
    faults: list[Fault] = Field(default_factory=list)
    warnings: list[str] = Field(
        default_factory=list, examples=[["operators.joined: nobody reads what it makes"]]
    )


class Explanation(Answer):
    """What a job would do, as `edged explain --json` says it."""

    plan: dict[str, Any] = Field(
        description="Promises, streams, order, operators, sinks, warnings",
        examples=[{"name": "power_curve", "order": ["producing"]}],
    )


class Step(Answer):
    """How far an operation is."""

    step: str = Field(examples=["expressions"])
    done: int = Field(examples=[1])
    of: int = Field(examples=[3])


class Operation(Answer):
    """A request that takes long."""

    id: str = Field(examples=["5f2b1c0d9e8a7766"])
    kind: str = Field(examples=["validate"])
    state: Literal["running", "done", "failed"]
    progress: Step
    started_us: int
    ended_us: int | None = None
    result: Any = Field(None, description="What the request would have been answered with")
    problem: Problem | None = None


class Operations(Answer):
    """Operations that run or ended lately, newest first."""

    items: list[Operation]
    next: str | None = Field(None, description="Cursor of the next page; null: the end")
