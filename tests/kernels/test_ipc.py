"""The Arrow kernels against pyarrow and their naive twins, on whole and on damaged input.

Damaged messages are parsed right before and right behind a page that must not be touched: a read
outside the region would end the test process.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import tests.naive.ipc as naive
import tests.naive.ipc_columns as naive_columns
from edged.data.columns import Batch, Column, address
from edged.data.schema import BINARY, BOOL, INT8, INT64, STRING, TIMESTAMP, TYPES, Field, Schema
from edged.data.staging import Staging
from edged.sources._tcp_decode import Decoder
from edged.sources._tcp_schema import match
from kernels.cpu import ipc, ipc_columns, ipc_packed
from kernels.cpu.ipc_frame import frame, inflated
from tests.whole import examples

NOW_US = 1_800_000_000_000_000
HOUR_US = 3_600_000_000
SMALL = Schema.of(
    [Field("t", TIMESTAMP), Field("s", STRING, True), Field("b", BOOL, True), Field("i", INT8)]
)


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    kinds = draw(st.lists(st.sampled_from(sorted(TYPES)), max_size=6))
    fields = [Field(f"c{i}", TYPES[k], draw(st.booleans())) for i, k in enumerate(kinds)]
    fields.insert(draw(st.integers(0, len(fields))), Field("t", TIMESTAMP))
    return Schema.of(fields)


def random_batch(schema: Schema, rows: int, seed: int, ahead: bool = False) -> pa.RecordBatch:
    """Rows of extremes, NaNs, nulls and odd text; times around NOW_US, some far ahead."""
    rng = np.random.default_rng(seed)
    words = ["", "a", "né", "\U0001f300 storm", "x" * 70, "ß\x00ß"]
    arrays = []
    for f in schema:
        mask = rng.random(rows) < 0.3 if f.nullable and rng.random() < 0.8 else None
        if f.name == "t":
            times = NOW_US + rng.integers(-HOUR_US, HOUR_US, rows)
            if ahead:
                times += (rng.random(rows) < 0.3) * 10 * HOUR_US
            arrays.append(pa.array(times, pa.int64()).cast(f.dtype.arrow))
        elif f.dtype.variable:
            text = [words[i] for i in rng.integers(0, len(words), rows)]
            values = [t.encode() + b"\xff" for t in text] if f.dtype is BINARY else text
            arrays.append(pa.array(values, f.dtype.arrow, mask=mask))
        elif f.dtype is BOOL:
            arrays.append(pa.array(rng.integers(0, 2, rows).astype(bool), mask=mask))
        else:
            raw = rng.integers(0, 256, rows * f.dtype.width, np.uint8).view(f.dtype.numpy)
            array = pa.array(raw, mask=mask)
            arrays.append(array.cast(f.dtype.arrow) if f.dtype is TIMESTAMP else array)
    return pa.record_batch(arrays, schema=schema.to_arrow())


CODECS = st.sampled_from([None, None, "lz4"])
MARKS = st.fixed_dictionaries(
    {},
    optional={
        "edged.watermark": st.sampled_from(
            [
                "0",
                "+5",
                f"-{2**63}",
                f"-{2**63 + 1}",
                f"{2**63 - 1:+020}",
                str(2**63),
                "-",
                "1" * 20,
                "x",
                "",
            ]
        ),
        "edged.sum": st.sampled_from(["0" * 16, "0123456789abcdef", "f" * 16, "F" * 16, "1", ""]),
    },
)


def wire(
    batches: list[pa.RecordBatch],
    first_seq: int | None = 1,
    codec: str | None = None,
    marks: dict[str, str] | None = None,
) -> tuple[bytes, bytes]:
    """The schema message and the batches' messages."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    writer = pa.ipc.new_stream(sink, batches[0].schema, options=options)
    for i, batch in enumerate(batches):
        seq = {"other": "x", "edged.seq": str(first_seq + i)} if first_seq is not None else {}
        writer.write_batch(batch, custom_metadata={**seq, **(marks or {})} or None)
    writer.close()
    data = sink.getvalue().to_pybytes()
    empty = pa.BufferOutputStream()
    pa.ipc.new_stream(empty, batches[0].schema).close()
    at = len(empty.getvalue()) - 8
    return data[:at], data[at:-8]


