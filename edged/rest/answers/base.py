"""Common field types, faults and problems."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, StringConstraints
from typing_extensions import Required, TypedDict

Name = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,62}$"),
    Field(description="A name: a letter, then letters, digits, _ and -, in lower case, at most 63"),
]
Figures = dict[str, int | float | bool | str | None]
Provenance = Annotated[
    str, Field(description="measured, modelled or simulated", examples=["measured"])
]
Cursor = Annotated[str | None, Field(None, description="Cursor of the next page; null: the end")]


def etag_field(example: str) -> Any:
    """The field of a resource's ETag."""
    return Field(
        description="The ETag, for If-Match",
        examples=[example],
        json_schema_extra={"readOnly": True},
    )


class Fault(TypedDict, total=False):
    """A fault and its place: a dotted path, or the row and column of tuples."""

    where: Required[Annotated[str, Field(examples=["operators.joined.lef"])]]
    what: Required[Annotated[str, Field(examples=["unknown key"])]]
    do: Annotated[str, Field("", examples=["did you mean left?"])]


class Problem(TypedDict, total=False):
    """Why a request was refused (RFC 9457), and what to do about it."""

    type: Required[Annotated[str, Field(examples=["urn:edged:problem:not-found"])]]
    title: Required[Annotated[str, Field(examples=["Not found"])]]
    status: Required[Annotated[int, Field(examples=[404])]]
    detail: Required[Annotated[str, Field(examples=["there is no job power_curv"])]]
    do: Required[Annotated[str, Field(examples=["GET /v1/jobs lists them"])]]
    errors: Annotated[
        list[Fault], Field(default_factory=list, description="All faults, if there are several")
    ]
    retry_after_s: Annotated[int | None, Field(None, description="Value of the header Retry-After")]
