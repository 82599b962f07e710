"""Made by `python -m api.generate` from docs/openapi.json: do not edit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypedDict

from edged.rest.transport import Transport, path_of


class Accepted(TypedDict):
    """Tuples that are durable."""

    replayed: bool
    """An earlier request with this Idempotency-Key brought them"""
    rows: int
    stream: str


class Board(TypedDict):
    """What was detected, what may be read and what set."""

    clocks: list[Clock]
    """As they stand now"""
    knobs: list[Knob]
    """What may be set, by `writer`"""
    meters: list[Meter]
    missing: list[str]
    """What cannot be read, and why"""
    model: str | None
    name: str | None
    present: bool
    """false: the daemon watches no board"""
    profile: str | None
    simulated: bool | None
    switches: list[Switch]
    writer: Writer


class Build(TypedDict):
    """What runs."""

    numba: str
    platform: str
    python: str
    version: str


class Choice(TypedDict):
    """A policy that somebody has chosen for the daemon."""

    origin: str
    """command (kept over restarts), centre, configuration, or default: nobody's"""
    policy: str
    settings: dict[str, Any]


class Clock(TypedDict):
    """A clock domain: what it runs at, and the limits that stand."""

    hz: int | None
    max_hz: int | None
    min_hz: int | None
    name: str


class Config(TypedDict):
    """The values that the daemon runs with, and where each came from."""

    values: list[Setting]


class Device(TypedDict):
    """This device and its daemon."""

    batch_rows: Histogram
    beats: int
    """Since the daemon began"""
    beats_idle: int | None
    build: Build
    device: str
    drops: dict[str, int | float | bool | str | None]
    """Rows that were not raced, by reason"""
    epoch: str
    """Changes only with a new store"""
    jobs: list[str]
    latency_ms_p50: float | None
    """From arrival to durable, of late"""
    latency_ms_p99: float | None
    legs: dict[str, Histogram]
    """Microseconds of each leg from arrival to landing"""
    pages: int
    """Pages sealed since the daemon began"""
    pid: int
    process: Process
    recovered: Recovered
    restarts: int
    rows: int
    """Tuples raced since the daemon began"""
    session: int
    """Counts the daemon's starts"""
    started_wall_us: int | None
    state: str
    """running, draining or stopping"""
    uptime_s: float
    version: str
    wakes: int
    """Times that the daemon's loop woke up"""
    wall_us: int | None
    """The daemon's wall clock"""
    workers: int
    """Kernel threads"""


class Energy(TypedDict):
    """What it all takes. Without a board everything is null."""

    input: Input | None
    joules_per_mtuple: Pair | None
    ledger: Ledger | None
    present: bool
    """false: the daemon watches no board"""
    rails: list[Rail]
    watts: Watts | None


class Entry(TypedDict):
    """What a phase, job or operator took."""

    above_idle: Figure
    job: str
    modelled_j: float
    operator: str
    phase: str
    whole_input: Figure


class Event(TypedDict):
    """Something that happened."""

    at_us: int
    """Wall clock"""
    facts: dict[str, Any]
    id: int
    """Rises, over restarts too"""
    job: str | None
    kind: str
    level: str
    text: str


class Events(TypedDict):
    """A part of the log of events, oldest first."""

    items: list[Event]
    missed: int
    """Events that were forgotten before the first of these"""
    next: str | None
    """Cursor of what comes behind these; null: the end"""


class Explanation(TypedDict):
    """What a job would do, as `edged explain --json` says it."""

    plan: dict[str, Any]
    """Promises, streams, order, operators, sinks, warnings"""


class Fault(TypedDict):
    """One thing that is wrong, and where: a dotted path, or the row and column of tuples."""

    do: str
    what: str
    where: str


class Fed(TypedDict):
    """A stream that a source feeds."""

    job: str
    stream: str


class Figure(TypedDict):
    """An amount with its standard error."""

    error_j: float
    joules: float