class Desk:
    """A staging with a decoder, for messages of one schema."""

    def __init__(
        self,
        schema: Schema,
        order: pa.Schema | None = None,
        regions: int = 1,
        max_ahead_us: int = HOUR_US,
    ) -> None:
        self.staging = Staging("s", schema, "t", 1 << 22, max_ahead_us)
        self.decoder = Decoder(self.staging, 1 << 21)
        layout = match(order or schema.to_arrow(), schema, "s")
        self.regions = np.zeros((regions, len(ipc.REGION)), np.int64)
        for r in range(regions):
            self.regions[r, ipc.REGION.layout] = self.decoder.layout(layout)
            self.regions[r, ipc.REGION.producer] = self.staging.producers.number(f"p{r}")
            self.regions[r, ipc.REGION.named] = 1

    def put(self, r: int, where: int, size: int) -> None:
        self.regions[r, ipc.REGION.address], self.regions[r, ipc.REGION.length] = where, size

    def run(self, wall_us: int = NOW_US) -> np.ndarray:
        return self.decoder.run(self.regions, wall_us)


@contextmanager
def guarded(data: bytes, at_end: bool) -> Iterator[int]:
    """The address of a copy of `data` that ends (or begins) at a page without access."""
    page = mmap.PAGESIZE
    size = -(-max(1, len(data)) // page) * page
    area = mmap.mmap(-1, size + 2 * page)
    view = np.frombuffer(area, np.uint8)
    base = address(view)
    libc = ctypes.CDLL(None, use_errno=True)
    start = page + size - len(data) if at_end else page
    view[start : start + len(data)] = np.frombuffer(data, np.uint8)
    for fence in (base, base + page + size):
        assert libc.mprotect(ctypes.c_void_p(fence), ctypes.c_size_t(page), 0) == 0
    try:
        yield base + start
    finally:
        for fence in (base, base + page + size):
            libc.mprotect(ctypes.c_void_p(fence), ctypes.c_size_t(page), 3)
        del view
        area.close()


def cells(column: Column, rows: int) -> list[bytes | None]:
    """A column as comparable values: bytes, None for null."""
    valid = np.ones(rows, np.uint8) if column.valid is None else column.valid
    if column.offsets is not None:
        ends, data = column.offsets.tolist(), column.values.tobytes()
        values = [data[a:b] for a, b in itertools.pairwise(ends)]
    else:
        values = [v.tobytes() for v in column.values]
    return [v if ok else None for v, ok in zip(values, valid, strict=True)]


def same(a: Batch, b: Batch) -> bool:
    pairs = zip(a.columns, b.columns, strict=True)
    return a.rows == b.rows and all(cells(x, a.rows) == cells(y, b.rows) for x, y in pairs)


@settings(max_examples=examples(150), deadline=None)
@given(
    schemas(),
    st.lists(st.integers(0, 40), min_size=1, max_size=5),
    st.integers(0, 2**32),
    st.data(),
)
def test_batches_are_staged_as_pyarrow_reads_them(
    schema: Schema, counts: list[int], seed: int, data: st.DataObject
) -> None:
    batches = [random_batch(schema, n, seed + i) for i, n in enumerate(counts)]
    order = data.draw(st.permutations(schema.names))
    codec = data.draw(st.sampled_from([None, "lz4"]))
    _, body = wire([b.select(order) for b in batches], codec=codec)
    desk = Desk(schema, batches[0].select(order).schema)
    with guarded(body, data.draw(st.booleans())) as where:
        desk.put(0, where, len(body))
        assert len(desk.run()) == 0
    assert desk.regions[0, ipc.REGION.error] == 0
    assert desk.regions[0, ipc.REGION.consumed] == len(body)
    table = pa.Table.from_batches(batches).combine_chunks().to_batches()
    staged = desk.staging.pending()
    if staged.rows:
        assert same(staged, Batch.from_arrow(table[0], schema))
    assert desk.staging.producers.seq.tolist() == [0, len(counts)]
    chunks = desk.staging.chunks()
    assert chunks.stop.tolist() == [
        s for s, n in zip(np.cumsum(counts).tolist(), counts, strict=True) if n
    ]
    times = [b.column("t").cast(pa.int64()).to_pylist() for b in batches if b.num_rows]
    assert chunks.time_min.tolist() == [min(t) for t in times]
    assert chunks.time_max.tolist() == [max(t) for t in times]


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=4), st.integers(0, 2**32), st.data())
def test_any_cut_gives_the_same_rows(counts: list[int], seed: int, data: st.DataObject) -> None:
    batches = [random_batch(SMALL, n, seed + i) for i, n in enumerate(counts)]
    _, body = wire(batches)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=6)))
    desk, rest = Desk(SMALL), b""
    for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True):
        rest += body[a:b]
        with guarded(rest, True) as where:
            desk.put(0, where, len(rest))
            desk.run()
        rest = rest[desk.regions[0, ipc.REGION.consumed] :]
        need = int(desk.regions[0, ipc.REGION.need])
        assert (need > len(rest)) if rest else need == 0
    assert rest == b""
    whole = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
    assert same(desk.staging.pending(), Batch.from_arrow(whole, SMALL))


