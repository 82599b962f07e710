"""What to send next and what to make of the answer: decisions only, no sockets, clock or threads.

1. Schemas are registered before the first page; again when the centre does not know one.
   A schema that the centre refuses keeps its stream's pages back, until `retry`.
2. A partition's pages go in order of seq, at most one request at a time has pages of it.  A request
   takes pages of as many partitions as fit, so that few pages make one request, and many use every
   lane.
3. Network trouble (no answer, or 5xx, 408, 429) holds everything with one backoff; then one request
   goes ahead, and when it is answered, all go.  Where a request did not arrive whole (no answer, or
   408), the next ones are half as large, down to REQUEST_BYTES_MIN; they double with each answer
   within QUICK_S.  Over a slow link a large one is not through before the centre gives it up.
4. A wrong token holds everything for `UNAUTHORIZED_S`.
5. `fenced` stops the sender for good: another process speaks for this device.
6. Trouble with one partition (gap, conflict, limit, schema, damage, missing file) holds that one
   with its own slower backoff, and its next request has only its first page.
7. `retry` ends every hold at once.  So does a page's newer place for its partition.
8. A report of telemetry goes with the next request, behind its pages, so that no page waits for
   what becomes of it; by itself where there are no pages, or with `reports_first`.  At most one
   waits, the newest.  One that did not arrive is sent again only along with pages: else the next
   report, which comes soon, is the next try.
9. Outside of the upload windows (`closed_until_s`) pages wait, and reports go.
10. An answer acknowledges pages of its own request and no others, whatever it says: nothing that a
   confused centre or proxy claims makes pages go that were never sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from edged.uplink.backoff import Backoff
from edged.uplink.partition_backoff import Troubles
from edged.uplink.schema_registration import Schemas
from edged.uplink.send_queue import Backlog, Partition, Place
from edged.uplink.tasks import (
    Batch,
    Counters,
    NoReply,
    Register,
    Reply,
    Result,
    Task,
    Unreadable,
)

REPORTS = "edged.telemetry"
"""The stream of reports, as in edged/uplink/telemetry.py."""
UNAUTHORIZED_S = 30.0
REQUEST_BYTES_MIN = 64 << 10
"""No request is made smaller for the sake of a slow link; a page always goes whole."""
QUICK_S = 10.0
_ERROR_TEXT_MAX = 500

ALARMS = ("conflict", "fenced")
SENDING, DOWN, UNAUTHORIZED, FENCED = "sending", "down", "unauthorized", "fenced"


class Sender:
    """The state machine.  `now_s` is a monotonic clock's reading in seconds."""

    def __init__(
        self,
        schemas: Sequence[tuple[str, int, str]],
        random: Callable[[], float],
        request_bytes: int,
    ) -> None:
        self.backlog = Backlog()
        self.counters = Counters()
        self.state = SENDING
        self.last_error = ""
        self.desired: Any = None
        """What the centre wants, as it last said, without the document."""
        self.desired_version = 0
        """The newest document that has come."""
        self.document: dict[str, Any] | None = None
        """That document with its version, until somebody takes it away."""
        self.reports_first = False
        self.closed_until_s: float | None = None
        """When the next upload window opens; None: pages may go."""
        self.news = False
        self._report = b""
        self._request_bytes = self._request_bytes_max = request_bytes
        self._schemas = Schemas(schemas)
        self._backoff = Backoff(random)
        self._hold_until_s = 0.0
        self._probe: Task | None = None
        self._troubles = Troubles(random)
        self._acks: dict[tuple[str, int], int] = {}

    # -- what comes in

    def offer(self, place: Place) -> None:
        """A page to send, or the newer place of one."""
        self.backlog.offer(place)
        if self._troubles.ends_with((place.stream, place.partition), place.seq):
            self.backlog.partitions[place.stream, place.partition].hold_until_s = 0.0

    def register(self, stream: str, version: int, text: str) -> None:
        """A schema to register before the next page, in place of one of the same name."""
        self._schemas.add(stream, version, text)
        self.news = True

    def report(self, page: bytes) -> None:
        """A report, in place of one that still waits."""
        if REPORTS not in self._schemas.streams_refused():
            self._report = page

    def retry(self) -> None:
        """End every hold."""
        self._hold_until_s = 0.0
        self._schemas.retry()
        for part in self.backlog.partitions.values():
            part.hold_until_s = 0.0

    # -- what goes out

    def next(self, now_s: float) -> Task | float | None:
        """A task; or when to ask again, if nothing happens before; None: when something happens."""
        if self.state == FENCED or not self._has_work():
            return None
        if self.state != SENDING:
            if self._probe is not None:
                return None
            if now_s < self._hold_until_s:
                return self._hold_until_s
        task = self._next_task(now_s)
        if self.state != SENDING and isinstance(task, Register | Batch):
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
        return bool(self._schemas or self._report) or self.backlog.pages > 0

    def _next_task(self, now_s: float) -> Task | float | None:
        if self._schemas:
            return self._schemas.take()
        if self._schemas.under_way:
            return None
        if self._report and self.reports_first:
            return Batch((), self._take_report(), now_s)
        ready, wake_s = self._ready(now_s)
        places: list[Place] = []
        room = self._request_bytes
        for part in ready:
            troubled = (part.stream, part.partition) in self._troubles
            if troubled and places:
                continue
            taken = list(self.backlog.first(part, 0 if troubled else room))
            size = sum(p.length for p in taken)
            if places and size > room:
                continue
            self._take(part)
            places += taken
            room -= size
            if room <= 0 or troubled:
                break
        if places or self._report:
            return Batch(places, self._take_report(), now_s)
        return wake_s

    def _take_report(self) -> bytes:
        report, self._report = self._report, b""
        return report

    def _take(self, part: Partition) -> None:
        """Mark `part` as in flight, and let it be the last next time."""
        part.in_flight = True
        key = (part.stream, part.partition)
        self.backlog.partitions[key] = self.backlog.partitions.pop(key)

    def _ready(self, now_s: float) -> tuple[list[Partition], float | None]:
        """Partitions that may be sent, the longest waiting first; else when the next may be."""
        if self.closed_until_s is not None and self.closed_until_s > now_s:
            return [], self.closed_until_s if self.backlog.pages else None
        ready = []
        refused = self._schemas.streams_refused()
        wake_s: float | None = None
        for part in self.backlog.partitions.values():
            if part.in_flight or not len(part) or part.stream in refused:
                continue
            if part.hold_until_s > now_s:
                wake_s = min(part.hold_until_s, wake_s or part.hold_until_s)
            else:
                ready.append(part)
        return ready, wake_s

    # -- what comes back

    def done(self, task: Task, result: Result, now_s: float) -> None:
        """Take in the result of a task that `next` gave."""
        if isinstance(task, Batch):
            for place in task.places:
                self.backlog.partitions[place.stream, place.partition].in_flight = False
        else:
            self._schemas.under_way -= 1
        probe = task is self._probe
        if probe:
            self._probe = None
        if isinstance(result, Unreadable):
            place = result.place
            if isinstance(task, Batch):
                self._report = self._report or task.report
            self._trouble(place.stream, place.partition, "unreadable", result.detail, now_s)
            return
        if isinstance(result, NoReply):
            self._shrink(task)
            self._failed(task, DOWN, result.detail, now_s, probe)
            return
        try:
            self._replied(task, result, now_s, probe)
        except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as problem:
            # JSON, but not what the centre says: some proxy, or a defect there
            detail = f"an answer without sense: {type(problem).__name__}: {problem}"
            self._failed(task, DOWN, detail, now_s, probe)

    def _replied(self, task: Task, result: Reply, now_s: float, probe: bool) -> None:
        self.counters.requests += 1
        self.counters.bytes += result.sent_bytes
        self.counters.pages += len(task.places) if isinstance(task, Batch) else 0
        if result.status == 401:
            self._failed(task, UNAUTHORIZED, _detail(result), now_s, probe)
        elif result.status in (408, 429) or result.status >= 500:
            self._take_acks(task, result)
            if result.status == 408:
                self._shrink(task)
            self._failed(task, DOWN, _detail(result), now_s, probe)
        else:
            self._answered(task, result, now_s)
            self._backoff.succeeded()

    def _failed(self, task: Task, state: str, detail: str, now_s: float, probe: bool) -> None:
        self.counters.failures += 1
        if isinstance(task, Register):
            self._schemas.again(task.stream, task.version)
        elif task.places:
            self._report = self._report or task.report
        if self.state == SENDING or probe or state == UNAUTHORIZED:
            delay_s = UNAUTHORIZED_S if state == UNAUTHORIZED else self._backoff.failed()
            self._hold_until_s = now_s + delay_s
        self._say(state, detail)

    def _say(self, state: str, detail: str) -> None:
        self.news = self.news or state != self.state or detail not in ("", self.last_error)
        if self.state != FENCED:
            self.state = state
        if detail:
            self.last_error = detail[:_ERROR_TEXT_MAX]

    def _answered(self, task: Task, result: Reply, now_s: float) -> None:
        self._say(SENDING, "")
        if isinstance(task, Register):
            self._registered(task, result)
            return
        self._take_desired(result.body)
        arrived = self._take_acks(task, result)
        if task.report and not arrived and result.body.get("stream", REPORTS) != REPORTS:
            self._report = self._report or task.report  # trouble with a page before it
        if result.status == 413:
            self._too_large(task, _detail(result), now_s)
        elif result.status != 200:
            self._problem(task, result, now_s)
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
                self.news = True
        self.desired = desired

    def _registered(self, task: Register, result: Reply) -> None:
        detail = f"schema {task.stream}@{task.version}: {_detail(result)}"
        self._schemas.answered(task, result.status, detail)
        if REPORTS in self._schemas.streams_refused():
            self._report = b""
        if result.status >= 300:
            self._say(SENDING, detail)

    def _expect_acks(self, task: Batch, now_s: float) -> None:
        """A 200 acknowledges all; whoever says it without (some proxy) is not trusted for long."""
        for place in task.places:
            if self.backlog.partitions[place.stream, place.partition].acked < place.seq:
                self._trouble(
                    place.stream,
                    place.partition,
                    "unacknowledged",
                    "answered with status 200, but without acknowledging the pages",
                    now_s,
                )
                return

    def _shrink(self, task: Task) -> None:
        """The request did not arrive whole: where it had pages, the next ones are smaller."""
        if isinstance(task, Batch) and task.places:
            half = max(REQUEST_BYTES_MIN, sum(p.length for p in task.places) // 2)
            self._request_bytes = min(self._request_bytes, half)

    def _too_large(self, task: Batch, detail: str, now_s: float) -> None:
        if len(task.places) > 1:
            self._request_bytes_max = sum(p.length for p in task.places) // 2
            self._request_bytes = min(self._request_bytes, self._request_bytes_max)
        elif task.places:
            place = task.places[0]
            self._trouble(place.stream, place.partition, "too_large", detail, now_s)

    def _problem(self, task: Batch, result: Reply, now_s: float) -> None:
        body = result.body
        problem = str(body.get("problem", f"status {result.status}"))
        self.counters.alarms += problem in ALARMS
        stream, partition = body.get("stream"), body.get("partition")
        if problem == "fenced":
            self._say(FENCED, _detail(result))
            return
        if problem == "unknown_schema":
            self._schemas.again(stream, body.get("version"))
        if stream == REPORTS or not task.places:
            self._say(self.state, f"{problem}: {_detail(result)}")
            return
        if (stream, partition) not in {(p.stream, p.partition) for p in task.places}:
            stream, partition = task.places[0].stream, task.places[0].partition
        expected = body.get("expected")
        self._trouble(str(stream), int(str(partition)), problem, _detail(result), now_s, expected)

    def _trouble(
        self,
        stream: str,
        partition: int,
        problem: str,
        detail: str,
        now_s: float,
        expected: int | None = None,
    ) -> None:
        part = self.backlog.partitions[stream, partition]
        self._troubles.met(part, problem, detail, now_s, expected)
        self._say(self.state, f"{problem}: {detail}")

    def _take_acks(self, task: Task, result: Reply) -> bool:
        """Whether a report has arrived."""
        arrived = False
        places = task.places if isinstance(task, Batch) else ()
        sent = {(p.stream, p.partition): p.seq for p in places}
        for stream, partition, seq in result.body.get("acked", ()):
            if stream == REPORTS:
                arrived = True
                self.counters.reports += 1
                continue
            upto = min(int(seq), sent.get((stream, partition), 0))
            count = self.backlog.acked(stream, partition, upto)
            if count:
                self.counters.acked_pages += count
                self._acks[stream, partition] = upto
                self._troubles.over((stream, partition))
                self.backlog.partitions[stream, partition].hold_until_s = 0.0
        return arrived

    # -- what the daemon is told

    def take_acks(self) -> list[tuple[str, int, int]]:
        """Cumulative acks since the last call."""
        acks = [(stream, partition, seq) for (stream, partition), seq in self._acks.items()]
        self._acks.clear()
        return acks

    def status(self) -> dict[str, Any]:
        """Figures and states for people."""
        return {
            "state": self.state,
            "backlog_pages": self.backlog.pages,
            "backlog_bytes": self.backlog.bytes,
            "hold_until_s": None if self.state == SENDING else self._hold_until_s,
            "requests": self.counters.requests,
            "sent_pages": self.counters.pages,
            "alarms": self.counters.alarms,
            "bytes": self.counters.bytes,
            "acked_pages": self.counters.acked_pages,
            "reports": self.counters.reports,
            "failures": self.counters.failures,
            "last_error": self.last_error,
            "stuck": self._troubles.stuck(),
            "refused_streams": sorted({stream for stream, _ in self._schemas.refused}),
            "desired": self.desired,
        }


def _detail(result: Reply) -> str:
    return str(result.body.get("detail", f"the centre answered with status {result.status}"))
