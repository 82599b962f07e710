"""Answers about graphs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from typing_extensions import Required, TypedDict

from edged.rest.answers.base import Cursor, etag_field


class Graph(TypedDict, total=False):
    """A graph that this daemon takes part in."""

    name: Required[Annotated[str, Field(examples=["farm"])]]
    version: Required[Annotated[int, Field(description="The version that is claimed here")]]
    digest: Required[Annotated[int, Field(description="Of the jobs of this version")]]
    state: Required[Annotated[str, Field(description="deploying, rescaling, deployed or stopped")]]
    daemons: Annotated[list[str], Field(default_factory=list, examples=[["gate", "site"]])]
    at_us: Annotated[int, Field(0, description="Wall clock of the last change")]
    etag: Required[Annotated[str, etag_field('"3.77"')]]


class Graphs(TypedDict, total=False):
    """A page of the graphs, by name."""

    items: Required[list[Graph]]
    next: Cursor