@settings(max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(schemas(), st.integers(0, 2**32), st.data())
def test_damaged_messages_are_refused_or_read_as_pyarrow_does(
    schema: Schema, seed: int, data: st.DataObject
) -> None:
    batches = [random_batch(schema, n, seed + n) for n in (3, 17)]
    codec = data.draw(st.sampled_from([None, "lz4"]))
    head, body = wire(batches, codec=codec)
    first = len(wire(batches[:1], codec=codec)[1])
    broken = bytearray(body)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(first, len(body) - 1))
        width = data.draw(st.sampled_from([1, 4, 8]))
        value = data.draw(st.sampled_from([0, 1, 2, 8, 127, 128, 255, 2**31 - 1, 2**31, 2**64 - 1]))
        broken[at : at + width] = (value % 2 ** (8 * width)).to_bytes(width, "little")
    broken = broken[: len(body)]
    desk = Desk(schema, max_ahead_us=2**63 - 1)
    with guarded(bytes(broken), data.draw(st.booleans())) as where:
        desk.put(0, where, len(broken))
        slow = desk.run()
    staged = desk.staging.pending()
    assert same(staged.slice(0, 3), Batch.from_arrow(batches[0], schema))
    if staged.rows == 3:
        return
    assert len(slow) == 0 or codec  # damage may name another codec
    try:
        reader = pa.ipc.open_stream(head + bytes(broken))
        reader.read_next_batch()
        theirs = reader.read_next_batch()
        theirs.validate(full=True)
        expected = Batch.from_arrow(theirs, schema)
    except (pa.ArrowException, OSError, ValueError, StopIteration):
        return
    assert same(staged.slice(3, staged.rows), expected)


@settings(max_examples=examples(150), deadline=None)
@given(st.integers(0, 2**32), st.booleans(), st.data())
def test_the_passes_do_what_their_naive_twins_do(
    seed: int, sane_clock: bool, data: st.DataObject
) -> None:
    """Two regions, damage in one of them at times, rows far ahead, duplicates, an end."""
    schema = data.draw(schemas())
    bodies = []
    for r in range(2):
        counts = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=3))
        made = [random_batch(schema, n, seed + 10 * r + i, True) for i, n in enumerate(counts)]
        first, codec = data.draw(st.sampled_from([1, 1, 2, None])), data.draw(CODECS)
        _, body = wire(made, first, codec, data.draw(MARKS))
        body = bytearray(body + data.draw(st.sampled_from([b"", b"", b"\xff" * 4 + bytes(4)])))
        if data.draw(st.booleans()):
            at = data.draw(st.integers(0, len(body) - 1))
            body[at] = data.draw(st.integers(0, 255))
        bodies.append(np.frombuffer(bytes(body), np.uint8).copy())
    results = []
    for which in (KERNELS, TWINS):
        desk = Desk(schema, regions=2)
        for r, body in enumerate(bodies):
            desk.put(r, address(body), body.size)
        results.append(_passes(desk, which, sane_clock))
    ours, theirs = results
    for name, value in ours.items():
        assert np.array_equal(value, theirs[name]), name


