"""A device whose pages a gateway sends on: its sender, its name at the centre, its containers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edged.pages.container import CarriedPage, Contents
from edged.uplink.json_file import replace_json
from edged.uplink.pages import PageReader, WrongPage
from edged.uplink.send_queue import PageLocation
from edged.uplink.sender import DOWN, FENCED, SENDING, UNAUTHORIZED, Sender
from edged.uplink.tasks import RegisterSchema, Result, SendPages, Task
from edged.uplink.telemetry import STREAM as TELEMETRY

IDLE_S = float("inf")
_STATES = {SENDING: "connected", DOWN: "backing_off", UNAUTHORIZED: "refused", FENCED: "refused"}
_Page = tuple[str, int, int]
"""Stream, partition and number."""


@dataclass(slots=True)
class Container:
    """Pages of one device that the store keeps and gives up together."""

    slot: tuple[str, int]
    seq: int
    device: ForwardedDevice | None = None
    place: PageLocation | None = None
    waits: set[_Page] = field(default_factory=set)
    """Pages that the centre has not acknowledged."""
    rows: int = 0
    report: CarriedPage | None = None
    """The last of its reports, until it is handed to the sender."""


class ForwardedDevice:
    """See the module's docstring.  Not thread-safe."""

    def __init__(
        self, found: Contents, directory: Path, request_bytes: int, random: Callable[[], float]
    ) -> None:
        self.name, self.epoch = found.device, found.epoch
        self.due_s = 0.0
        """When `next` may have a task."""
        self._directory = directory
        self._session, self._token = found.session, found.token
        self._sender = Sender((), random, request_bytes)
        self._sender.desired_version = self._desired_version()
        self._known: set[tuple[str, int]] = set()
        self._holders: dict[tuple[str, int], dict[int, Container]] = {}
        """The container of each page, by stream and partition, then by number."""
        self._link = ""
        self._refused = ""
        self._counts = dict.fromkeys(("rows", "bytes", "pages", "connections", "failures"), 0)
        self._said: dict[str, Any] = {}

    @property
    def pages(self) -> int:
        """Pages that wait."""
        return self._sender.queue.pages

    # containers --------------------------------------------------------------------------------

    def adopt(self, found: Contents) -> None:
        """Go on with the session and the token of newer pages."""
        if found.session[0] >= self._session[0]:
            if found.session[0] > self._session[0] and self._sender.state == FENCED:
                self._sender.state = SENDING
            self._session, self._token = found.session, found.token

    def offer(
        self, container: Container, place: PageLocation, pages: Sequence[CarriedPage]
    ) -> None:
        """Add a container's pages, or their new location."""
        self._link = container.slot[0]
        for page in pages:
            self._require(page.stream, page.version)
            if page.stream == TELEMETRY:
                continue
            key = (page.stream, page.partition, page.seq)
            if key not in container.waits:
                continue
            self._holders.setdefault(key[:2], {})[page.seq] = container
            at = place.offset + page.at
            where = PageLocation(*key, place.file, at, page.length)
            self._sender.offer(where)
            if self._acked(page.stream, page.partition) >= page.seq:
                container.waits.discard(key)
        if container.report is not None:
            self._report(container, place)
        self.due_s = 0.0

    def lost(self, container: Container) -> None:
        """Its pages are lost for good: the centre is told of them when it misses them."""
        for stream, partition, seq in sorted(container.waits):
            self._sender.lost(stream, partition, seq, seq)
            self._holders.get((stream, partition), {}).pop(seq, None)
        container.waits.clear()
        self.due_s = 0.0

    def finished(self, container: Container) -> None:
        """The container is acknowledged."""
        self._counts["rows"] += container.rows

    def slot_of(self, place: PageLocation) -> tuple[str, int] | None:
        """The partition of containers that a page is in."""
        holder = self._holders.get((place.stream, place.partition), {}).get(place.seq)
        return None if holder is None else holder.slot

    def _acked(self, stream: str, partition: int) -> int:
        part = self._sender.queue.partitions.get((stream, partition))
        return 0 if part is None else part.acked

    def _require(self, stream: str, version: int) -> None:
        """Have a schema registered at the centre before its pages."""
        if (stream, version) in self._known:
            return
        try:
            path = self._directory / "schemas" / f"{stream}@{version}.json"
            text = path.read_text(encoding="utf-8")
        except (OSError, ValueError):
            return  # the centre says that it lacks it; the device registers it again
        self._known.add((stream, version))
        self._sender.register(stream, version, text)

    def _report(self, container: Container, place: PageLocation) -> None:
        """Hand a container's last report to the sender, where it is new."""
        report, container.report = container.report, None
        assert report is not None
        key = (report.stream, report.partition, report.seq)
        at = place.offset + report.at
        where = PageLocation(*key, place.file, at, report.length)
        try:
            page = bytes(PageReader().read([where]))
        except WrongPage:
            return
        self._sender.report(page)

    # requests ----------------------------------------------------------------------------------

    def headers(self) -> dict[str, str]:
        """The headers of a request in the device's name."""
        headers = {
            "X-Edged-Device": self.name,
            "X-Edged-Epoch": str(self.epoch),
            "X-Edged-Session": "{}:{}".format(*self._session),
            "X-Edged-Desired": str(self._sender.desired_version),
            "Content-Type": "application/octet-stream",
        }
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        return headers

    def retry(self) -> None:
        """End every wait."""
        self._sender.retry()
        self.due_s = 0.0

    def next(self, now_s: float, closed_until_s: float | None) -> Task | None:
        """The next task; without one, `due_s` says when there may be one."""
        self._sender.closed_until_s = closed_until_s
        task = self._sender.next(now_s)
        if isinstance(task, RegisterSchema | SendPages):
            self.due_s = 0.0 if self._sender.more(now_s) else IDLE_S
            return task
        self.due_s = IDLE_S if task is None else task
        return None

    def done(self, task: Task, result: Result, now_s: float) -> set[tuple[str, int]]:
        """Process a result; returns the partitions of containers that may be done."""
        self._sender.done(task, result, now_s)
        slots = set()
        for stream, partition, seq in self._sender.take_acks():
            holders = self._holders.get((stream, partition), {})
            for done in [number for number in holders if number <= seq]:
                holder = holders.pop(done)
                holder.waits.discard((stream, partition, done))
                slots.add(holder.slot)
        self._sender.take_missing()
        document, self._sender.document = self._sender.document, None
        if document is not None:
            replace_json(self._directory / "desired" / f"{self.name}.json", document)
        self._note_refusal()
        self.due_s = 0.0
        return slots

    def _note_refusal(self) -> None:
        """Keep for the gateway's process that the centre refuses the token, or no longer does."""
        state, path = self._sender.state, self._directory / "refused" / f"{self.name}.json"
        if state == UNAUTHORIZED:
            self._refused = hashlib.sha256(self._token.encode()).hexdigest()
            replace_json(path, {"token": self._refused, "detail": self._sender.last_error})
        elif self._refused and state == SENDING:
            self._refused = ""
            path.unlink(missing_ok=True)

    def _desired_version(self) -> int:
        """The version of the desired state that the gateway has."""
        try:
            content = json.loads((self._directory / "desired" / f"{self.name}.json").read_bytes())
            return int(content["version"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    # state -------------------------------------------------------------------------------------

    def news(self, number: int) -> dict[str, Any] | None:
        """State and figures as of a link's instance, where they have changed."""
        status = self._sender.status()
        stuck = bool(status["stuck"] or status["refused_streams"])
        well = status["state"] == SENDING and not stuck
        counts = {
            "rows": self._counts["rows"], "bytes": status["bytes"],
            "pages": status["acked_pages"], "connections": 0, "failures": status["failures"],
        }  # fmt: skip
        said = {
            "link": self._link, "instance": number, "to": self.name,
            "state": "refused" if stuck else _STATES[status["state"]],
            "problem": "" if well else status["last_error"],
            "in_flight_bytes": status["backlog_bytes"],
            "in_flight_pages": status["backlog_pages"], "acked": 0, **counts,
        }  # fmt: skip
        if said == self._said:
            return None
        self._said = said
        return said
