"""Bounds of request bodies with tuples: hostile ones are refused in time that fits their size."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest

from api.ingest.decode import COLUMNS_MAX, FAULTS_MAX, decode
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
