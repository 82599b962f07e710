"""The data sets of `edged bench compress`: record batches, and their columns in a job document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import edged
from edged.bench.equipment_data import equipment_records
from edged.errors import ConfigError

ROWS = 40_000
TIME = "time"
WIND_FARM = Path(edged.__file__).parents[1] / "tests" / "data" / "scada_source_order.parquet"
RANDOM_PAYLOAD_BYTES = 92
DATA = ("wind farm", "equipment", "random")
_NAMES = {"double": "float64", "float": "float32", "halffloat": "float16"}


def records(name: str) -> pa.RecordBatch:
    """The records of a data set.  Raises ConfigError where the file of the wind farm is missing."""
    if name == "equipment":
        return equipment_records(ROWS)
    if name == "random":
        return _random()
    if not WIND_FARM.exists():
        raise ConfigError(f"{WIND_FARM} is missing: the wind farm's records are in the repository")
    table = pq.read_table(WIND_FARM).slice(0, ROWS)
    fields = [pa.field(f.name, pa.string() if pa.types.is_large_string(f.type) else f.type)
              for f in table.schema]  # fmt: skip
    return table.cast(pa.schema(fields)).combine_chunks().to_batches()[0]


def _random() -> pa.RecordBatch:
    """A time, and bytes without any order."""
    dice = np.random.default_rng(7)
    whole = dice.integers(0, 256, ROWS * RANDOM_PAYLOAD_BYTES, np.uint8).tobytes()
    offsets = np.arange(0, (ROWS + 1) * RANDOM_PAYLOAD_BYTES, RANDOM_PAYLOAD_BYTES, dtype=np.int32)
    payload = pa.Array.from_buffers(
        pa.binary(), ROWS, [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(whole)]
    )
    us = 1_700_000_000_000_000 + np.sort(dice.integers(0, 10**9, ROWS))
    times = pa.array(us).cast(pa.timestamp("us", tz="UTC"))
    return pa.record_batch({TIME: times, "payload": payload})


def document_columns(schema: pa.Schema) -> dict[str, str]:
    """The columns of such records as a job document has them."""
    found: dict[str, Any] = {}
    for f in schema:
        name = "timestamp" if pa.types.is_timestamp(f.type) else str(f.type)
        mark = "" if f.name == TIME else "?"
        found[f.name] = _NAMES.get(name, name) + mark
    return found