class Governor(TypedDict):
    """Who decides on clocks, and what was decided."""

    awaited: str | None
    """What begins as soon as it can: another process owns the board's clocks, or nobody may set
    them yet; `problem` says which; null: nothing is in the way
    """
    changes: list[Any]
    """Limits that others changed"""
    clocks: list[Clock]
    forecast: Any
    idle_states: dict[str, float] | None
    """Share of the time in each"""
    jobs: dict[str, Any]
    """Jobs that chose their own"""
    overload: bool | None
    own: Choice | None
    """The daemon's own, whatever runs; null: no board is watched"""
    owned: list[str]
    """Clocks whose limits are edged's"""
    policy: str
    problem: str
    """Why it fell back to hands_off"""
    raced: list[Opp]
    """Of races, by the CPU's clock"""
    reason: str
    """Of the last decision"""
    refused: dict[str, Any]
    residency: list[Residency]
    """Of each clock domain"""
    restored: list[Any]
    settings: dict[str, Any]
    wakeups_per_s: float | None


class Health(TypedDict):
    """Whether the API lives, and the daemon answers."""

    api: Literal["up"]
    daemon: Literal["up", "down"]


class Histogram(TypedDict):
    """Counts between bounds; the last count is above the last bound."""

    bounds: list[float]
    count: int
    counts: list[int]
    sum: float


class Input(TypedDict):
    """Energy of the whole input."""

    covers: str
    """What stands behind this rail"""
    gap_us: int | None
    joules: float | None
    provenance: str
    """measured, modelled or simulated"""
    rail: str
    since_us: int | None
    until_us: int | None


class Job(TypedDict):
    """A job: its definition and how it stands."""

    created_us: int
    """Wall clock of its first definition"""
    document: dict[str, Any]
    etag: str
    """The ETag, for If-Match"""
    name: str
    notes: list[str]
    """What a replacement kept of the state, and what not"""
    origin: str
    problem: str
    since_us: int | None
    """Wall clock of the last change of state"""
    state: str
    """running, paused, draining, drained or failed"""
    version: int
    """Rises with every replacement"""


class Jobs(TypedDict):
    """A page of the jobs, by name."""

    items: list[Job]
    next: str | None
    """Cursor of the next page; null: the end"""


class KernelRuns(TypedDict):
    """Which kernel an operator runs."""

    job: str
    kernel: str
    operator: str
    pinned: bool


class Knob(TypedDict):
    """A clock domain whose limits may be set."""

    ceiling_hz: int
    """The highest"""
    floor_hz: int
    """The lowest that the hardware has"""
    kind: str
    name: str
    steps_hz: list[int]
    """What it can run at; empty: anything between"""


class Ledger(TypedDict):
    """Who took what, of the time that a meter covers."""

    baseline: Figure
    entries: list[Entry]
    input: Figure
    measured_s: float
    provenance: str
    """measured, modelled or simulated"""
    unattributed: Figure
    unmeasured_s: float


class Log(TypedDict):
    """What is logged."""

    level: str
    was: str
    """The level before"""


class Meter(TypedDict):
    """A sensor that is read."""

    cost_us: float | None
    """CPU time of a read and its booking"""
    interval_us: int | None
    name: str
    reads: int | None


class Operation(TypedDict):
    """A request that takes long."""

    ended_us: int | None
    id: str
    kind: str
    problem: Problem | None
    progress: Step
    result: Any
    """What the request would have been answered with"""
    started_us: int
    state: Literal["running", "done", "failed"]


class Operations(TypedDict):
    """Operations that run or ended lately, newest first."""

    items: list[Operation]
    next: str | None
    """Cursor of the next page; null: the end"""


class Operator(TypedDict):
    """An operator of a job."""

    figures: dict[str, int | float | bool | str | None]
    """Rows, matches and whatever else it counts"""
    id: str
    job: str
    kernel: str | None
    kernel_pinned: bool | None
    """Chosen by hand"""
    state_bytes: int
    type: str


