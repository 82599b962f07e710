"""Written by `python -m api.generate` from docs/openapi.json: do not edit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from edged.rest.transport import Transport, path_of

if TYPE_CHECKING:  # importing pydantic takes 0.2 s of a command
    from edged.rest.answers import (
        Accepted,
        Board,
        Config,
        Device,
        Energy,
        Events,
        Explanation,
        Governor,
        Graph,
        Graphs,
        Health,
        Index,
        Job,
        Jobs,
        KernelRuns,
        Log,
        Operation,
        Operations,
        Operator,
        Operators,
        Reloaded,
        Sources,
        StateChunk,
        StateExport,
        Store,
        Stream,
        Streams,
        Uplink,
        Verdict,
    )


class Methods(Transport):
    """One method for each operation of the API."""

    def health(self) -> Health:
        """Whether the API runs, and whether the daemon answers; needs no token."""
        answer: Health = self._call("GET", "/healthz")
        return answer

    def index(self) -> Index:
        """The version of edged, and the resources that a GET without names reads."""
        answer: Index = self._call("GET", "/v1")
        return answer

    def board(self) -> Board:
        """The board, its clocks and meters, and what cannot be read here and why."""
        answer: Board = self._call("GET", "/v1/board")
        return answer

    def config(self) -> Config:
        """Every value of the running configuration and its origin; secrets are masked."""
        answer: Config = self._call("GET", "/v1/config")
        return answer

    def reload_config(self, *, on_progress: Callable[[Operation], None] | None = None) -> Reloaded:
        """Read the files again, check everything, and apply what can change while running.

        Expressions of changed jobs are compiled, which may take long.
        """
        answer: Reloaded = self._long("POST", "/v1/config:reload", on_progress=on_progress)
        return answer

    def device(self) -> Device:
        """The device, its daemon, and their health."""
        answer: Device = self._call("GET", "/v1/device")
        return answer

    def energy(self) -> Energy:
        """Power and energy by rail, phase, job and operator; each figure has its provenance."""
        answer: Energy = self._call("GET", "/v1/energy")
        return answer

    def events(
        self, *, limit: int = 100, cursor: str | None = None, last_event_id: str | None = None
    ) -> Events:
        """The last events, up to 1000 of them; with `Accept: text/event-stream` live.

        The live stream contains the daemon's state once a second as `event: snapshot`.
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
        """Change the policy from the next beat on; if the new one cannot run, the old one
        continues.
        """
        answer: Governor = self._call(
            "PUT", "/v1/governor", document={"job": job, "policy": policy, "settings": settings}
        )
        return answer

    def graphs(self, *, limit: int = 100, cursor: str | None = None) -> Graphs:
        """All graphs that this daemon takes part in, by name."""
        answer: Graphs = self._call("GET", "/v1/graphs", query={"limit": limit, "cursor": cursor})
        return answer

    def forget_graph(self, name: str, *, if_match: str | None = None) -> Graph:
        """Forget a graph. Its jobs stay."""
        answer: Graph = self._call(
            "DELETE", path_of("/v1/graphs/{name}", name=name), header={"if-match": if_match}
        )
        return answer

    def graph(self, name: str) -> Graph:
        """One graph: its version here, and whether its deployment has ended."""
        answer: Graph = self._call("GET", path_of("/v1/graphs/{name}", name=name))
        return answer

    def claim_graph(
        self,
        name: str,
        daemons: list[str],
        digest: int,
        state: Literal["deploying", "rescaling", "deployed", "stopped"],
        version: int,
        *,
        if_match: str | None = None,
        if_none_match: str | None = None,
    ) -> Graph:
        """Claim a version of a graph, or change the state of the claimed one; durable before the
        response.

        Jobs of the graph are put at the claimed version only. Exactly one of If-Match and If-
        None-Match is needed.
        """
        answer: Graph = self._call(
            "PUT",
            path_of("/v1/graphs/{name}", name=name),
            header={"if-match": if_match, "if-none-match": if_none_match},
            document={"daemons": daemons, "digest": digest, "state": state, "version": version},
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
        """Change the kernel; the window is kept, no result is lost or repeated."""
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
        """Delete a job and its state; sealed pages are still sent to the centre.

        With `drain` the response comes while the job drains; with Prefer, when it is gone, or
        as an operation.
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
        """One job, with its definition; its ETag identifies this version."""
        answer: Job = self._call("GET", path_of("/v1/jobs/{name}", name=name))
        return answer

    def put_job(
        self,
        name: str,
        body: bytes,
        content_type: str,
        *,
        state: bool = False,
        if_match: str | None = None,
        if_none_match: str | None = None,
        prefer: str | None = None,
        on_progress: Callable[[Operation], None] | None = None,
    ) -> Job:
        """Create a job, or replace it: every operator whose id, type and schema stay keeps its
        state.

        The definition is durable before the response, and applies after a restart too.
        """
        answer: Job = self._long(
            "PUT",
            path_of("/v1/jobs/{name}", name=name),
            query={"state": state},
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
        """Accept nothing new, race accepted rows, and seal all pages; the state says when it is
        done.

        The response comes while the job drains; with Prefer, when it is drained, or as an
        operation.
        """
        answer: Job = self._long(
            "POST",
            path_of("/v1/jobs/{name}/drain", name=name),
            header={"if-match": if_match, "prefer": prefer},
            on_progress=on_progress,
        )
        return answer

    def export_job(self, name: str) -> StateExport:
        """Export the state of a job that is paused or drained, to be read in parts."""
        answer: StateExport = self._call("POST", path_of("/v1/jobs/{name}/export", name=name))
        return answer

    def pause_job(self, name: str, *, if_match: str | None = None) -> Job:
        """Stop reading its sources: producers wait, nothing is lost. Survives a restart."""
        answer: Job = self._call(
            "POST", path_of("/v1/jobs/{name}/pause", name=name), header={"if-match": if_match}
        )
        return answer

    def resume_job(self, name: str, *, if_match: str | None = None) -> Job:
        """Continue after a pause or a drain."""
        answer: Job = self._call(
            "POST", path_of("/v1/jobs/{name}/resume", name=name), header={"if-match": if_match}
        )
        return answer

    def job_state(self, name: str, *, offset: int = 0) -> StateChunk:
        """A part of an export; reading the last one ends it."""
        answer: StateChunk = self._call(
            "GET", path_of("/v1/jobs/{name}/state", name=name), query={"offset": offset}
        )
        return answer

    def send_job_state(self, name: str, data: str, offset: int) -> StateExport:
        """Send a part of the state that a job is to be put with; offset 0 begins."""
        answer: StateExport = self._call(
            "PUT",
            path_of("/v1/jobs/{name}/state", name=name),
            document={"data": data, "offset": offset},
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
        """The plan of a job: graph, operators, state, schemas. Changes nothing."""
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
        """Whether a put of a job document would be accepted, and its faults. Changes nothing.

        The daemon decides as it does for a put. Expressions are not compiled.
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
        """The lowest level that is logged."""
        answer: Log = self._call("GET", "/v1/log")
        return answer

    def set_log(self, level: Literal["debug", "info", "warning", "error"]) -> Log:
        """Set the log level until the daemon starts again."""
        answer: Log = self._call("PUT", "/v1/log", document={"level": level})
        return answer

    def openapi_document(self) -> dict[str, Any]:
        """This API as an OpenAPI document."""
        answer: dict[str, Any] = self._call("GET", "/v1/openapi.json")
        return answer

    def operations(self, *, limit: int = 100, cursor: str | None = None) -> Operations:
        """Operations that run or ended recently."""
        answer: Operations = self._call(
            "GET", "/v1/operations", query={"limit": limit, "cursor": cursor}
        )
        return answer

    def operation(self, id: str) -> Operation:
        """The progress of an operation; once it has ended, its result or problem.

        While it runs, Retry-After is the polling interval.
        """
        answer: Operation = self._call("GET", path_of("/v1/operations/{id}", id=id))
        return answer

    def operators(self, *, limit: int = 100, cursor: str | None = None) -> Operators:
        """All operators of all jobs: size of their state, counters, and the kernel they run."""
        answer: Operators = self._call(
            "GET", "/v1/operators", query={"limit": limit, "cursor": cursor}
        )
        return answer

    def sources(self, *, limit: int = 100, cursor: str | None = None) -> Sources:
        """All sources: connections, received rows and bytes, and the time of backpressure."""
        answer: Sources = self._call("GET", "/v1/sources", query={"limit": limit, "cursor": cursor})
        return answer

    def store(self) -> Store:
        """Size of the store and of its backlog, and whether sources wait for room."""
        answer: Store = self._call("GET", "/v1/store")
        return answer

    def streams(self, *, limit: int = 100, cursor: str | None = None) -> Streams:
        """All streams of all jobs: rows and their rate, watermarks, lateness, and staged rows.

        The first request within a minute takes a second longer: rates need two snapshots.
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
        """Send rows: all or none are accepted, and the response comes when they are durable.

        `lost` counts rows that are durable and dropped, because they are late or too far
        ahead. Rows that wait for another stream of a join may become late after the response:
        `late` of the stream counts them.

        With an Idempotency-Key a request may be repeated whatever became of the response: its
        rows are counted once.
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
        """The state of the uplink."""
        answer: Uplink = self._call("GET", "/v1/uplink")
        return answer

    def retry_uplink(self) -> Uplink:
        """Try now, without waiting for the back-off."""
        answer: Uplink = self._call("POST", "/v1/uplink:retry")
        return answer
