"""Request bodies in JSON, as pydantic models; unknown keys are refused.

The answers are in `edged.rest.answers`, which the typed client shares.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class RequestBody(BaseModel):
    """A JSON body of a request."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class KernelChange(RequestBody):
    """The kernel for an operator."""

    kernel: str = Field(
        pattern=r"^[a-z][a-z0-9_-]{0,62}$",
        description="A kernel's name, or `auto`: placement chooses",
        examples=["bucket"],
    )


class GovernorChange(RequestBody):
    """A new policy and its settings."""

    policy: str = Field(
        pattern=r"^[a-z][a-z0-9_]{0,62}$", examples=["race_to_idle"],
        description="hands_off, race_to_idle, power_cap, energy_budget or fixed; none: what the"
        " centre or the configuration says, or a job's document",
    )  # fmt: skip
    settings: dict[str, str | int | float | bool | list[Any] | dict[str, Any] | None] = Field(
        default_factory=dict, examples=[{}]
    )
    job: str | None = Field(
        None, pattern=r"^[a-z][a-z0-9_-]{0,62}$",
        description="Only for this job",
    )  # fmt: skip


class LogChange(RequestBody):
    """A new log level, valid until the next start."""

    level: Literal["debug", "info", "warning", "error"] = Field(examples=["debug"])


class GraphClaim(RequestBody):
    """A version of a graph, and how far its deployment is."""

    version: int = Field(ge=1, lt=2**31, examples=[3])
    digest: int = Field(ge=0, lt=2**56, description="Of the jobs of this version", examples=[77])
    state: Literal["deploying", "rescaling", "deployed", "stopped"] = Field(examples=["deploying"])
    daemons: list[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,62}$")]] = Field(
        max_length=200, description="Names of the graph's daemons", examples=[["gate", "site"]]
    )


class StatePart(RequestBody):
    """A part of a job's state."""

    offset: int = Field(ge=0, lt=2**40, description="Bytes before it; 0 begins", examples=[0])
    data: str = Field(max_length=60_000, description="Base64", examples=["AAAA"])