class Operators(TypedDict):
    """A page of the operators, by job and id."""

    items: list[Operator]
    next: str | None
    """Cursor of the next page; null: the end"""


class Opp(TypedDict):
    """Time at an operating point."""

    hz: int
    seconds: float


class Pair(TypedDict):
    """Joules of a million tuples: above the idle board, and all of it."""

    above_idle: float | None
    input: float
    provenance: str
    """measured, modelled or simulated"""


class Problem(TypedDict):
    """Why a request was refused (RFC 9457), and what to do about it."""

    detail: str
    do: str
    errors: list[Fault]
    """Every fault, where there are several"""
    retry_after_s: int | None
    """As the header Retry-After"""
    status: int
    title: str
    type: str


class Process(TypedDict):
    """What the daemon's process takes."""

    context_switches: int | None
    cpu_s: float | None
    rss_bytes: int | None
    threads: int | None
    wakeups: int | None


class Rail(TypedDict):
    """A supply rail as a meter tells it; energy since `since_us` of the monotonic clock."""

    feeds: list[str]
    gap_us: int | None
    """Time within that nobody read"""
    joules: float | None
    meter: str
    part_of: str | None
    """The rail that includes this one"""
    problem: str
    provenance: str
    """measured, modelled or simulated"""
    rail: str
    since_us: int | None
    until_us: int | None
    watts: float | None


class Recovered(TypedDict):
    """How the daemon came up."""

    beat: int
    notes: list[str]
    replayed_beats: int
    replayed_rows: int


class Reloaded(TypedDict):
    """What a reload did."""

    applied: list[Any]
    refused: Any


class Residency(TypedDict):
    """Time of a clock domain at each of its operating points, since the daemon began."""

    at: list[Opp]
    how: str
    """counted by the kernel, or seen: a clock stands for the time since the last look at it"""
    name: str


class Setting(TypedDict):
    """One value of the configuration."""

    key: str
    origin: str
    secret: bool
    """The value is masked"""
    value: Any


class Source(TypedDict):
    """What feeds one or more streams."""

    address: str
    backpressure_us: int | None
    """How long input was left with its senders, in all"""
    bytes: int | None
    bytes_per_s: float | None
    """Of late"""
    connected: int | None
    figures: dict[str, int | float | bool | str | None]
    """Messages, duplicates, and what was refused, by reason"""
    kind: str
    name: str
    refused: int | None
    rows: int | None
    rows_per_s: float | None
    """Of late"""
    streams: list[Fed]


class Sources(TypedDict):
    """A page of the sources, by name."""

    items: list[Source]
    next: str | None
    """Cursor of the next page; null: the end"""


class Step(TypedDict):
    """How far an operation is."""

    done: int
    of: int
    step: str


class Store(TypedDict):
    """What is durable and not acknowledged by the centre yet."""

    backlog_age_s: float | None
    """Age of the oldest page; null: none waits"""
    backlog_bytes: int
    backlog_pages: int
    bytes: int
    bytes_max: int | None
    """null: as much as the disk holds"""
    fsyncs: int | None
    full: bool
    """Sources wait for room"""
    full_us: int | None
    """How long it was full, in all"""
    log_bytes_since_snapshot: int
    oldest_page_us: int | None
    """Wall clock of the oldest page"""
    set_aside_rows: int
    """Rows of inputs that killed the process"""


class Stream(TypedDict):
    """A stream of a job."""

    address: str
    """Where its source listens"""
    ended: bool
    """All producers have said the end"""
    figures: dict[str, int | float | bool | str | None]
    """Whatever else is counted"""
    job: str
    late: int
    """Rows that came behind the watermark"""
    name: str
    producers: int
    refused_ahead: int
    """Rows refused since their time is far in the future"""
    rows: int
    """Rows raced"""
    rows_per_s: float | None
    """Rows raced a second, of late"""
    source: str
    """Kind of its source"""
    staged: int
    """Rows that wait for a beat"""
    watermark_us: int | None
    """Event time up to which all is there"""


