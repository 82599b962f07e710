"""Bounds of request bodies with tuples: hostile ones are refused in time that fits their size."""

from __future__ import annotations

import asyncio
import sys
import time

import pyarrow as pa
import pytest

from api.ingest.decode import COLUMNS_MAX, FAULTS_MAX, decode
from api.ingest.decoders import INLINE_BYTES_MAX, Decoders
from api.ingest.media_types import ARROW, CSV, NDJSON
from api.problems import ApiProblem

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), pa.field("text", pa.string())])


def refusal(body: bytes, kind: str) -> ApiProblem:
    began = time.process_time()
    with pytest.raises(ApiProblem) as caught:
        decode(body, kind, SCHEMA)
    assert time.process_time() - began < 5
    return caught.value


def test_a_csv_header_is_bound_in_columns():
    for header in ("c," * 150_000, '"a\nb",' * 5000, "\n\n" + "," * 2000):
        found = refusal(header.encode() + b"\n" + b"1,2\n", CSV)
        assert f"at most {COLUMNS_MAX}" in str(found.detail) + found.do


def test_quoted_commas_bind_nothing():
    body = b'id,text\n1,"' + b"," * 5000 + b'"\n'
    assert decode(body, CSV, SCHEMA).num_rows == 1


def test_the_columns_of_an_arrow_body_are_bound():
    wide = pa.schema([pa.field(f"c{i}", pa.int8()) for i in range(18_000)])
    sink = pa.BufferOutputStream()
    pa.ipc.new_stream(sink, wide).close()
    assert "18000 columns" in str(refusal(sink.getvalue().to_pybytes(), ARROW).detail)


def test_listed_faults_are_bound():
    names = ",".join(f"c{i}" for i in range(COLUMNS_MAX))
    found = refusal(f"{names}\n".encode() + b"1\n", CSV)
    assert len(found.errors) in (1, FAULTS_MAX)


def test_keys_of_ndjson_are_bound_in_time():
    keys = ",".join(f'"k{i}": 1' for i in range(100_000))
    refusal(f"{{{keys}}}\n".encode(), NDJSON)


def test_a_decoder_that_overruns_or_dies_is_ended_and_replaced():
    body = b'{"id": 1, "text": "a"}\n' * (INLINE_BYTES_MAX // 20)
    bad = b'{"id": 1, "text": 2}\n' * (INLINE_BYTES_MAX // 20)

    async def story() -> None:
        decoders = Decoders()
        good, ended = decoders.command, []
        for seconds, code, what in ((0.2, "import time; time.sleep(600)", "longer than 0.2 s"),
                                    (120, "raise SystemExit(1)", "ended a decoder")):  # fmt: skip
            decoders._seconds_max, decoders.command = seconds, (sys.executable, "-c", code)
            task = asyncio.create_task(decoders.decode(body, NDJSON, SCHEMA))
            while not decoders._children:
                await asyncio.sleep(0.01)
            ended += decoders._children
            with pytest.raises(ApiProblem, match=what) as caught:
                await task
            assert caught.value.status_code == 413
        assert all(child.returncode is not None for child in ended)
        decoders._seconds_max, decoders.command = 120, good
        batch = await decoders.decode(body, NDJSON, SCHEMA)
        assert batch.num_rows == body.count(b"\n") and batch.schema == SCHEMA
        with pytest.raises(ApiProblem, match="row 1") as caught:
            await decoders.decode(bad, NDJSON, SCHEMA)
        assert caught.value.errors and len(decoders._idle) == 1
        (last,) = decoders._idle
        await decoders.close()
        assert last.returncode is not None

    asyncio.run(story())


@pytest.mark.parametrize("body", [b"null", b" \n null {}", b"nullx", b"[1]", b"1"])
def test_a_first_row_that_is_no_object_is_refused(body):
    """pyarrow's reader dies of a null there, and the process with it."""
    assert "row 1: is no object" in str(refusal(body, NDJSON).detail)
