"""Answers about streams, sources, operators and accepted tuples."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from typing_extensions import Required, TypedDict

from edged.rest.answers.base import Cursor, Figures


class Stream(TypedDict, total=False):
    """A stream of a job."""

    job: Required[Annotated[str, Field(examples=["power_curve"])]]
    name: Required[Annotated[str, Field(examples=["power"])]]
    source: Annotated[str, Field("", description="Kind of its source", examples=["tcp"])]
    address: Annotated[
        str, Field("", description="Address of its source", examples=["127.0.0.1:7400"])
    ]
    rows: Annotated[int, Field(0, description="Rows raced")]
    rows_per_s: Annotated[
        float | None, Field(None, description="Rows raced a second, recently", examples=[1250.5])
    ]
    staged: Annotated[int, Field(0, description="Rows that wait for a beat")]
    late: Annotated[
        int, Field(0, description="Rows that arrived after the watermark had passed them")
    ]
    refused_ahead: Annotated[
        int, Field(0, description="Rows refused because their time is far in the future")
    ]
    producers: Annotated[int, Field(0)]
    producers_behind: Annotated[
        int,
        Field(0, description="Producers so far behind that the stream no longer waits for them"),
    ]
    watermark_us: Annotated[
        int | None, Field(None, description="Event time before which no more rows are expected")
    ]
    silent_us: Annotated[
        int | None,
        Field(
            None,
            description="Time since the last rows; null before the first, after the last, and"
            " while the stream is not read",
        ),
    ]
    silent_after_us: Annotated[
        int | None,
        Field(None, description="Longest silence that is expected; null: not known yet"),
    ]
    ended: Annotated[bool, Field(False, description="All producers have ended the stream")]
    figures: Annotated[Figures, Field(default_factory=dict, description="Further counters")]


class Streams(TypedDict, total=False):
    """A page of the streams, by job and name."""

    items: Required[list[Stream]]
    next: Cursor


class Fed(TypedDict, total=False):
    """A stream that a source feeds."""

    job: Required[Annotated[str, Field(examples=["power_curve"])]]
    stream: Required[Annotated[str, Field(examples=["power"])]]


class Source(TypedDict, total=False):
    """A source that feeds one or more streams."""

    name: Annotated[str, Field("", examples=["tcp:127.0.0.1:7400"])]
    kind: Annotated[str, Field("", examples=["tcp"])]
    address: Annotated[str, Field("", examples=["127.0.0.1:7400"])]
    streams: Annotated[list[Fed], Field(default_factory=list)]
    connected: Annotated[int | None, Field(None)]
    bytes: Annotated[int | None, Field(None)]
    bytes_per_s: Annotated[float | None, Field(None, description="Recently")]
    rows: Annotated[int | None, Field(None)]
    rows_per_s: Annotated[float | None, Field(None, description="Recently", examples=[1250.5])]
    refused: Annotated[int | None, Field(None)]
    backpressure_us: Annotated[
        int | None, Field(None, description="Total time of backpressure on senders")
    ]
    problem: Annotated[str, Field("", description="Why nothing is read; empty: it is read")]
    figures: Annotated[
        Figures,
        Field(
            default_factory=dict,
            description="Messages, duplicates, and refusals by reason",
        ),
    ]


class Sources(TypedDict, total=False):
    """A page of the sources, by name."""

    items: Required[list[Source]]
    next: Cursor


class Operator(TypedDict, total=False):
    """An operator of a job."""

    job: Required[Annotated[str, Field(examples=["power_curve"])]]
    id: Required[Annotated[str, Field(examples=["joined"])]]
    type: Annotated[str, Field("", examples=["interval_join"])]
    state_bytes: Annotated[int, Field(0)]
    kernel: Annotated[str | None, Field(None, examples=["chain"])]
    kernel_pinned: Annotated[
        bool | None, Field(None, description="Set by a command, not by placement")
    ]
    figures: Annotated[
        Figures,
        Field(default_factory=dict, description="Rows, matches and further counters"),
    ]


class Operators(TypedDict, total=False):
    """A page of the operators, by job and id."""

    items: Required[list[Operator]]
    next: Cursor


class KernelRuns(TypedDict, total=False):
    """The kernel of an operator."""

    job: Required[str]
    operator: Required[str]
    kernel: Required[str]
    pinned: Required[bool]


class Accepted(TypedDict, total=False):
    """Accepted tuples, which are durable."""

    stream: Required[Annotated[str, Field(examples=["power"])]]
    rows: Required[Annotated[int, Field(examples=[1000])]]
    replayed: Annotated[
        bool, Field(False, description="An earlier request with this Idempotency-Key sent them")
    ]
    lost: Annotated[
        int | None,
        Field(
            None,
            description="Rows dropped by their times, late or too far ahead, those of concurrent "
            "requests to the stream included; null: not known, see `late` of the stream",
            examples=[0],
        ),
    ]
