"""`python -m api.ingest.decoder_child`: decodes large request bodies for the API.

A request and its answer are frames on standard input and output: `u32 header bytes | u64 body
bytes | header, JSON | body`.

    {"media_type": ..., "schema": base64 of an Arrow schema}   and the request's body
    {} and an Arrow stream of one batch, or {"problem": {...}} or {"defect": traceback}

The process may allocate MEMORY_BYTES_MAX.  It ends with its standard input.
"""

from __future__ import annotations

import base64
import json
import os
import resource
import struct
import sys
import traceback
from typing import Any, BinaryIO

import pyarrow as pa

from api.ingest.decode import decode
from api.problems import ApiProblem
from edged.platform.processes import NICENESS

FRAME = struct.Struct("<IQ")
MEMORY_BYTES_MAX = 1 << 30
"""Of the process; the largest body takes a third."""


def answer(header: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
    """The answer's header and body; never raises."""
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(header["schema"])))
        batch = decode(body, header["media_type"], schema)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return {}, sink.getvalue().to_pybytes()
    except ApiProblem as problem:
        faults = [fault.document() for fault in problem.errors]
        told = {"kind": problem.kind, "detail": str(problem.detail), "do": problem.do}
        return {"problem": {**told, "errors": faults}}, b""
    except MemoryError:
        told = {"kind": "too-large", "detail": "the rows take too much memory", "do": ""}
        return {"problem": {**told, "errors": []}}, b""
    except Exception:
        return {"defect": traceback.format_exc()}, b""


def main(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until the input ends."""
    while len(head := requests.read(FRAME.size)) == FRAME.size:
        header_bytes, body_bytes = FRAME.unpack(head)
        header = json.loads(requests.read(header_bytes))
        told, made = answer(header, requests.read(body_bytes))
        text = json.dumps(told).encode()
        answers.write(FRAME.pack(len(text), len(made)) + text)
        answers.write(made)
        answers.flush()


if __name__ == "__main__":
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    main(sys.stdin.buffer, sys.stdout.buffer)
