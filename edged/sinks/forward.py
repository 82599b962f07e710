"""The `forward` sink: devices' pages that a gateway took travel on to the centre unchanged.

    [sinks.onward]
    type = "forward"
    input = "pages"            # a stream of source `pages` with forward = true

A row is a page.  Each beat makes a container (`edged.pages.container`) of each device's pages;
it is durable with the beat, and the uplink process sends what is in it in the device's name.
Containers of a device have one partition, `SLOTS` in all, so that a device that the centre refuses
holds back the space of few.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from edged.data.carried import CARRIED_COLUMNS, carried_schema
from edged.data.columns import Batch, Column
from edged.data.flow import BeatContext, Flow, Link, State
from edged.documents.reach import Reach
from edged.errors import JobError
from edged.pages.container import (
    CONTAINER_BYTES_MAX,
    Label,
    carried_name,
    epoch_of,
    is_whole,
    pack,
)
from edged.pages.sealed import PageKey, SealedPage
from edged.sinks.base import Flush, Sink, SinkContext, SinkPlan, sink
from edged.sinks.edge import NAME_CHARACTERS_MAX

SLOTS = 256
_SESSION = re.compile(rb"\d{1,20}:\d{1,20}")
_Pages = list[memoryview]
_Sender = tuple[int, str, str, str]
"""Epoch, device, session and token."""


class ForwardSink(Sink):
    """The pages of a beat, by device."""

    def __init__(self, name: str, device: str, epoch: int) -> None:
        self._name, self._device, self._epoch = name, device, epoch
        self._taken: dict[_Sender, _Pages] = {}
        self._last = np.zeros(SLOTS, np.int64)
        self._counts = dict.fromkeys(("pages", "page_bytes", "containers", "rows_damaged"), 0)

    def write(self, beat: BeatContext, flow: Flow) -> None:
        """Note the beat's pages; a row is a page."""
        batch: Batch = flow.batch
        texts = [_cells(batch[name]) for name in CARRIED_COLUMNS]
        for device, session, token, page in zip(*texts, strict=True):
            if not is_whole(page) or not _SESSION.fullmatch(session):
                self._counts["rows_damaged"] += 1
                continue
            texts_of = (str(device, "utf-8"), str(session, "utf-8"), str(token, "utf-8"))
            self._taken.setdefault((epoch_of(page), *texts_of), []).append(page)

    def seal(self, beat: BeatContext, flush: Flush) -> list[SealedPage]:
        """The containers of all pages, devices in order of their first page."""
        found = []
        for sender, pages in self._taken.items():
            for part in _parts(pages):
                found.append(self._container(beat, sender, part))
        self._taken = {}
        return found

    def _container(self, beat: BeatContext, sender: _Sender, pages: _Pages) -> SealedPage:
        _, device, session, token = sender
        slot = zlib.crc32(device.encode()) % SLOTS
        self._last[slot] += 1
        key = PageKey(self._name, slot, int(self._last[slot]))
        label = Label(
            self._device, self._epoch, self._name, slot, key.seq, beat.number, beat.wall_us
        )
        counter, _, nonce = session.partition(":")
        data = pack(label, device, (int(counter), int(nonce)), token, pages)
        self._counts["pages"] += len(pages)
        self._counts["page_bytes"] += sum(map(len, pages))
        self._counts["containers"] += 1
        return SealedPage(key, data)

    def open_rows(self) -> int:
        """None: all pages leave with their beat."""
        return 0

    def save(self) -> State:
        """The last number of each partition."""
        return {"last": self._last.copy()}

    def load(self, state: State) -> None:
        """Restore a saved state."""
        self._last = state["last"].copy()

    def skip(self, beat: int, keys: Sequence[PageKey]) -> None:
        """Continue after the durable containers."""
        self._taken = {}
        for key in keys:
            if key.stream == self._name and key.partition < SLOTS:
                self._last[key.partition] = max(self._last[key.partition], key.seq)

    def numbers(self) -> Mapping[str, list[int]]:
        """The last container of each partition."""
        return {self._name: self._last.tolist()}

    def counters(self) -> Mapping[str, int | float]:
        """Pages, their bytes, and containers; `rows_damaged` were no pages, and are dropped."""
        return dict(self._counts)


def _cells(column: Column) -> list[memoryview]:
    """The bytes of each row, as views."""
    assert column.offsets is not None
    data, ends = memoryview(column.values.data), column.offsets.tolist()
    return [data[start:end] for start, end in pairwise(ends)]


def _parts(pages: _Pages) -> list[_Pages]:
    """The pages in groups of about CONTAINER_BYTES_MAX."""
    parts: list[_Pages] = [[]]
    size = 0
    for page in pages:
        if parts[-1] and size + len(page) > CONTAINER_BYTES_MAX:
            parts.append([])
            size = 0
        parts[-1].append(page)
        size += len(page)
    return parts


@sink("forward")
@dataclass(frozen=True)
class ForwardPlan(SinkPlan):
    """A checked `forward` sink."""

    keys = frozenset()

    id: str
    job: str = ""

    @classmethod
    def parse(cls, path: str, id: str, document: Mapping[str, Any], input: Link) -> ForwardPlan:
        """Check that its input has the columns of devices' pages.  Raises JobError."""
        wanted = carried_schema()
        for name in CARRIED_COLUMNS:
            field = wanted.field(name)
            if name not in input.schema or input.schema.field(name) != field:
                raise JobError(
                    f"{path}.input",
                    f"has no column {name} of type {field.dtype.name} for a device's pages",
                    "read a stream of source pages with forward = true",
                )
        return cls(id)

    def in_job(self, job: str) -> ForwardPlan:
        """The sink of this job.  Raises JobError where the names are too long for the store."""
        if len(job) + len(self.id) > NAME_CHARACTERS_MAX:
            problem = f"has, with the job's name, more than {NAME_CHARACTERS_MAX} characters"
            raise JobError(f"sinks.{self.id}", problem, "shorten one of the names")
        return replace(self, job=job)

    def build(self, context: SinkContext) -> ForwardSink:
        """The running sink."""
        return ForwardSink(carried_name(self.job, self.id), context.device, context.epoch)

    def reach(self, root: Path) -> Reach:
        """Nothing: the uplink's address is the daemon's."""
        return Reach()

    def describe(self) -> list[str]:
        """Lines for `edged explain`."""
        return ["devices' pages, unchanged, to the daemon's uplink in the devices' names"]

    def signature(self) -> str:
        """Its kind: what it keeps are numbers."""
        return hashlib.sha256(repr([self.kind, self.version]).encode()).hexdigest()[:16]

    def schemas(self) -> Sequence[tuple[str, int, str]]:
        """The name of its containers."""
        return ((carried_name(self.job, self.id), 1, carried_schema().to_json()),)

    def claims(self) -> Sequence[str]:
        """None: the containers' name has its job's name in it."""
        return ()
