"""Streams, sources, operators, and tuples that come in."""

from __future__ import annotations

from pydantic import Field

from api.models.base import Answer, Asked, Figures


class Stream(Answer):
    """A stream of a job."""

    job: str = Field(examples=["power_curve"])
    name: str = Field(examples=["power"])
    source: str = Field("", description="Kind of its source", examples=["tcp"])
    address: str = Field("", description="Where its source listens", examples=["127.0.0.1:7400"])
    rows: int = Field(0, description="Rows raced")
    rows_per_s: float | None = Field(
        None, description="Rows raced a second, of late", examples=[1250.5]
    )
    staged: int = Field(0, description="Rows that wait for a beat")
    late: int = Field(0, description="Rows that came behind the watermark")
    refused_ahead: int = Field(0, description="Rows refused since their time is far in the future")
    producers: int = 0
    watermark_us: int | None = Field(None, description="Event time up to which all is there")
    ended: bool = Field(False, description="All producers have said the end")
    figures: Figures = Field(default_factory=dict, description="Whatever else is counted")


class Streams(Answer):
    """A page of the streams, by job and name."""

    items: list[Stream]
    next: str | None = Field(None, description="Cursor of the next page; null: the end")


class Fed(Answer):
    """A stream that a source feeds."""

    job: str = Field(examples=["power_curve"])
    stream: str = Field(examples=["power"])


class Source(Answer):
    """What feeds one or more streams."""

    name: str = Field("", examples=["tcp:127.0.0.1:7400"])
    kind: str = Field("", examples=["tcp"])
    address: str = Field("", examples=["127.0.0.1:7400"])
    streams: list[Fed] = Field(default_factory=list)
    connected: int | None = None
    bytes: int | None = None
    bytes_per_s: float | None = Field(None, description="Of late")
    rows: int | None = None
    rows_per_s: float | None = Field(None, description="Of late", examples=[1250.5])
    refused: int | None = None
    backpressure_us: int | None = Field(
        None, description="How long input was left with its senders, in all"
    )
    figures: Figures = Field(
        default_factory=dict,
        description="Messages, duplicates, and what was refused, by reason",
    )


class Sources(Answer):
    """A page of the sources, by name."""

    items: list[Source]
    next: str | None = Field(None, description="Cursor of the next page; null: the end")


class Operator(Answer):
    """An operator of a job."""

    job: str = Field(examples=["power_curve"])
    id: str = Field(examples=["joined"])
    type: str = Field("", examples=["interval_join"])
    state_bytes: int = 0
    kernel: str | None = Field(None, examples=["chain"])
    kernel_pinned: bool | None = Field(None, description="Chosen by hand")
    figures: Figures = Field(
        default_factory=dict, description="Rows, matches and whatever else it counts"
    )


class Operators(Answer):
    """A page of the operators, by job and id."""

    items: list[Operator]
    next: str | None = Field(None, description="Cursor of the next page; null: the end")


class KernelChange(Asked):
    """Which kernel an operator is to run."""

    kernel: str = Field(
        pattern=r"^[a-z][a-z0-9_-]{0,62}$",
        description="A kernel's name, or `auto`: placement chooses",
        examples=["bucket"],
    )


class KernelRuns(Answer):
    """Which kernel an operator runs."""

    job: str
    operator: str
    kernel: str
    pinned: bool


class Accepted(Answer):
    """Tuples that are durable."""

    stream: str = Field(examples=["power"])
    rows: int = Field(examples=[1000])
    replayed: bool = Field(
        False, description="An earlier request with this Idempotency-Key brought them"
    )
