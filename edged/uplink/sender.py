"""The sender: a pure state machine that decides what to send next and how to react to an answer.

It has no sockets, clock or threads.

1. Schemas are registered before the first page, and again when the centre lacks one.  A refused
   schema holds back its stream's pages until `retry`.
2. A partition's pages are sent in order of seq, in at most one request at a time.  A request takes
   pages of as many partitions as fit: few pages make one request, many use every lane.
3. Network trouble (no answer, or 5xx, 408, 429) holds everything with one backoff, and for the
   answer's Retry-After at least.  Then one probe request is sent; its answer releases the rest.
   If a request did not arrive whole (no answer, or 408), the next ones are half as large, down to
   REQUEST_BYTES_MIN; the size doubles with each answer within QUICK_S.  On a slow link a large
   request would exceed the centre's time limit.
4. A rejected token holds everything for `UNAUTHORIZED_S` to twice that, by chance, or for the
   answer's Retry-After likewise.
5. `fenced` stops the sender permanently: another process sends for this device.
6. A problem with one partition (gap, conflict, limit, schema, damage, missing file) holds that
   partition with a slower backoff of its own; its next request carries only its first page.
7. `retry` ends every hold.  A new location of a page ends the hold of its partition.
8. A telemetry report is sent behind the pages of the next request, so that no page depends on it;
   alone if there are no pages, or with `reports_first`.  At most one report waits, the newest.  A
   lost report is repeated only together with pages; otherwise the next report replaces it.
9. Outside the upload windows (`closed_until_s`) pages wait and reports are sent.
10. Pages that the device has lost for good (`lost`) are never sent.  Where the centre misses them,
   the next request for that partition declares them, so that the pages behind them land.  What
   the centre misses and was never offered is named to the daemon (`take_missing`).
11. An answer acknowledges only pages of its own request.  A faulty centre or proxy cannot make
   pages disappear that were never sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from edged.platform.backoff import Backoff, after
from edged.uplink import telemetry
from edged.uplink.partition_backoff import PartitionBackoffs
from edged.uplink.schema_registration import SchemaRegistration
from edged.uplink.send_queue import PageLocation, Partition, SendQueue
from edged.uplink.tasks import (
    Counters,
    NoReply,
    RegisterSchema,
    Reply,
    Result,
    SendPages,
    Task,
    Unreadable,
)

REPORTS = telemetry.STREAM
UNAUTHORIZED_S = 20.0
REQUEST_BYTES_MIN = 64 << 10
"""Requests do not shrink below this on a slow link; a page is never split."""
QUICK_S = 10.0
_ERROR_TEXT_MAX = 500

ALARMS = ("conflict", "fenced")
SENDING, DOWN, UNAUTHORIZED, FENCED = "sending", "down", "unauthorized", "fenced"


class Sender:
    """The state machine.  `now_s` is a monotonic clock in seconds."""

    def __init__(
        self,
        schemas: Sequence[tuple[str, int, str]],
        random: Callable[[], float],
        request_bytes: int,
    ) -> None:
        self.queue = SendQueue()
        self.counters = Counters()
        self.state = SENDING
        self.last_error = ""
        self.desired: Any = None
        """The desired state as last announced by the centre, without its document."""
        self.desired_version = 0
        """Version of the newest document received."""
        self.document: dict[str, Any] | None = None
        """That document with its version, until the caller takes it."""
        self.reports_first = False
        self.closed_until_s: float | None = None
        """When the next upload window opens; None: pages may be sent."""
        self.status_changed = False
        self._report = b""
        self._request_bytes = self._request_bytes_max = request_bytes
        self._schemas = SchemaRegistration(schemas)
        self._random, self._backoff = random, Backoff(random)
        self._hold_until_s = 0.0
        self._probe: Task | None = None
        self._held = PartitionBackoffs(random)
        self._lost: dict[tuple[str, int], list[tuple[int, int]]] = {}
        self._acks: dict[tuple[str, int], int] = {}
        self._missing: list[tuple[str, int, int]] = []

    # -- input

    def offer(self, place: PageLocation) -> None:
        """Add a page to send, or a new location of one."""
        self.queue.offer(place)
        if self._held.resolved_by((place.stream, place.partition), place.seq):
            self.queue.partitions[place.stream, place.partition].hold_until_s = 0.0

    def lost(self, stream: str, partition: int, first: int, last: int) -> None:
        """Forget the pages `first` to `last` of a partition: the device has lost them for good."""
        self.queue.remove(stream, partition, first, last)
        self._lost.setdefault((stream, partition), []).append((first, last))
        part = self.queue.partitions.get((stream, partition))
        unreadable = self._held.forget_unreadable((stream, partition))
        if part is not None and (unreadable or self._declared(part) is not None):
            part.hold_until_s = 0.0

    def register(self, stream: str, version: int, text: str) -> None:
        """Add a schema to register before the next page; it replaces one with the same name."""
        self._schemas.add(stream, version, text)
        self.status_changed = True

    def report(self, page: bytes) -> None:
        """Set the report to send; it replaces a waiting one."""
        if REPORTS not in self._schemas.streams_refused():
            self._report = page

    def retry(self) -> None:
        """End every hold."""
        self._hold_until_s = 0.0
        self._schemas.retry()
        for part in self.queue.partitions.values():
            part.hold_until_s = 0.0

    # -- tasks

    def next(self, now_s: float) -> Task | float | None:
        """The next task; or the time of the next call if nothing happens before; or None: no time
        is known."""
        if self.state == FENCED or not self._has_work():
            return None
        if self.state != SENDING:
            if self._probe is not None:
                return None
            if now_s < self._hold_until_s:
                return self._hold_until_s
        task = self._next_task(now_s)
        if self.state != SENDING and isinstance(task, RegisterSchema | SendPages):
            self._probe = task
        return task

    def more(self, now_s: float) -> bool:
        """Whether another lane would find a task now."""
        if self.state != SENDING:
            return False
        if self._schemas:
            return True
        return not self._schemas.under_way and bool(self._report or self._ready(now_s)[0])

    def _has_work(self) -> bool:
        return bool(self._schemas or self._report) or self.queue.pages > 0

    def _next_task(self, now_s: float) -> Task | float | None:
        if self._schemas:
            return self._schemas.take()
        if self._schemas.under_way:
            return None
        if self._report and self.reports_first:
            return SendPages((), self._take_report(), begun_s=now_s)
        ready, wake_s = self._ready(now_s)
        places: list[PageLocation] = []
        room = self._request_bytes
        for part in ready:
            held = (part.stream, part.partition) in self._held
            if held and places:
                continue
            taken = list(self.queue.first(part, 0 if held else room))
            size = sum(p.length for p in taken)
            if places and size > room:
                continue
            self._take(part)
            places += taken
            room -= size
            if room <= 0 or held:
                break
        if places or self._report:
            alone = self.queue.partitions[places[0].stream, places[0].partition] if places else None
            lost = None if alone is None else self._declared(alone)
            return SendPages(places, self._take_report(), lost, now_s)
        return wake_s

    def _declared(self, part: Partition) -> tuple[str, int, int, int] | None:
        """The lost pages between the one that the centre expects and the first that there is; None:
        it expects none, or not all of them are known to be lost."""
        key = (part.stream, part.partition)
        expected = self._held.expected(key)
        if not isinstance(expected, int) or not len(part) or part.seqs[part.head] <= expected:
            return None
        missing = expected
        for first, last in sorted(self._lost.get(key, ())):
            if first <= missing:
                missing = max(missing, last + 1)
        before = part.seqs[part.head] - 1
        return (*key, expected, before) if missing > before else None

    def _take_report(self) -> bytes:
        report, self._report = self._report, b""
        return report

    def _take(self, part: Partition) -> None:
        """Mark `part` as in flight and move it to the end of the queue."""
        part.in_flight = True
        key = (part.stream, part.partition)
        self.queue.partitions[key] = self.queue.partitions.pop(key)

    def _ready(self, now_s: float) -> tuple[list[Partition], float | None]:
        """Sendable partitions, longest waiting first; without one, when the next one will be."""
        if self.closed_until_s is not None and self.closed_until_s > now_s:
            return [], self.closed_until_s if self.queue.pages else None
        ready = []
        refused = self._schemas.streams_refused()
        wake_s: float | None = None
        for part in self.queue.partitions.values():
            if part.in_flight or not len(part) or part.stream in refused:
                continue
            if part.hold_until_s > now_s:
                wake_s = min(part.hold_until_s, wake_s or part.hold_until_s)
            else:
                ready.append(part)
        return ready, wake_s

    # -- results

    def done(self, task: Task, result: Result, now_s: float) -> None:
        """Process the result of a task returned by `next`."""
        if isinstance(task, SendPages):
            for place in task.places:
                self.queue.partitions[place.stream, place.partition].in_flight = False
        else:
            self._schemas.under_way -= 1
        probe = task is self._probe
        if probe:
            self._probe = None
        if isinstance(result, Unreadable):
            place = result.place
            if isinstance(task, SendPages):
                self._report = self._report or task.report
            self._hold(place.stream, place.partition, "unreadable", result.detail, now_s)
            return
        if isinstance(result, NoReply):
            self._shrink(task)
            self._on_failure(task, DOWN, result.detail, now_s, probe)
            return
        try:
            self._on_reply(task, result, now_s, probe)
        except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as problem:
            # valid JSON of the wrong shape: a proxy, or a defect at the centre
            detail = f"malformed answer: {type(problem).__name__}: {problem}"
            self._on_failure(task, DOWN, detail, now_s, probe)

    def _on_reply(self, task: Task, result: Reply, now_s: float, probe: bool) -> None:
        self.counters.requests += 1
        self.counters.bytes += result.sent_bytes
        self.counters.pages += len(task.places) if isinstance(task, SendPages) else 0
        after_s = result.retry_after_s
        if result.status == 401:
            self._on_failure(task, UNAUTHORIZED, _detail(result), now_s, probe, after_s)
        elif result.status in (408, 429) or result.status >= 500:
            self._take_acks(task, result)
            if result.status == 408:
                self._shrink(task)
            self._on_failure(task, DOWN, _detail(result), now_s, probe, after_s)
        else:
            self._on_answer(task, result, now_s)
            self._backoff.succeeded()

    def _on_failure(
        self,
        task: Task,
        state: str,
        detail: str,
        now_s: float,
        probe: bool,
        retry_after_s: float | None = None,
    ) -> None:
        self.counters.failures += 1
        if isinstance(task, RegisterSchema):
            self._schemas.again(task.stream, task.version)
        elif task.places:
            self._report = self._report or task.report
        if self.state == SENDING or probe or state == UNAUTHORIZED:
            if state == UNAUTHORIZED:
                delay_s = after(max(UNAUTHORIZED_S, retry_after_s or 0.0), self._random)
            else:
                delay_s = self._backoff.failed(retry_after_s)
            self._hold_until_s = now_s + delay_s
        self._set_state(state, detail)

    def _set_state(self, state: str, detail: str) -> None:
        self.status_changed = (
            self.status_changed or state != self.state or detail not in ("", self.last_error)
        )
        if self.state != FENCED:
            self.state = state
        if detail:
            self.last_error = detail[:_ERROR_TEXT_MAX]

    def _on_answer(self, task: Task, result: Reply, now_s: float) -> None:
        self._set_state(SENDING, "")
        if isinstance(task, RegisterSchema):
            self._on_registered(task, result)
            return
        self._take_desired(result.body)
        arrived = self._take_acks(task, result)
        if task.report and not arrived and result.body.get("stream", REPORTS) != REPORTS:
            self._report = self._report or task.report  # a problem with a page before the report
        if result.status == 413:
            self._too_large(task, _detail(result), now_s)
        elif result.status != 200:
            self._on_problem(task, result, now_s)
        else:
            if now_s - task.begun_s < QUICK_S:
                self._request_bytes = min(self._request_bytes_max, 2 * self._request_bytes)
            self._expect_acks(task, now_s)

    def _take_desired(self, body: dict[str, Any]) -> None:
        desired = body.get("desired", self.desired)
        if isinstance(desired, dict) and "document" in desired:
            version = desired.get("version")
            desired = {key: value for key, value in desired.items() if key != "document"}
            if isinstance(version, int) and self.desired_version < version < 1 << 53:
                self.desired_version = version
                self.document = {"version": version, "document": body["desired"]["document"]}
                self.status_changed = True
        self.desired = desired

    def _on_registered(self, task: RegisterSchema, result: Reply) -> None:
        detail = f"schema {task.stream}@{task.version}: {_detail(result)}"
        self._schemas.on_answer(task, result.status, detail)
        if REPORTS in self._schemas.streams_refused():
            self._report = b""
        if result.status >= 300:
            self._set_state(SENDING, detail)

    def _expect_acks(self, task: SendPages, now_s: float) -> None:
        """A 200 must acknowledge all pages; a proxy may answer 200 without, so the partition is
        held."""
        for place in task.places:
            if self.queue.partitions[place.stream, place.partition].acked < place.seq:
                self._hold(
                    place.stream,
                    place.partition,
                    "unacknowledged",
                    "answered with status 200, but without acknowledging the pages",
                    now_s,
                )
                return

    def _shrink(self, task: Task) -> None:
        """The request did not arrive whole: halve the size of the next ones."""
        if isinstance(task, SendPages) and task.places:
            half = max(REQUEST_BYTES_MIN, sum(p.length for p in task.places) // 2)
            self._request_bytes = min(self._request_bytes, half)

    def _too_large(self, task: SendPages, detail: str, now_s: float) -> None:
        if len(task.places) > 1:
            self._request_bytes_max = sum(p.length for p in task.places) // 2
            self._request_bytes = min(self._request_bytes, self._request_bytes_max)
        elif task.places:
            place = task.places[0]
            self._hold(place.stream, place.partition, "too_large", detail, now_s)

    def _on_problem(self, task: SendPages, result: Reply, now_s: float) -> None:
        body = result.body
        problem = str(body.get("problem", f"status {result.status}"))
        self.counters.alarms += problem in ALARMS
        stream, partition = body.get("stream"), body.get("partition")
        if problem == "fenced":
            self._set_state(FENCED, _detail(result))
            return
        if problem == "unknown_schema":
            self._schemas.again(stream, body.get("version"))
        if stream == REPORTS or not task.places:
            self._set_state(self.state, f"{problem}: {_detail(result)}")
            return
        if (stream, partition) not in {(p.stream, p.partition) for p in task.places}:
            stream, partition = task.places[0].stream, task.places[0].partition
        expected = body.get("expected")
        self._hold(str(stream), int(str(partition)), problem, _detail(result), now_s, expected)
        part = self.queue.partitions[str(stream), int(str(partition))]
        if problem == "gap" and task.lost is None and self._declared(part) is not None:
            part.hold_until_s = 0.0
        elif problem == "gap" and isinstance(expected, int):
            self._missing.append((part.stream, part.partition, expected))

    def _hold(
        self,
        stream: str,
        partition: int,
        problem: str,
        detail: str,
        now_s: float,
        expected: int | None = None,
    ) -> None:
        part = self.queue.partitions[stream, partition]
        self._held.hold(part, problem, detail, now_s, expected)
        self._set_state(self.state, f"{problem}: {detail}")

    def _take_acks(self, task: Task, result: Reply) -> bool:
        """Process the acks of an answer; returns whether a report has arrived."""
        arrived = False
        places = task.places if isinstance(task, SendPages) else ()
        sent = {(p.stream, p.partition): p.seq for p in places}
        for stream, partition, seq in result.body.get("acked", ()):
            if stream == REPORTS:
                arrived = True
                self.counters.reports += 1
                continue
            upto = min(int(seq), sent.get((stream, partition), 0))
            count = self.queue.acked(stream, partition, upto)
            if count:
                self.counters.acked_pages += count
                self._acks[stream, partition] = upto
                self._held.release((stream, partition))
                self.queue.partitions[stream, partition].hold_until_s = 0.0
        return arrived

    # -- output to the daemon

    def take_acks(self) -> list[tuple[str, int, int]]:
        """Cumulative acks since the last call."""
        acks = [(stream, partition, seq) for (stream, partition), seq in self._acks.items()]
        self._acks.clear()
        return acks

    def take_missing(self) -> list[tuple[str, int, int]]:
        """Pages that the centre asked for since the last call and that are not known as lost:
        (stream, partition, first)."""
        missing, self._missing = self._missing, []
        return missing

    def status(self) -> dict[str, Any]:
        """Figures and states for the daemon's status."""
        return {
            "state": self.state,
            "backlog_pages": self.queue.pages,
            "backlog_bytes": self.queue.bytes,
            "hold_until_s": None if self.state == SENDING else self._hold_until_s,
            "requests": self.counters.requests,
            "sent_pages": self.counters.pages,
            "alarms": self.counters.alarms,
            "bytes": self.counters.bytes,
            "acked_pages": self.counters.acked_pages,
            "reports": self.counters.reports,
            "failures": self.counters.failures,
            "last_error": self.last_error,
            "stuck": self._held.stuck(),
            "refused_streams": sorted({stream for stream, _ in self._schemas.refused}),
            "desired": self.desired,
        }


def _detail(result: Reply) -> str:
    return str(result.body.get("detail", f"the centre answered with status {result.status}"))
