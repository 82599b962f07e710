"""What all models share."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Name = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,62}$"),
    Field(description="A name: a letter, then letters, digits, _ and -, in lower case, at most 63"),
]
Figures = dict[str, int | float | bool | str | None]


class Answer(BaseModel):
    """What the API says.  Unknown keys of the daemon's are left out."""

    model_config = ConfigDict(
        extra="ignore", frozen=True, json_schema_serialization_defaults_required=True
    )


class Asked(BaseModel):
    """What the API is told.  Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Fault(Answer):
    """One thing that is wrong, and where: a dotted path, or the row and column of tuples."""

    where: str = Field(examples=["operators.joined.lef"])
    what: str = Field(examples=["unknown key"])
    do: str = Field("", examples=["did you mean left?"])


class Problem(Answer):
    """Why a request was refused (RFC 9457), and what to do about it."""

    type: str = Field(examples=["urn:edged:problem:not-found"])
    title: str = Field(examples=["Not found"])
    status: int = Field(examples=[404])
    detail: str = Field(examples=["there is no job power_curv"])
    do: str = Field(examples=["GET /v1/jobs lists them"])
    errors: list[Fault] = Field(
        default_factory=list, description="Every fault, where there are several"
    )
    retry_after_s: int | None = Field(None, description="As the header Retry-After")


def figures(part: dict[str, Any], *apart: str) -> Figures:
    """The plain values of a part of the snapshot, but for those that have a field of their own."""
    return {
        key: value
        for key, value in part.items()
        if key not in apart and (value is None or isinstance(value, (int, float, bool, str)))
    }
