"""The parsers behind each door, fed in this process: what a door may raise is caught here, all else
is a find.

A door has `corpora`, valid inputs by a tag that says how they are read, and `feed`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa

from api.ingest.decode import decode
from api.ingest.media_types import ARROW, CSV, DEBEZIUM, NDJSON
from api.problems import ApiProblem
from edged.central import schemas as registry
from edged.central.page_request import DeviceSession, check
from edged.control import door
from edged.daemon.commands import integer, text
from edged.data.columns import address
from edged.data.schema import WEIGHT_COLUMN, Schema
from edged.data.staging import Staging
from edged.documents.reader import loads
from edged.errors import CentralError, EdgedError, JobError, PageError, PeerError
from edged.job.plan import faults
from edged.pages.format import scan_pages
from edged.pages.header import CHECKSUM_AT, checksum
from edged.pages.read import read_page
from edged.sources._tcp_decode import Decoder
from edged.sources._tcp_greeting import read_greeting, wanted
from edged.sources._tcp_schema import match
from edged.sources._tcp_slow import SlowReader
from kernels.cpu import ipc
from tests.api.support import READINGS, small_toml
from tests.central.support import DEVICE, EPOCH, make_page
from tests.central.support import SCHEMA as PAGE_SCHEMA
from tests.pages.shapes import batch_of, stream_of, write_all
from tests.sources.tcp_rig import ARROW as STREAM
from tests.sources.tcp_rig import SCHEMA, messages, metadata, rows

ROOT = Path(__file__).resolve().parents[2]
WALL_US = 1_800_000_000_000_000
Corpora = Mapping[str, Sequence[bytes]]


class Door:
    """A parser that a peer reaches."""

    corpora: Corpora

    def feed(self, tag: str, data: bytes) -> None:
        """Parse one input; returns or raises nothing but what the door answers with."""
        raise NotImplementedError


class Greeting(Door):
    """The TCP source: the first message of a connection."""

    def __init__(self) -> None:
        plain = [metadata(), metadata("x"), metadata("s", "p"), metadata("s", "p", "t")]
        self.corpora = {"": [messages([], schema) for schema in plain]}

    def feed(self, tag: str, data: bytes) -> None:
        """As the admission does."""
        with suppress(PeerError):
            greeting = read_greeting(data, None)
            if greeting is None:
                assert wanted(data) > 0
                return
            match(greeting.schema, SCHEMA, greeting.stream)


class SchemaMessage(Greeting):
    """The same with the columns as the target: many, odd and nested ones."""

    def __init__(self) -> None:
        kinds = [pa.int8(), pa.timestamp("us", "UTC"), pa.dictionary(pa.int8(), pa.string()),
                 pa.list_(pa.int8()), pa.binary(7), pa.struct([("a", pa.null())]),
                 pa.large_string(), pa.decimal128(9, 2), pa.string_view()]  # fmt: skip
        fields = [pa.field(f"column{i}", kind, metadata={"k": "v"}) for i, kind in enumerate(kinds)]
        odd = pa.schema([*STREAM, *fields], {"edged.stream": "s"})
        wide = pa.schema([pa.field(f"c{i}", pa.int8()) for i in range(200)], {"edged.stream": "s"})
        dictionary = STREAM.set(2, pa.field("name", pa.dictionary(pa.int8(), pa.string())))
        schemas = [odd, wide, dictionary.with_metadata({"edged.stream": "s"}), metadata()]
        self.corpora = {"": [schema.serialize().to_pybytes() for schema in schemas]}


class Batches(Door):
    """The TCP source: messages after the greeting, decoded by kernels and by pyarrow."""

    def __init__(self) -> None:
        lz4 = pa.ipc.IpcWriteOptions(compression="lz4")
        zstd = pa.ipc.IpcWriteOptions(compression="zstd")
        dictionary = STREAM.set(2, pa.field("name", pa.dictionary(pa.int8(), pa.string())))
        coded = dictionary.with_metadata({"edged.stream": "s"})
        parts = [rows(0, 20), rows(20, 7)]
        cast = [part.cast(coded) for part in parts]
        self._slow = {
            tag: messages([], schema, options=options)
            for tag, schema, options in (
                ("fast", metadata(), None), ("lz4", metadata(), lz4), ("zstd", metadata(), zstd),
                ("coded", coded, None),
            )
        }  # fmt: skip
        self.corpora = {
            "fast": [self._rest("fast", messages(parts, first_seq=1, end=True)),
                     self._rest("fast", messages(parts))],
            "lz4": [self._rest("lz4", messages(parts, first_seq=1, options=lz4))],
            "zstd": [self._rest("zstd", messages(parts, first_seq=1, options=zstd))],
            "coded": [self._rest("coded", messages(cast, coded, first_seq=1))],
        }  # fmt: skip
        self._renew()

    def _rest(self, tag: str, data: bytes) -> bytes:
        return data[len(self._slow[tag]) :]

    def _renew(self) -> None:
        self._staging = Staging("s", SCHEMA, "time", 1 << 22, 24 * 3_600_000_000)
        self._decoder = Decoder(self._staging, 1 << 21)
        self._layouts = {}
        for tag, greeting in self._slow.items():
            schema = pa.ipc.read_schema(pa.py_buffer(greeting))
            self._layouts[tag] = self._decoder.layout(match(schema, SCHEMA, "s"))

    def feed(self, tag: str, data: bytes) -> None:
        """As a round of the source does."""
        if self._staging.room() < 1 << 20:
            self._renew()
        held = np.frombuffer(bytearray(data or b"\0"), np.uint8)
        region = np.zeros((1, len(ipc.REGION)), np.int64)
        region[0, ipc.REGION.address], region[0, ipc.REGION.length] = address(held), len(data)
        region[0, ipc.REGION.layout] = self._layouts[tag]
        region[0, ipc.REGION.slow] = self._layouts[tag] == 0
        slow = self._decoder.run(region, WALL_US)
        assert 0 <= region[0, ipc.REGION.consumed] <= len(data)
        if len(slow):
            reader = SlowReader(self._slow[tag], SCHEMA, self._staging.batch_bytes_max)
            with suppress(PeerError):
                for message in slow:
                    if (batch := reader.take(message)) is not None:
                        self._staging.append(batch, 0, WALL_US)


def event(row: bytes) -> bytes:
    """An update of Debezium of a row as JSON."""
    return b'{"op":"u","before":%b,"after":%b,"source":{"snapshot":"last"}}' % (row, row)


class HttpIngest(Door):
    """Bodies of `POST /v1/streams/{stream}/tuples`."""

    def __init__(self) -> None:
        self._schema = STREAM
        table = pa.Table.from_batches([rows(0, 20)])
        lines = [json.dumps(row, default=str).encode() for row in table.to_pylist()]
        csv = pa.BufferOutputStream()
        pa.csv.write_csv(table, csv)
        self.corpora = {
            NDJSON: [b"\n".join(lines), lines[0]],
            CSV: [csv.getvalue().to_pybytes(), csv.getvalue().to_pybytes()[:120]],
            ARROW: [messages([rows(0, 20)], STREAM, end=True)],
            DEBEZIUM: [b"\n".join(map(event, lines)), event(lines[0]), b"null\n" + event(lines[1])],
        }
        self._events = self._schema.append(pa.field(WEIGHT_COLUMN, pa.int32(), nullable=False))

    def feed(self, tag: str, data: bytes) -> None:
        """As a decoder does."""
        with suppress(ApiProblem):
            decode(data, tag, self._events if tag == DEBEZIUM else self._schema)


class CollectorRequest(Door):
    """Bodies of the collector: pages, and schemas."""

    def __init__(self) -> None:
        pages = [make_page(seq) for seq in (1, 2, 3)]
        self.corpora = {
            "pages": [b"".join(pages), pages[0]],
            "resealed": [b"".join(pages), pages[0]],
            "schema": [PAGE_SCHEMA.encode()],
        }
        self._sender = DeviceSession(DEVICE, EPOCH, 1, 1)

    def feed(self, tag: str, data: bytes) -> None:
        """As the routes do."""
        if tag == "schema":
            with suppress(CentralError, UnicodeDecodeError):
                registry._canonical("s", 1, data.decode())
            return
        check(self._sender, resealed(data) if tag == "resealed" else data)


class ControlDoor(Door):
    """Lines of the control socket."""

    def __init__(self) -> None:
        put = {"cmd": "job.put", "document": READINGS, "if_version": 3}
        requests = [put, {"cmd": "events", "since": 5, "limit": 10}, {"cmd": "job", "name": "a"}]
        self.corpora = {"": [json.dumps(request).encode() + b"\n" for request in requests]}

    def feed(self, tag: str, data: bytes) -> None:
        """As the door and its commands do."""
        with suppress(EdgedError):
            request = door._request(bytearray(data))
            for key in request:
                with suppress(EdgedError):
                    integer(request, key, 0, 0, 2**63 - 1)
                with suppress(EdgedError):
                    text(request, key)
            if isinstance(document := request.get("document"), dict):
                faults(document)


class Documents(Door):
    """Job documents in TOML and JSON."""

    def __init__(self) -> None:
        examples = sorted((ROOT / "examples").rglob("*.toml"))
        toml = [path.read_bytes() for path in examples] + [small_toml().encode()]
        toml = [data for data in toml if len(data) < 8000]
        self.corpora = {"toml": toml, "json": [json.dumps(READINGS).encode()]}

    def feed(self, tag: str, data: bytes) -> None:
        """As the checker's child does."""
        with suppress(JobError):
            faults(loads(data.decode(errors="replace"), json_text=tag == "json"))


