"""The daemon and what is around it: device, store, uplink, events, configuration."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from api.models.base import Answer, Asked, Figures


class Histogram(Answer):
    """Counts between bounds; the last count is above the last bound."""

    bounds: list[float] = Field(default_factory=list)
    counts: list[int] = Field(default_factory=list)
    sum: float = 0
    count: int = 0


class Recovered(Answer):
    """How the daemon came up."""

    beat: int = 0
    replayed_beats: int = 0
    replayed_rows: int = 0
    notes: list[str] = Field(default_factory=list)


class Build(Answer):
    """What runs."""

    version: str = ""
    python: str = ""
    numba: str = ""
    platform: str = ""


class Process(Answer):
    """What the daemon's process takes."""

    cpu_s: float | None = None
    rss_bytes: int | None = None
    threads: int | None = None
    context_switches: int | None = None
    wakeups: int | None = None


class Device(Answer):
    """This device and its daemon."""

    device: str = Field(examples=["turbine-7"])
    version: str = Field(examples=["0.1.0"])
    state: str = Field("running", description="running, draining or stopping")
    epoch: str = Field(
        "", description="Changes only with a new store", examples=["2bbec416fcb7483c"]
    )
    session: int = Field(0, description="Counts the daemon's starts", examples=[12])
    restarts: int = Field(0, examples=[11])
    pid: int = 0
    uptime_s: float = 0
    wall_us: int | None = Field(None, description="The daemon's wall clock")
    started_wall_us: int | None = None
    build: Build = Build()
    process: Process = Process()
    workers: int = Field(0, description="Kernel threads")
    beats: int = Field(0, description="Since the daemon began")
    beats_idle: int | None = None
    wakes: int = Field(0, description="Times that the daemon's loop woke up")
    rows: int = Field(0, description="Tuples raced since the daemon began")
    pages: int = Field(0, description="Pages sealed since the daemon began")
    latency_ms_p50: float | None = Field(None, description="From arrival to durable, of late")
    latency_ms_p99: float | None = None
    legs: dict[str, Histogram] = Field(
        default_factory=dict, description="Microseconds of each leg from arrival to landing"
    )
    batch_rows: Histogram = Histogram()
    drops: Figures = Field(default_factory=dict, description="Rows that were not raced, by reason")
    recovered: Recovered = Recovered()
    jobs: list[str] = Field(default_factory=list, examples=[["power_curve"]])


class Health(Answer):
    """Whether the API lives, and the daemon answers."""

    api: Literal["up"] = "up"
    daemon: Literal["up", "down"]


class Store(Answer):
    """What is durable and not acknowledged by the centre yet."""

    bytes: int = Field(0, examples=[734003200])
    bytes_max: int | None = Field(None, description="null: as much as the disk holds")
    backlog_bytes: int = 0
    backlog_pages: int = 0
    backlog_age_s: float | None = Field(
        None, description="Age of the oldest page; null: none waits"
    )
    oldest_page_us: int | None = Field(None, description="Wall clock of the oldest page")
    full: bool = Field(False, description="Sources wait for room")
    full_us: int | None = Field(None, description="How long it was full, in all")
    fsyncs: int | None = None
    log_bytes_since_snapshot: int = 0
    set_aside_rows: int = Field(0, description="Rows of inputs that killed the process")


class Uplink(Answer):
    """The way to the centre."""

    configured: bool
    connected: bool | None = None
    state: str | None = Field(None, description="sending, down, unauthorized or fenced")
    problem: str | None = None
    pages_sent: int | None = None
    bytes_sent: int | None = None
    pages_acked: int | None = None
    retries: int | None = None
    alarms: int | None = Field(None, description="What should never be; see docs/central.md")
    last_ack_us: int | None = Field(None, description="Wall clock")
    next_try_us: int | None = Field(None, description="Wall clock")
    backlog_pages: int | None = None
    backlog_bytes: int | None = None
    stuck: list[dict[str, Any]] = Field(
        default_factory=list, description="Streams that do not go on, and why"
    )
    figures: Figures = Field(default_factory=dict, description="Whatever else the uplink counts")


class Event(Answer):
    """Something that happened."""

    id: int = Field(description="Rises, over restarts too")
    at_us: int = Field(description="Wall clock")
    kind: str = Field(examples=["job.paused"])
    level: str = Field("info", examples=["info", "warning", "error"])
    text: str = Field("", examples=["job power_curve is paused"])
    job: str | None = None
    facts: dict[str, Any] = Field(default_factory=dict)


class Events(Answer):
    """A part of the log of events, oldest first."""

    items: list[Event]
    next: str | None = Field(None, description="Cursor of what comes behind these; null: the end")
    missed: int = Field(0, description="Events that were forgotten before the first of these")


class Setting(Answer):
    """One value of the configuration."""

    key: str = Field(examples=["store.directory"])
    value: Any = Field(examples=["/var/lib/edged"])
    origin: str = Field(examples=["file:/etc/edged/edged.toml:12"])
    secret: bool = Field(False, description="The value is masked")


class Config(Answer):
    """The values that the daemon runs with, and where each came from."""

    values: list[Setting]


class Reloaded(Answer):
    """What a reload did."""

    applied: list[Any] = Field(default_factory=list)
    refused: Any = None


class Log(Answer):
    """What is logged."""

    level: str = Field(examples=["info"])
    was: str = Field("", description="The level before", examples=["info"])


class LogChange(Asked):
    """What is to be logged from now on, until the next start."""

    level: Literal["debug", "info", "warning", "error"] = Field(examples=["debug"])
