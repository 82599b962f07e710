"""Shelved jobs: jobs of the store whose plug-ins do not load, kept aside until they do.

    snapshot ─► arrays of the job ─┐
                                   ├─► ShelfDraft ─► shelf file (edged.store.shelf_files)
    log ─► its part of each beat ──┘

The file holds the job as a recovery needs it: the document and the arrays of the snapshot, and its
part of every record since: facts, inputs byte for byte, and the checksums of its pages.  A shelved
job takes no part in beats and does not change, so that no later record names it.  A snapshot names
it with a `ShelvedJob`; a start at which its plug-ins load replays the file and goes on from there
(`edged.beat.recover`).

    facts of a file: {"base": {"document", "meta"} | null, "records": [{"number", "facts": text,
        "lengths": [bytes of each input], "pages": [[stream, partition, number, CRC-32]],
        "logged": bool, "retired": {…} | null}]}
    arrays: `state/<name in the snapshot>`, `inputs/<index of the record>`

Without a base the job was put after the snapshot: its first record is that change.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from edged.beat.record import BeatFacts, JobFacts, input_count
from edged.data.flow import State
from edged.data.schema_document import columns
from edged.errors import JobError
from edged.job.changes import JobMetadata
from edged.job.footprint import Footprint
from edged.job.plan import JobPlan, input_documents
from edged.pages.sealed import PageKey, SealedPage
from edged.store import Snapshot

SHELVED = "shelved"
REMEDY = "repair or install the plug-in and restart edged, or delete the job with its state"
_PAD = 8

Inputs = list[npt.NDArray[np.uint8]]


@dataclass
class RecordPart:
    """One job's part of a log record, or all of it."""

    number: int
    facts: BeatFacts
    inputs: Inputs
    pages: dict[PageKey, bytes | int]
    """The pages, or their CRC-32."""
    logged: bool
    """Whether records held their inputs then; without, the beat is passed over."""
    retired: dict[str, Any] | None = None
    """For a put document: the retired streams at that time."""


@dataclass
class ShelvedJob:
    """A job that is kept aside, as far as it is known without its plug-ins."""

    document: dict[str, Any]
    meta: JobMetadata
    footprint: Footprint
    last: dict[str, list[int]]
    """Number of the last page of each stream and partition."""
    reason: str
    beat: int = 0
    """The newest beat in its file."""

    @property
    def name(self) -> str:
        """The job's name."""
        return str(self.document["name"])

    @property
    def problem(self) -> str:
        """Why it does not run, and what to do."""
        packages = ", ".join(self.footprint.packages)
        made = f" (it ran with {packages})" if packages else ""
        return f"{self.reason}{made}; {REMEDY}"

    def shipped(self) -> list[str]:
        """The streams of pages that it ships."""
        return self.footprint.streams()

    def last_pages(self) -> dict[str, list[int]]:
        """Number of the last page of each stream and partition."""
        return self.last

    def reads(self, listener: str, stream: str) -> bool:
        """Whether the stream of this listener is one of its own."""
        return [listener, stream] in self.footprint.listeners

    def check_beside(self, plan: JobPlan) -> None:
        """Raise JobError where a job takes what this one needs when it is back."""
        for id, sink in plan.sinks.items():
            for claim in sink.claims():
                if claim in self.footprint.claims:
                    raise self._taken(f"{plan.name}.sinks.{id}", f"makes {claim}")
        for name, stream in plan.streams.items():
            key = stream.source.share_key()
            if stream.source.listens and self.reads(key, name):
                path = f"{plan.name}.{stream.section}.{name}.source"
                raise self._taken(path, f"has a stream {name} on {key}")

    def _taken(self, path: str, holds: str) -> JobError:
        return JobError(path, f"job {self.name}, which is {SHELVED}, {holds}", REMEDY)

    def take_inputs(self, facts: JobFacts, arrays: Iterator[npt.NDArray[np.uint8]]) -> Inputs:
        """Its arrays of a record, which come next in `arrays`."""
        found: Inputs = []
        for name, f in facts.streams.items():
            if f.logged_rows:
                schema = columns(name, input_documents(self.document)[name])
                found += [next(arrays) for _ in range(input_count(schema))]
        return found

    def count_inputs(self, facts: JobFacts) -> int:
        """The number of its arrays in a record."""
        given = input_documents(self.document)
        logged = [name for name, f in facts.streams.items() if f.logged_rows]
        return sum(input_count(columns(name, given[name])) for name in logged)

    def take_pages(self, pages: Sequence[SealedPage]) -> dict[PageKey, bytes | int]:
        """The checksums of its pages of a record."""
        mine = [page for page in pages if page.key.stream in self.shipped()]
        for page in mine:
            last = self.last.setdefault(page.key.stream, [])
            last += [0] * (page.key.partition + 1 - len(last))
            last[page.key.partition] = max(last[page.key.partition], page.key.seq)
        return {page.key: zlib.crc32(page.data) for page in mine}

    def to_json(self) -> dict[str, Any]:
        """For the facts of a snapshot; the reason is found again at every start."""
        return {
            "document": self.document,
            "meta": asdict(self.meta),
            "footprint": self.footprint.to_json(),
            "last": self.last,
            "beat": self.beat,
        }

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> ShelvedJob:
        """The inverse of `to_json`."""
        meta, footprint = JobMetadata(**given["meta"]), Footprint(**given["footprint"])
        return cls(given["document"], meta, footprint, given["last"], "", given["beat"])


