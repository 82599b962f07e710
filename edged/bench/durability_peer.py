"""RocksDB (package `rocksdict`) committing the same bytes as `edged bench durability`.

A message of `batch` tuples is one value, which favours RocksDB: it neither encodes nor compares
keys by tuple.  `exactly_once` syncs the write-ahead log with every write, as the daemon syncs its
log with every beat; `none` writes the log without a sync.

The writer is a process of its own, which kills itself after the last write.  Recovery is the
next open: the bytes of the write-ahead log over what the open takes.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from edged.errors import EdgedError

TUPLE_BYTES = 16
"""A tuple of the benchmark: int32, float32, timestamp."""
_VALUES = 16
"""Different messages that are written in turn."""


def measure_rocksdb(durability: str, batch: int, seconds: float) -> dict[str, Any]:
    """One row of RocksDB.  Raises EdgedError where `rocksdict` is not installed."""
    if find_spec("rocksdict") is None:
        raise EdgedError("rocksdict is not installed: pip install rocksdict, or use --no-peer")
    directory = tempfile.mkdtemp(prefix="edged-bench-", dir=os.environ.get("TMPDIR"))
    try:
        command = [sys.executable, "-m", __name__, directory, durability, str(batch), str(seconds)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != -signal.SIGKILL:
            raise EdgedError(
                f"RocksDB's process ended with {done.returncode}: {done.stderr[-500:]}"
            )
        row: dict[str, Any] = json.loads(done.stdout)
        log_bytes = sum(file.stat().st_size for file in Path(directory).glob("*.log"))
        took_s = _open_s(directory)
        return row | {
            "recovery_mb_per_s": round(log_bytes / 1e6 / took_s, 1),
            "recovered_mb": round(log_bytes / 1e6, 3),
        }
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _open_s(directory: str) -> float:
    started = time.monotonic()
    database = _open(directory)
    took_s = time.monotonic() - started
    database.close()
    return took_s


def _rocksdict() -> Any:
    return importlib.import_module("rocksdict")


def _open(directory: str) -> Any:
    rocksdict = _rocksdict()
    return rocksdict.Rdict(directory, rocksdict.Options(raw_mode=True))


def _write(database: Any, durability: str, batch: int, seconds: float) -> dict[str, Any]:
    """Write for `seconds` and return the row, but for recovery."""
    random = np.random.default_rng(1)
    values = [random.bytes(TUPLE_BYTES * batch) for _ in range(_VALUES)]
    options = _rocksdict().WriteOptions()
    options.sync = durability == "exactly_once"
    process, number, took = psutil.Process(), 0, []
    started = before = time.monotonic()
    while before - started < seconds:
        database.put(number.to_bytes(8, "big"), values[number % _VALUES], write_opt=options)
        number += 1
        now = time.monotonic()
        took.append(now - before)
        before = now
    span = time.monotonic() - started
    written = process.io_counters().write_bytes
    p50, p99 = (round(1000 * float(np.percentile(took, q)), 3) for q in (50, 99))
    return {
        "engine": "rocksdb",
        "durability": durability,
        "batch": batch,
        "tuples_per_s": round(number * batch / span),
        "ms_p50": p50,
        "ms_p99": p99,
        "bytes_written_per_input_byte": round(written / (TUPLE_BYTES * number * batch), 3),
    }


def main() -> None:
    """Write as the arguments say, print the row, and die without closing the database."""
    directory, durability, batch, seconds = sys.argv[1:]
    database = _open(directory)  # lives until the end, since its last reference closes it
    sys.stdout.write(json.dumps(_write(database, durability, int(batch), float(seconds))))
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
