"""The greeting that opens a producer's connection: a schema message with metadata."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from edged.client.frames import END_OF_STREAM


def greeting_message(schema: pa.Schema, metadata: Mapping[bytes, bytes]) -> bytes:
    """The schema message with this metadata."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, schema.with_metadata(dict(metadata))):
        pass
    data: bytes = out.getvalue().to_pybytes()
    return data[: -len(END_OF_STREAM)]
