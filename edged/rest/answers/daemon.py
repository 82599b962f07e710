"""Answers about the daemon: device, store, uplink, events, configuration."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import Required, TypedDict

from edged.rest.answers.base import Figures


class Histogram(TypedDict, total=False):
    """A histogram: counts by upper bound; the last count is above the last bound."""

    bounds: Annotated[list[float], Field(default_factory=list)]
    counts: Annotated[list[int], Field(default_factory=list)]
    sum: Annotated[float, Field(0)]
    count: Annotated[int, Field(0)]


class Recovered(TypedDict, total=False):
    """Recovery at the daemon's start."""

    beat: Annotated[int, Field(0)]
    replayed_beats: Annotated[int, Field(0)]
    replayed_rows: Annotated[int, Field(0)]
    notes: Annotated[list[str], Field(default_factory=list)]


class Build(TypedDict, total=False):
    """Versions of the running software."""

    version: Annotated[str, Field("")]
    python: Annotated[str, Field("")]
    numba: Annotated[str, Field("")]
    platform: Annotated[str, Field("")]
    kernels: Annotated[str, Field("", description="`ahead of time` or `numba`")]


class Process(TypedDict, total=False):
    """Resource usage of the daemon's process."""

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
    session: Annotated[
        int, Field(0, description="Number of starts of the daemon on this store", examples=[12])
    ]
    restarts: Annotated[int, Field(0, examples=[11])]
    pid: Annotated[int, Field(0)]
    uptime_s: Annotated[float, Field(0)]
    wall_us: Annotated[int | None, Field(None, description="The daemon's wall clock")]
    started_wall_us: Annotated[int | None, Field(None)]
    build: Annotated[Build, Field(dict.fromkeys(Build.__annotations__, ""))]
    process: Annotated[Process, Field({}, validate_default=True)]
    workers: Annotated[int, Field(0, description="Kernel threads")]
    beats: Annotated[int, Field(0, description="Since the daemon's start")]
    beats_idle: Annotated[int | None, Field(None)]
    wakes: Annotated[int, Field(0, description="Wake-ups of the daemon's event loop")]
    rows: Annotated[int, Field(0, description="Tuples raced since the daemon's start")]
    pages: Annotated[int, Field(0, description="Pages sealed since the daemon's start")]
    latency_ms_p50: Annotated[
        float | None, Field(None, description="From arrival to durable, of the last minute")
    ]
    latency_ms_p99: Annotated[float | None, Field(None)]
    promise_missed: Annotated[
        bool, Field(False, description="Results are late: a latency promise is missed")
    ]
    saturated: Annotated[
        bool, Field(False, description="Input arrives faster than it is processed")
    ]
    legs: Annotated[
        dict[str, Histogram],
        Field(
            default_factory=dict, description="Microseconds of each stage from arrival to landing"
        ),
    ]
    batch_rows: Annotated[Histogram, Field({"bounds": [], "counts": [], "sum": 0.0, "count": 0})]
    drops: Annotated[
        Figures, Field(default_factory=dict, description="Rows dropped before the race, by reason")
    ]
    recovered: Annotated[
        Recovered, Field({"beat": 0, "replayed_beats": 0, "replayed_rows": 0, "notes": []})
    ]
    jobs: Annotated[list[str], Field(default_factory=list, examples=[["power_curve"]])]


class Index(TypedDict):
    """The index of the API."""

    version: Annotated[str, Field(description="Version of edged", examples=["0.1.0"])]
    links: Annotated[
        dict[str, str],
        Field(
            description="Paths of the resources by the operationId of their GET",
            examples=[{"jobs": "/v1/jobs"}],
        ),
    ]


class Health(TypedDict, total=False):
    """Whether the API runs and the daemon answers."""

    api: Annotated[Literal["up"], Field("up")]
    daemon: Required[Literal["up", "down"]]


class Gap(TypedDict, total=False):
    """A range that is lost for good: pages of a partition, or batches of a producer."""

    reason: Required[Annotated[str, Field(examples=["damaged", "dropped"])]]
    stream: Required[str]
    first: Required[Annotated[int, Field(description="First sequence number of the range")]]
    last: Required[int]
    partition: Annotated[int | None, Field(None, description="null: batches of a producer")]
    job: Annotated[str, Field("")]
    producer: Annotated[str, Field("", description="empty: the unnamed producer")]
    first_us: Annotated[int | None, Field(None, description="First event time, where known")]
    last_us: Annotated[int | None, Field(None)]
    rows: Annotated[int | None, Field(None, description="null: unknown")]
    found_us: Annotated[int, Field(0, description="Wall clock")]
    detail: Annotated[str, Field("")]


class Gaps(TypedDict, total=False):
    """What the store has lost for good since it was made."""

    count: Annotated[int, Field(0, description="Number of ranges")]
    pages: Annotated[int, Field(0)]
    rows: Annotated[int, Field(0, description="As far as they are known")]
    newest: Annotated[list[Gap], Field(default_factory=list, description="Oldest first")]