class Pages(Door):
    """Pages as the reader gets them, with a right checksum."""

    def __init__(self) -> None:
        dense = Schema.from_json(PAGE_SCHEMA)
        slotted = Schema.from_json(
            '[{"name":"time","type":"timestamp"},{"name":"s","type":"string","nullable":true},'
            '{"name":"b","type":"binary"}]'
        )
        texts = [None if i % 3 == 0 else "te\u00e4xt" * (i % 5) for i in range(30)]
        values = [(i, text, b"\xff" * i) for i, text in enumerate(texts)]
        made = write_all(stream_of(slotted), [batch_of(slotted, values)])
        self._schemas = {"dense": dense, "slotted": slotted}
        self.corpora = {
            "dense": [make_page(1), make_page(2, rows=40)],
            "slotted": [bytes(page.data) for page in made],
        }

    def feed(self, tag: str, data: bytes) -> None:
        """As the data source and `edged export` do."""
        data = resealed(data)
        for page in scan_pages(data):
            if page.problem is None:
                with suppress(PageError):
                    read_page(page.data, self._schemas[tag])


def resealed(data: bytes) -> bytes:
    """The bytes with the checksum that a page of all of them carries."""
    if len(data) < CHECKSUM_AT + 4:
        return data
    crc = checksum(data).to_bytes(4, "little")
    return data[:CHECKSUM_AT] + crc + data[CHECKSUM_AT + 4 :]


DOORS: dict[str, Callable[[], Door]] = {
    "greeting": Greeting,
    "schema": SchemaMessage,
    "batch": Batches,
    "ingest": HttpIngest,
    "collector": CollectorRequest,
    "control": ControlDoor,
    "documents": Documents,
    "pages": Pages,
}