class Streams(TypedDict):
    """A page of the streams, by job and name."""

    items: list[Stream]
    next: str | None
    """Cursor of the next page; null: the end"""


class Switch(TypedDict):
    """A sleep that may be had, where `energy.allow` asks for it."""

    kind: str
    name: str
    values: list[str]


class Uplink(TypedDict):
    """The way to the centre."""

    alarms: int | None
    """What should never be; see docs/central.md"""
    backlog_bytes: int | None
    backlog_pages: int | None
    bytes_sent: int | None
    configured: bool
    connected: bool | None
    figures: dict[str, int | float | bool | str | None]
    """Whatever else the uplink counts"""
    last_ack_us: int | None
    """Wall clock"""
    next_try_us: int | None
    """Wall clock"""
    pages_acked: int | None
    pages_sent: int | None
    problem: str | None
    retries: int | None
    state: str | None
    """sending, down, unauthorized or fenced"""
    stuck: list[dict[str, Any]]
    """Streams that do not go on, and why"""


class Verdict(TypedDict):
    """Whether a job document is right, and everything that is wrong with it."""

    faults: list[Fault]
    name: str | None
    valid: bool
    warnings: list[str]


class Watts(TypedDict):
    """Power of the whole input, as last read."""

    input: float
    provenance: str
    """measured, modelled or simulated"""
    rail: str


class Writer(TypedDict):
    """Who may write limits."""

    name: str
    why: str