@dataclass
class ShelfBase:
    """A job as a snapshot has it."""

    document: dict[str, Any]
    meta: JobMetadata
    arrays: State


@dataclass
class ShelfDraft:
    """What is to be written into a job's shelf file."""

    base: ShelfBase | None
    records: list[dict[str, Any]] = field(default_factory=list)
    inputs: State = field(default_factory=dict)

    def add(self, part: RecordPart) -> None:
        """Append the job's part of a record; the pages are checksums."""
        padded = [b for array in part.inputs for b in (array, _padding(array))]
        if padded:
            self.inputs[f"inputs/{len(self.records)}"] = np.concatenate(padded)
        self.records.append(
            {
                "number": part.number,
                "facts": part.facts.encode().decode(),
                "lengths": [array.size for array in part.inputs],
                "pages": [[k.stream, k.partition, k.seq, crc] for k, crc in part.pages.items()],
                "logged": part.logged,
                "retired": part.retired,
            }
        )

    def contents(self) -> tuple[bytes, State]:
        """Facts and arrays of the file."""
        base, arrays = None, dict(self.inputs)
        if self.base is not None:
            base = {"document": self.base.document, "meta": asdict(self.base.meta)}
            arrays |= {f"state/{name}": array for name, array in self.base.arrays.items()}
        facts = {"base": base, "records": self.records}
        return json.dumps(facts, separators=(",", ":")).encode(), arrays


def read_shelf(file: Snapshot) -> tuple[ShelfBase | None, list[RecordPart]]:
    """The inverse of `ShelfDraft.contents`; the arrays belong to the caller."""
    facts = json.loads(file.facts)
    base = None
    if (given := facts["base"]) is not None:
        state = {k.removeprefix("state/"): v for k, v in file.arrays.items() if k[:6] == "state/"}
        base = ShelfBase(given["document"], JobMetadata(**given["meta"]), state)
    parts = []
    for i, record in enumerate(facts["records"]):
        inputs, at = list[npt.NDArray[np.uint8]](), 0
        for length in record["lengths"]:
            inputs.append(file.arrays[f"inputs/{i}"][at : at + length])
            at += length + -length % _PAD
        parts.append(
            RecordPart(
                record["number"],
                BeatFacts.decode(record["facts"].encode()),
                inputs,
                {PageKey(stream, p, seq): crc for stream, p, seq, crc in record["pages"]},
                record["logged"],
                record["retired"],
            )
        )
    return base, parts


def _padding(array: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    return np.zeros(-array.size % _PAD, np.uint8)