def test_damage_beside_a_compression_is_damage() -> None:
    """Found by the property above: the twin looked at the compression first."""
    schema = Schema.of([Field("t", TYPES["timestamp"])])
    _, body = wire([random_batch(schema, 1, 0, True)], None)
    broken = np.frombuffer(body, np.uint8).copy()
    assert broken[60] == 10  # where the record batch's table finds its fields
    broken[60] = 6
    for which in (KERNELS, TWINS):
        desk = Desk(schema, regions=2)
        for region in (0, 1):
            desk.put(region, address(broken), broken.size)
        assert _passes(desk, which, True)["refused"].tolist() == [True, True]


KERNELS, TWINS = [ipc, ipc_packed, ipc_columns], [naive, naive, naive_columns]


def _passes(desk: Desk, modules: list[object], sane_clock: bool) -> dict[str, np.ndarray]:
    """What `Decoder.run` does, with exchangeable passes; all that came out."""
    one, packed, two = modules
    staging, regions, decoder = desk.staging, desk.regions, desk.decoder
    regions[:, ipc.REGION.seq] = [0, 1]
    layouts, width = decoder._layouts, decoder._width
    messages = np.zeros((64, len(ipc.MESSAGE)), np.int64)
    sizes, places = np.zeros((64, width), np.int64), np.zeros((64, width), np.int64)
    count = one.scan(regions, layouts, decoder._limits, messages, sizes)
    arena = np.zeros(int(messages[:count, ipc.MESSAGE.unpacked].sum()) + 1, np.uint8)
    packed.unpack(messages, count, regions, layouts, decoder._limits, sizes, address(arena))
    totals = np.zeros(2 + width, np.int64)
    two.place(messages, count, sizes, places, totals)
    each = np.zeros(len(staging.schema), np.int64)
    each[decoder._variable] = totals[2 : 2 + len(decoder._variable)]
    to = staging.reserve(int(totals[0]), each, int(totals[1]))
    time, rest = staging.time_index, (places, to.addresses, to.row, to.bytes_at, to.times)
    two.copy(messages, 0, count, regions, layouts, time, *rest)
    limit = NOW_US + HOUR_US if sane_clock else 2**63 - 1
    facts = np.array([limit, -(2**63), HOUR_US, 0, 0], np.int64)
    two.admit(messages, count, regions, layouts, time, sizes, facts)
    again = int(facts[4])
    if again:
        two.place(messages, count, sizes, places, totals)
        two.copy(messages, 0, count, regions, layouts, time, *rest)
    log, producers = to.chunks, staging.producers
    chunks = two.finish(
        messages, count, regions, to.row, log.tail, log.producer, log.stop, log.time_min,
        log.time_max, producers.seq, producers.latest_us, producers.ended,
        producers.promised_us, producers.sums,
    )  # fmt: skip
    staging.extend(int(totals[0]), chunks, int(facts[1]))
    staged, found = staging.pending(), staging.chunks()
    state = [ipc.MESSAGE.region, ipc.MESSAGE.seq, ipc.MESSAGE.state, ipc.MESSAGE.kept,
             ipc.MESSAGE.watermark, ipc.MESSAGE.sum]  # fmt: skip
    table = np.array([cells(c, staged.rows) for c in staged.columns], object)
    refused = regions[:, ipc.REGION.error] != 0
    told = [
        ipc.REGION.consumed,
        ipc.REGION.end,
        ipc.REGION.duplicates,
        ipc.REGION.messages,
        ipc.REGION.seq,
        ipc.REGION.slow,
    ]
    return {
        "messages": messages[:count, state],
        "table": table,
        "refused": refused,
        "regions": regions[:, told],
        "need": np.where(refused, 0, regions[:, ipc.REGION.need]),
        "facts": facts,
        "stops": found.stop,
        "times": np.stack([found.time_min, found.time_max]),
        "producers": np.stack(
            [producers.seq, producers.latest_us, producers.promised_us, producers.sums]
        ),
        "ended": producers.ended,
    }


