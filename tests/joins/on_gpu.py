"""`python -m tests.joins.on_gpu [FILE]`: the GPU members on a real GPU, as JSON.

First the whole suite (`cuda_suite.py`, with real sizes), then throughput in steady state: tuples of
both streams a second, over the time that `join` takes, with batches already in mapped memory; and
beside it the card's memory bandwidth, measured by copying within it (bytes read and written).  Each
row goes to standard error once it is measured.  Exit code 1 where there is no GPU or the suite
fails.  Needs `numba-cuda` and what the tests need.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import numpy as np

from edged.joins.base import Beat, Records
from kernels.cpu.partition import PARTITIONS
from kernels.cuda import gpu
from tests.joins.support import RECORD, members

WINDOWS, BATCHES = (10**5, 10**6, 10**7), (10**4, 10**5, 10**6)
HELLS_MOST = 10**5
"""The largest window that HELLS Join, which looks at all of it for each tuple, is timed with."""
SECONDS, ROUNDS_MIN, PATIENCE_S = 1.0, 8, 10.0
"""Time within `join`, rounds, and most wall time of a row: the CPU makes a batch of 10^6 in 0.1 s,
which a GPU joins in 4 ms."""
MATCHES = 0.01
"""Partners that a tuple has on average."""


def bandwidth_gb_per_s():
    """Bytes read and written a second by the best of some copies within the GPU's memory."""
    cuda, size = gpu.cuda, 256 << 20
    a, b = (cuda.device_array(size, np.uint8) for _ in range(2))
    best = 0.0
    for _ in range(10):
        start, end = cuda.event(), cuda.event()
        start.record()
        b.copy_to_device(a)
        end.record()
        end.synchronize()
        best = max(best, 2 * size / cuda.event_elapsed_time(start, end) / 1e6)
    return best


def batch(rng, rows, keys, first):
    """A batch of `rows` records, a microsecond apart from `first` on, partition by partition."""
    array = np.zeros(rows, RECORD)
    key = rng.integers(0, keys, rows, dtype=np.uint64)
    array["tag"] = (key * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)
    array["time"] = array["row"] = np.arange(first, first + rows)
    partitions = array["tag"] >> 26
    ordered = array[np.argsort(partitions, kind="stable")]
    return ordered, np.bincount(partitions, minlength=PARTITIONS).astype(np.int64)


def throughput(member, window, rows):
    """One line: tuples a second once both windows are full."""
    rng, join = np.random.default_rng(window + rows), member(window, window)
    keys = int(2 * window / MATCHES)
    spent = pairs = rounds = first = 0
    until = float("inf")
    while rounds < ROUNDS_MIN or (spent < SECONDS and time.perf_counter() < until):
        records = []
        for side in (0, 1):
            array, counts = batch(rng, rows, keys, first)
            data = join.buffer(side, rows)
            data.view(RECORD)[:rows] = array
            records.append(Records(data, counts))
        first += rows
        bounds = (first - window, first - window)
        began = time.perf_counter()
        found = join.join(*records, Beat((0, 0), bounds), None)
        if first > window + 2 * rows:
            until = min(until, began + PATIENCE_S)
            spent += time.perf_counter() - began
            pairs += found[0].size
            rounds += 1
    held, taken = sum(join.held(side) for side in (0, 1)), join.nbytes()
    join.close()
    return {
        "kernel": member.name,
        "window": window,
        "batch": rows,
        "tuples_per_s": 2 * rows * rounds / spent,
        "matches_per_tuple": pairs / (2 * rows * rounds),
        "state_bytes_per_tuple": taken / held,
    }


def main(arguments):
    """Run the suite and the measurement; print, and write to a file where one is named."""
    if not gpu.INSTALLED:
        sys.stderr.write("numba-cuda is not installed: make cuda\n")
        return 1
    if not gpu.cuda.is_available():
        sys.stderr.write("no NVIDIA GPU or driver found\n")
        return 1
    suite = Path(__file__).with_name("cuda_suite.py")
    passed = subprocess.run([sys.executable, "-m", "pytest", str(suite)]).returncode == 0
    device = gpu.cuda.get_current_device()
    rows = []
    for member, window, size in product(members("cuda"), WINDOWS, BATCHES):
        if member.ordered or window <= HELLS_MOST:
            rows.append(throughput(member, window, size))
            sys.stderr.write(f"{rows[-1]}\n")
    answer = json.dumps(
        {
            "gpu": device.name if isinstance(device.name, str) else device.name.decode(),
            "compute_capability": list(device.compute_capability),
            "suite_passed": passed,
            "bandwidth_gb_per_s": bandwidth_gb_per_s(),
            "rows": rows,
        },
        indent=1,
    )
    sys.stdout.write(answer + "\n")
    if arguments:
        Path(arguments[0]).write_text(answer)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
