"""The daemon and what is around it: device, store, uplink, events, configuration."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import Required, TypedDict

from edged.rest.answers.base import Figures


class Histogram(TypedDict, total=False):
    """Counts between bounds; the last count is above the last bound."""

    bounds: Annotated[list[float], Field(default_factory=list)]
    counts: Annotated[list[int], Field(default_factory=list)]
    sum: Annotated[float, Field(0)]
    count: Annotated[int, Field(0)]


class Recovered(TypedDict, total=False):
    """How the daemon came up."""

    beat: Annotated[int, Field(0)]
    replayed_beats: Annotated[int, Field(0)]
    replayed_rows: Annotated[int, Field(0)]
    notes: Annotated[list[str], Field(default_factory=list)]


class Build(TypedDict, total=False):
    """What runs."""

    version: Annotated[str, Field("")]
    python: Annotated[str, Field("")]
    numba: Annotated[str, Field("")]
    platform: Annotated[str, Field("")]


class Process(TypedDict, total=False):
    """What the daemon's process takes."""

    cpu_s: Annotated[float | None, Field(None)]
    rss_bytes: Annotated[int | None, Field(None)]
    threads: Annotated[int | None, Field(None)]
    context_switches: Annotated[int | None, Field(None)]
    wakeups: Annotated[int | None, Field(None)]


class Device(TypedDict, total=False):
    """This device and its daemon."""

    device: Required[Annotated[str, Field(examples=["turbine-7"])]]
    version: Required[Annotated[str, Field(examples=["0.1.0"])]]
    state: Annotated[str, Field("running", description="running, draining or stopping")]
    epoch: Annotated[
        str, Field("", description="Changes only with a new store", examples=["2bbec416fcb7483c"])
    ]
    session: Annotated[int, Field(0, description="Counts the daemon's starts", examples=[12])]
    restarts: Annotated[int, Field(0, examples=[11])]
    pid: Annotated[int, Field(0)]
    uptime_s: Annotated[float, Field(0)]
    wall_us: Annotated[int | None, Field(None, description="The daemon's wall clock")]
    started_wall_us: Annotated[int | None, Field(None)]
    build: Annotated[Build, Field({"version": "", "python": "", "numba": "", "platform": ""})]
    process: Annotated[Process, Field({}, validate_default=True)]
    workers: Annotated[int, Field(0, description="Kernel threads")]
    beats: Annotated[int, Field(0, description="Since the daemon began")]
    beats_idle: Annotated[int | None, Field(None)]
    wakes: Annotated[int, Field(0, description="Times that the daemon's loop woke up")]
    rows: Annotated[int, Field(0, description="Tuples raced since the daemon began")]
    pages: Annotated[int, Field(0, description="Pages sealed since the daemon began")]
    latency_ms_p50: Annotated[
        float | None, Field(None, description="From arrival to durable, of late")
    ]
    latency_ms_p99: Annotated[float | None, Field(None)]
    legs: Annotated[
        dict[str, Histogram],
        Field(default_factory=dict, description="Microseconds of each leg from arrival to landing"),
    ]
    batch_rows: Annotated[Histogram, Field({"bounds": [], "counts": [], "sum": 0.0, "count": 0})]
    drops: Annotated[
        Figures, Field(default_factory=dict, description="Rows that were not raced, by reason")
    ]
    recovered: Annotated[
        Recovered, Field({"beat": 0, "replayed_beats": 0, "replayed_rows": 0, "notes": []})
    ]
    jobs: Annotated[list[str], Field(default_factory=list, examples=[["power_curve"]])]


class Health(TypedDict, total=False):
    """Whether the API lives, and the daemon answers."""

    api: Annotated[Literal["up"], Field("up")]
    daemon: Required[Literal["up", "down"]]


class Store(TypedDict, total=False):
    """What is durable and not acknowledged by the centre yet."""

    bytes: Annotated[int, Field(0, examples=[734003200])]
    bytes_max: Annotated[int | None, Field(None, description="null: as much as the disk holds")]
    backlog_bytes: Annotated[int, Field(0)]
    backlog_pages: Annotated[int, Field(0)]
    backlog_age_s: Annotated[
        float | None, Field(None, description="Age of the oldest page; null: none waits")
    ]
    oldest_page_us: Annotated[int | None, Field(None, description="Wall clock of the oldest page")]
    full: Annotated[bool, Field(False, description="Sources wait for room")]
    full_us: Annotated[int | None, Field(None, description="How long it was full, in all")]
    fsyncs: Annotated[int | None, Field(None)]
    log_bytes_since_snapshot: Annotated[int, Field(0)]
    set_aside_rows: Annotated[int, Field(0, description="Rows of inputs that killed the process")]


class Uplink(TypedDict, total=False):
    """The way to the centre."""

    configured: Required[bool]
    connected: Annotated[bool | None, Field(None)]
    state: Annotated[str | None, Field(None, description="sending, down, unauthorized or fenced")]
    problem: Annotated[str | None, Field(None)]
    pages_sent: Annotated[int | None, Field(None)]
    bytes_sent: Annotated[int | None, Field(None)]
    pages_acked: Annotated[int | None, Field(None)]
    retries: Annotated[int | None, Field(None)]
    alarms: Annotated[
        int | None, Field(None, description="What should never be; see docs/central.md")
    ]
    last_ack_us: Annotated[int | None, Field(None, description="Wall clock")]
    next_try_us: Annotated[int | None, Field(None, description="Wall clock")]
    backlog_pages: Annotated[int | None, Field(None)]
    backlog_bytes: Annotated[int | None, Field(None)]
    stuck: Annotated[
        list[dict[str, Any]],
        Field(default_factory=list, description="Streams that do not go on, and why"),
    ]
    figures: Annotated[
        Figures, Field(default_factory=dict, description="Whatever else the uplink counts")
    ]


class Event(TypedDict, total=False):
    """Something that happened."""

    id: Required[Annotated[int, Field(description="Rises, over restarts too")]]
    at_us: Required[Annotated[int, Field(description="Wall clock")]]
    kind: Required[Annotated[str, Field(examples=["job.paused"])]]
    level: Annotated[str, Field("info", examples=["info", "warning", "error"])]
    text: Annotated[str, Field("", examples=["job power_curve is paused"])]
    job: Annotated[str | None, Field(None)]
    facts: Annotated[dict[str, Any], Field(default_factory=dict)]


class Events(TypedDict, total=False):
    """A part of the log of events, oldest first."""

    items: Required[list[Event]]
    next: Annotated[
        str | None, Field(None, description="Cursor of what comes behind these; null: the end")
    ]
    missed: Annotated[
        int, Field(0, description="Events that were forgotten before the first of these")
    ]


class Setting(TypedDict, total=False):
    """One value of the configuration."""

    key: Required[Annotated[str, Field(examples=["store.directory"])]]
    value: Required[Annotated[Any, Field(examples=["/var/lib/edged"])]]
    origin: Required[Annotated[str, Field(examples=["file:/etc/edged/edged.toml:12"])]]
    secret: Annotated[bool, Field(False, description="The value is masked")]


class Config(TypedDict, total=False):
    """The values that the daemon runs with, and where each came from."""

    values: Required[list[Setting]]


class Reloaded(TypedDict, total=False):
    """What a reload did."""

    applied: Annotated[list[Any], Field(default_factory=list)]
    refused: Annotated[Any, Field(None)]


class Log(TypedDict, total=False):
    """What is logged."""

    level: Required[Annotated[str, Field(examples=["info"])]]
    was: Annotated[str, Field("", description="The level before", examples=["info"])]