@settings(max_examples=examples(150), deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([None, "lz4", "zstd"]), st.booleans(), st.data())
def test_frames_and_claims_are_read_as_by_the_naive_twins(
    seed: int, codec: str | None, dictionary: bool, data: st.DataObject
) -> None:
    batch = random_batch(SMALL, 9, seed)
    if dictionary:
        batch = batch.set_column(1, "s", batch.column(1).dictionary_encode())
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    stream = bytearray(sink.getvalue().to_pybytes())
    out, theirs = np.zeros(5, np.int64), np.zeros(5, np.int64)
    if data.draw(st.booleans()):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    at = 0
    while at < len(stream):
        rest = bytes(stream[at:])
        if data.draw(st.integers(0, 3)) == 0:
            rest = rest[: data.draw(st.integers(0, len(rest)))]
        with guarded(rest, True) as where:
            frame(where, len(rest), out)
            naive.frame(where, len(rest), theirs)
            assert (out[0] != 0) == (theirs[0] != 0)
            if out[0] == 0:
                assert out.tolist() == theirs.tolist()
            total, meta = int(out[1]), int(out[3])
            if out[0] or not 8 < total <= len(rest):
                break
            if out[2] != ipc.SCHEMA:
                body = total - 8 - meta
                claims = (f(where + 8, meta, body) for f in (inflated, naive.inflated))
                assert len(set(claims)) == 1
        at += total


@pytest.mark.parametrize(
    "text",
    [
        "\x7f",
        "\u0080",
        "\u07ff",
        "\u0800",
        "\ud7ff",
        "\ue000",
        "\uffff",
        "\U00010000",
        "\U0010ffff",
    ],
)
def test_text_at_every_edge_of_utf8_is_taken(text: str) -> None:
    batch = random_batch(SMALL, 3, 1)
    batch = batch.set_column(1, batch.schema.field(1), pa.array([text, "a" + text, text * 9]))
    _, body = wire([batch])
    desk = Desk(SMALL)
    data = np.frombuffer(body, np.uint8).copy()
    desk.put(0, address(data), data.size)
    desk.run()
    assert same(desk.staging.pending(), Batch.from_arrow(batch, SMALL))


@example(b"\xc3\xa9"[:1])
@settings(max_examples=examples(300), deadline=None)
@given(st.binary(min_size=1, max_size=5))
def test_bytes_that_are_not_utf8_are_refused(raw: bytes) -> None:
    batch = random_batch(SMALL, 2, 1)
    values = pa.array([b"xxxxxxxxxx", raw], pa.binary()).view(pa.string())
    batch = batch.set_column(1, batch.schema.field(1), values)
    _, body = wire([batch])
    desk = Desk(SMALL)
    data = np.frombuffer(body, np.uint8).copy()
    desk.put(0, address(data), data.size)
    desk.run()
    try:
        raw.decode()
        assert desk.staging.rows == 2
    except UnicodeDecodeError:
        assert desk.regions[0, ipc.REGION.error] == ipc.E_UTF8
        assert desk.staging.rows == 0


def test_what_an_error_says_names_the_column() -> None:
    from edged.sources._tcp_decode import problem

    desk = Desk(Schema.of([Field("t", TIMESTAMP), Field("level", INT64)]))
    desk.regions[0, ipc.REGION.column] = 1
    for error in range(1, 19):
        desk.regions[0, ipc.REGION.error] = error
        text = problem(desk.regions[0], desk.staging, 1000)
        assert text and (("level" in text) == text.startswith("column"))