class Store(TypedDict, total=False):
    """The store: data that is durable and not yet acknowledged by the centre."""

    bytes: Annotated[int, Field(0, examples=[734003200])]
    bytes_max: Annotated[int | None, Field(None, description="null: limited by the disk")]
    disk_bytes: Annotated[int | None, Field(None, description="Size of the store's file system")]
    disk_free_bytes: Annotated[int | None, Field(None)]
    room_bytes: Annotated[
        int | None,
        Field(None, description="What the store may still take, by its limit and its disk"),
    ]
    fill: Annotated[
        float | None,
        Field(None, description="Share of the limit, or of the disk without one, that is taken"),
    ]
    backlog_bytes: Annotated[int, Field(0)]
    backlog_pages: Annotated[int, Field(0)]
    held_pages: Annotated[
        int,
        Field(
            0,
            description="Pages of the backlog that wait by design: for an upload window, or within"
            " a job's upload_within",
        ),
    ]
    backlog_age_s: Annotated[
        float | None, Field(None, description="Age of the oldest page; null: no page waits")
    ]
    oldest_page_us: Annotated[int | None, Field(None, description="Wall clock of the oldest page")]
    full: Annotated[bool, Field(False, description="Sources wait until the store has room")]
    full_us: Annotated[int | None, Field(None, description="Total time that the store was full")]
    fsyncs: Annotated[int | None, Field(None)]
    log_bytes_since_snapshot: Annotated[int, Field(0)]
    gaps: Annotated[
        Gaps, Field({"count": 0, "pages": 0, "rows": 0, "newest": []}, validate_default=True)
    ]
    set_aside_rows: Annotated[
        int, Field(0, description="Rows set aside because they crashed the process")
    ]


class Uplink(TypedDict, total=False):
    """The connection to the centre."""

    configured: Required[bool]
    connected: Annotated[bool | None, Field(None)]
    state: Annotated[str | None, Field(None, description="sending, down, unauthorized or fenced")]
    problem: Annotated[str | None, Field(None)]
    pages_sent: Annotated[int | None, Field(None)]
    bytes_sent: Annotated[int | None, Field(None)]
    pages_acked: Annotated[int | None, Field(None)]
    retries: Annotated[int | None, Field(None)]
    alarms: Annotated[
        int | None, Field(None, description="Violations of an invariant; see docs/central.md")
    ]
    last_ack_us: Annotated[int | None, Field(None, description="Wall clock")]
    next_try_us: Annotated[int | None, Field(None, description="Wall clock")]
    backlog_pages: Annotated[int | None, Field(None)]
    backlog_bytes: Annotated[int | None, Field(None)]
    windows: Annotated[
        list[list[int]],
        Field(default_factory=list, description="Upload windows, seconds since midnight UTC"),
    ]
    open: Annotated[
        bool | None, Field(None, description="Whether pages may be sent: the windows are open")
    ]
    stuck: Annotated[
        list[dict[str, Any]],
        Field(default_factory=list, description="Streams that are blocked, with the reason"),
    ]
    figures: Annotated[Figures, Field(default_factory=dict, description="Further counters")]


class Event(TypedDict, total=False):
    """An entry of the event log."""

    id: Required[Annotated[int, Field(description="Increasing, also across restarts")]]
    at_us: Required[Annotated[int, Field(description="Wall clock")]]
    kind: Required[Annotated[str, Field(examples=["job.paused"])]]
    level: Annotated[str, Field("info", examples=["info", "warning", "error"])]
    text: Annotated[str, Field("", examples=["job power_curve is paused"])]
    job: Annotated[str | None, Field(None)]
    facts: Annotated[dict[str, Any], Field(default_factory=dict)]


class Events(TypedDict, total=False):
    """A part of the event log, oldest first."""

    items: Required[list[Event]]
    next: Annotated[
        str | None, Field(None, description="Cursor of the events after these; null: the end")
    ]
    missed: Annotated[int, Field(0, description="Events dropped before the first of these")]


class Setting(TypedDict, total=False):
    """One value of the configuration."""

    key: Required[Annotated[str, Field(examples=["store.directory"])]]
    value: Required[Annotated[Any, Field(examples=["/var/lib/edged"])]]
    origin: Required[Annotated[str, Field(examples=["file:/etc/edged/edged.toml:12"])]]
    secret: Annotated[bool, Field(False, description="The value is masked")]


class Config(TypedDict, total=False):
    """The running configuration, with the origin of each value."""

    values: Required[list[Setting]]


class Reloaded(TypedDict, total=False):
    """The result of a reload."""

    applied: Annotated[list[Any], Field(default_factory=list)]
    refused: Annotated[Any, Field(None)]


class Log(TypedDict, total=False):
    """The log level."""

    level: Required[Annotated[str, Field(examples=["info"])]]
    was: Annotated[str, Field("", description="The previous level", examples=["info"])]