class Methods(Transport):
    """One method for each operation of the API."""

    def health(self) -> Health:
        """Whether the API lives, and whether the daemon answers; needs no token."""
        answer: Health = self._call("GET", "/healthz")
        return answer

    def board(self) -> Board:
        """The board, its clocks and meters, and what cannot be read here and why."""
        answer: Board = self._call("GET", "/v1/board")
        return answer

    def config(self) -> Config:
        """Every value that the daemon runs with, and its origin; secrets are masked."""
        answer: Config = self._call("GET", "/v1/config")
        return answer

    def reload_config(self, *, on_progress: Callable[[Operation], None] | None = None) -> Reloaded:
        """Read the files again, check everything, then apply what can be applied while running.

        Expressions of changed jobs are compiled, which may take long.
        """
        answer: Reloaded = self._long("POST", "/v1/config:reload", on_progress=on_progress)
        return answer

    def device(self) -> Device:
        """The device, its daemon, and how they are doing."""
        answer: Device = self._call("GET", "/v1/device")
        return answer

    def energy(self) -> Energy:
        """Power and energy by rail, phase, job and operator; each figure says where it comes
        from.
        """
        answer: Energy = self._call("GET", "/v1/energy")
        return answer

    def events(
        self, *, limit: int = 100, cursor: str | None = None, last_event_id: str | None = None
    ) -> Events:
        """The last events, up to 1000 of them; with `Accept: text/event-stream` live.

        Live, the daemon's state comes once a second as `event: snapshot`.
        """
        answer: Events = self._call(
            "GET",
            "/v1/events",
            query={"limit": limit, "cursor": cursor},
            header={"last-event-id": last_event_id},
        )
        return answer

    def governor(self) -> Governor:
        """The policy and its last decision, limits, and the time raced at each clock."""
        answer: Governor = self._call("GET", "/v1/governor")
        return answer

    def set_governor(
        self,
        policy: str,
        *,
        job: str | None | None = None,
        settings: dict[str, str | int | float | bool | list[Any] | dict[str, Any] | None]
        | None = None,
    ) -> Governor:
        """Go on with another policy, from the next beat; where it cannot run, the old one goes
        on.
        """
        answer: Governor = self._call(
            "PUT", "/v1/governor", document={"job": job, "policy": policy, "settings": settings}
        )
        return answer

    def jobs(self, *, limit: int = 100, cursor: str | None = None) -> Jobs:
        """All jobs, by name."""
        answer: Jobs = self._call("GET", "/v1/jobs", query={"limit": limit, "cursor": cursor})
        return answer

    def operator(self, job: str, id: str) -> Operator:
        """One operator."""
        answer: Operator = self._call(
            "GET", path_of("/v1/jobs/{job}/operators/{id}", job=job, id=id)
        )
        return answer

    def set_kernel(self, job: str, id: str, kernel: str) -> KernelRuns:
        """Go on with another kernel; the window is carried over, no result is lost or repeated."""
        answer: KernelRuns = self._call(
            "PUT",
            path_of("/v1/jobs/{job}/operators/{id}/kernel", job=job, id=id),
            document={"kernel": kernel},
        )
        return answer

    def delete_job(
        self,
        name: str,
        *,
        drain: bool = True,
        if_match: str | None = None,
        prefer: str | None = None,
        on_progress: Callable[[Operation], None] | None = None,
    ) -> Job:
        """Delete a job and its state; pages that are sealed are still sent to the centre.

        One that drains first is answered as it drains; with Prefer when it is gone, or by an
        operation.
        """
        answer: Job = self._long(
            "DELETE",
            path_of("/v1/jobs/{name}", name=name),
            query={"drain": drain},
            header={"if-match": if_match, "prefer": prefer},
            on_progress=on_progress,
        )
        return answer

    def job(self, name: str) -> Job:
        """One job, with its definition; its ETag names this version of it."""
        answer: Job = self._call("GET", path_of("/v1/jobs/{name}", name=name))
        return answer

    def put_job(
        self,
        name: str,
        body: bytes,
        content_type: str,
        *,
        if_match: str | None = None,
        if_none_match: str | None = None,
        prefer: str | None = None,
        on_progress: Callable[[Operation], None] | None = None,
    ) -> Job:
        """Create a job, or replace it: every operator keeps its state whose id, type and schema
        stay.

        Durable before it is answered; after a restart the job goes on as it is defined here.
        """
        answer: Job = self._long(
            "PUT",
            path_of("/v1/jobs/{name}", name=name),
            header={"if-match": if_match, "if-none-match": if_none_match, "prefer": prefer},
            body=body,
            content_type=content_type,
            on_progress=on_progress,
        )
        return answer

    def drain_job(
        self,
        name: str,
        *,
        if_match: str | None = None,
        prefer: str | None = None,
        on_progress: Callable[[Operation], None] | None = None,
    ) -> Job:
        """Take nothing new, race what was accepted, seal all pages; the state says when it is
        done.

        Answered as it drains; with Prefer when it is drained, or by an operation.
        """
        answer: Job = self._long(
            "POST",
            path_of("/v1/jobs/{name}/drain", name=name),
            header={"if-match": if_match, "prefer": prefer},
            on_progress=on_progress,
        )
        return answer

    def pause_job(self, name: str, *, if_match: str | None = None) -> Job:
        """Read its sources no more: producers wait, nothing is lost. Survives a restart."""
        answer: Job = self._call(
            "POST", path_of("/v1/jobs/{name}/pause", name=name), header={"if-match": if_match}
        )
        return answer

    def resume_job(self, name: str, *, if_match: str | None = None) -> Job:
        """Go on, after a pause or when it is drained."""
        answer: Job = self._call(
            "POST", path_of("/v1/jobs/{name}/resume", name=name), header={"if-match": if_match}
        )
        return answer

    def explain_job(
        self,
        body: bytes,
        content_type: str,
        *,
        prefer: str | None = None,
        on_progress: Callable[[Operation], None] | None = None,
    ) -> Explanation:
        """What a job would do: graph, operators, state, schemas. Changes nothing."""
        answer: Explanation = self._long(
            "POST",
            "/v1/jobs:explain",
            header={"prefer": prefer},
            body=body,
            content_type=content_type,
            on_progress=on_progress,
        )
        return answer

    def validate_job(
        self,
        body: bytes,
        content_type: str,
        *,
        prefer: str | None = None,
        on_progress: Callable[[Operation], None] | None = None,
    ) -> Verdict:
        """Whether a job document is right, and everything that is wrong with it. Changes
        nothing.
        """
        answer: Verdict = self._long(
            "POST",
            "/v1/jobs:validate",
            header={"prefer": prefer},
            body=body,
            content_type=content_type,
            on_progress=on_progress,
        )
        return answer

    def log(self) -> Log:
        """The least level that is logged."""
        answer: Log = self._call("GET", "/v1/log")
        return answer

    def set_log(self, level: Literal["debug", "info", "warning", "error"]) -> Log:
        """Log from this level on, until the daemon starts again."""
        answer: Log = self._call("PUT", "/v1/log", document={"level": level})
        return answer

    def openapi_document(self) -> dict[str, Any]:
        """This API as an OpenAPI document."""
        answer: dict[str, Any] = self._call("GET", "/v1/openapi.json")
        return answer

    def operations(self, *, limit: int = 100, cursor: str | None = None) -> Operations:
        """Operations that run or ended lately."""
        answer: Operations = self._call(
            "GET", "/v1/operations", query={"limit": limit, "cursor": cursor}
        )
        return answer

    def operation(self, id: str) -> Operation:
        """How far it is; when it has ended, its result or what went wrong.

        While it runs Retry-After says when to look again.
        """
        answer: Operation = self._call("GET", path_of("/v1/operations/{id}", id=id))
        return answer

    def operators(self, *, limit: int = 100, cursor: str | None = None) -> Operators:
        """All operators of all jobs: size of their state, what they count, the kernel they run."""
        answer: Operators = self._call(
            "GET", "/v1/operators", query={"limit": limit, "cursor": cursor}
        )
        return answer

    def sources(self, *, limit: int = 100, cursor: str | None = None) -> Sources:
        """All sources: who is connected, what came and comes, how long they were not read."""
        answer: Sources = self._call("GET", "/v1/sources", query={"limit": limit, "cursor": cursor})
        return answer

    def store(self) -> Store:
        """Size of the store and of its backlog, and whether sources wait for room."""
        answer: Store = self._call("GET", "/v1/store")
        return answer

    def streams(self, *, limit: int = 100, cursor: str | None = None) -> Streams:
        """All streams of all jobs: rows and their rate, watermarks, lateness, and what waits.

        The first request in a minute takes a second longer: rates are of two states.
        """
        answer: Streams = self._call("GET", "/v1/streams", query={"limit": limit, "cursor": cursor})
        return answer

    def stream(self, stream: str, *, job: str | None = None) -> Stream:
        """One stream."""
        answer: Stream = self._call(
            "GET", path_of("/v1/streams/{stream}", stream=stream), query={"job": job}
        )
        return answer

    def send_tuples(
        self,
        stream: str,
        body: bytes,
        content_type: str,
        *,
        job: str | None = None,
        idempotency_key: str | None = None,
    ) -> Accepted:
        """Send rows: all of them or none come in, and the answer comes when they are durable.

        With an Idempotency-Key the same request may be sent again, whatever became of the
        answer: its rows are counted once.
        """
        answer: Accepted = self._call(
            "POST",
            path_of("/v1/streams/{stream}/tuples", stream=stream),
            query={"job": job},
            header={"idempotency-key": idempotency_key},
            body=body,
            content_type=content_type,
        )
        return answer

    def uplink(self) -> Uplink:
        """How the uplink stands."""
        answer: Uplink = self._call("GET", "/v1/uplink")
        return answer

    def retry_uplink(self) -> Uplink:
        """Try now, whatever the back-off says."""
        answer: Uplink = self._call("POST", "/v1/uplink:retry")
        return answer
