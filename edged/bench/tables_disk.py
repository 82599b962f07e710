"""Bulk load, cold probes and merges beside beats, of `edged bench tables`."""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from edged.bench.tables_data import PairSums, Row, inserts, made_state, meet, part, settle
from edged.data.columns import Batch, Column
from edged.data.schema import INT64, Field, Schema
from edged.data.workers import Workers
from edged.platform.disk import SystemDisk
from edged.platform.mapped import mapped_bytes
from edged.tables.base import TABLES, LoadingState, TableContext, TableState

_READERS = 16
"""Threads that read the disk in parallel."""
_LOAD_ROWS, _BEAT_ROWS = 1 << 17, 100_000
"""Rows of a beat of a population, and of one that applies them."""
_WIDE = Schema.of([Field(name, INT64) for name in ("k", "a", "b", "c")])
"""Rows of 32 bytes."""


def measure_bulk(member: str, rows: int, folder: str | None = None) -> Row:
    """Load rows of 32 bytes, all of them durable in files at the end.

    `runs` takes them as a population does, a sorted run a beat, and a second thread makes each file
    durable beside the next beat, as the daemon's commit thread does; other members apply them.
    """
    rng = np.random.default_rng(3)
    columns = [rng.integers(0, 1 << 60, rows) for _ in _WIDE]
    batch = Batch(_WIDE, rows, tuple(map(Column, columns)))
    with tempfile.TemporaryDirectory(dir=folder) as where:
        context = TableContext(SystemDisk(), f"{where}/t", Workers(1), 1 << 26, "never")
        state = TABLES.load()[member](_WIDE, ("k",), context)
        cpu, wall = time.process_time(), time.perf_counter()
        if isinstance(state, LoadingState):
            _load(state, batch)
        else:
            _apply(state, batch)
        state.save()
        state.sync()
        cpu_s, wall_s = time.process_time() - cpu, time.perf_counter() - wall
        written = int(state.counters()["written_bytes"])
        state.close()
        disk_s = _write_seconds(Path(where) / "plain", 32 * rows)
    return {
        "member": member, "rows": rows, "rows_per_cpu_s": rows / cpu_s, "wall_s": wall_s,
        "written_bytes": written, "fraction_of_disk": disk_s / wall_s,
    }  # fmt: skip


def _load(state: LoadingState, batch: Batch) -> None:
    disk, directory = state.context.disk, state.context.directory
    ones = np.ones(_LOAD_ROWS, np.int32)

    def make_durable(name: str) -> None:
        file = disk.open(f"{directory}/{name}")
        file.sync()
        file.close()

    with ThreadPoolExecutor(1) as committer:
        pending = []
        for start in range(0, batch.rows, ones.size):
            some = batch.slice(start, min(batch.rows, start + ones.size))
            state.load_run(some, ones[: some.rows], False)
            pending.append(committer.submit(make_durable, state.loading()[-1]["name"]))
        for done in pending:
            done.result()
        disk.sync_directory(directory)
        state.end_load()


def _apply(state: TableState, batch: Batch) -> None:
    ones = np.ones(_BEAT_ROWS, np.int32)
    for start in range(0, batch.rows, ones.size):
        some = batch.slice(start, min(batch.rows, start + ones.size))
        state.apply(some, ones[: some.rows])
        settle(state)


def _write_seconds(path: Path, size: int) -> float:
    """Seconds to write so many bytes to one file and to sync it."""
    block = np.random.default_rng(0).integers(0, 256, 1 << 22, np.uint8).data
    start = time.perf_counter()
    with path.open("wb") as file:
        for _ in range(-(-size // len(block))):
            file.write(block)
        file.flush()
        os.fdatasync(file.fileno())
    return time.perf_counter() - start


def measure_cold(member: str, rows: int, probes: int, folder: str | None = None) -> Row:
    """Probe a state of four times its memory whose files are out of the page cache, beside reads of
    as many random pages by 16 threads."""
    rng = np.random.default_rng(4)
    with tempfile.TemporaryDirectory(dir=folder) as where:
        memory = rows * 40 // 4
        state = made_state(member, f"{where}/t", memory, "auto")
        for start in range(0, rows, 100_000):
            changes = inserts(np.arange(start, min(rows, start + 100_000)) // 10, start, rng)
            state.apply(changes.batch(), changes.weight)
            settle(state)
        state.save()
        state.sync()
        files = sorted(Path(f"{where}/t").glob("*.run"))
        asked = part(changes, np.zeros(probes, np.int64), 1)
        asked.k[:] = rng.integers(0, rows // 10, probes)
        _forget(files)
        before, start_s = mapped_bytes(), time.perf_counter()
        meet(state, asked, True, PairSums())
        probe_s = time.perf_counter() - start_s
        resident = mapped_bytes() - before + state.memory_bytes()
        _forget(files)
        pages = probes * max(1, len(files))
        read_s = _read_seconds(files, pages, rng)
        state.close()
    return {
        "ratio_to_disk": probe_s / read_s, "probe_s": probe_s, "read_s": read_s, "pages": pages,
        "files": len(files), "memory_bytes": memory, "resident_bytes": resident,
        "resident_within_promise": bool(resident <= memory),
    }  # fmt: skip


def _forget(files: list[Path]) -> None:
    """Drop files from the page cache."""
    for path in files:
        fd = os.open(path, os.O_RDONLY)
        os.fdatasync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def _read_seconds(files: list[Path], pages: int, rng: np.random.Generator) -> float:
    """Seconds to read so many random pages, by 16 threads."""
    fds = [os.open(path, os.O_RDONLY) for path in files]
    for fd in fds:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    sizes = [path.stat().st_size // mmap.PAGESIZE for path in files]
    which = rng.integers(0, len(fds), pages)
    at = (rng.random(pages) * np.array(sizes)[which]).astype(np.int64) * mmap.PAGESIZE
    jobs = list(zip(which.tolist(), at.tolist(), strict=True))

    def read(first: int) -> None:
        for number, offset in jobs[first::_READERS]:
            os.pread(fds[number], mmap.PAGESIZE, offset)

    start = time.perf_counter()
    with ThreadPoolExecutor(_READERS) as pool:
        list(pool.map(read, range(_READERS)))
    took = time.perf_counter() - start
    for fd in fds:
        os.close(fd)
    return took


def measure_merging(member: str, rows: int, beats: int, slice_rows: int) -> Row:
    """p99 of beats of 10^4 changes and as many probes, with merges in slices and without any."""
    found = {}
    for compact in ("never", "auto"):
        rng = np.random.default_rng(5)
        with tempfile.TemporaryDirectory() as where:
            state = made_state(member, f"{where}/t", 1 << 26, compact)
            changes = inserts(np.arange(rows) // 10, 0, rng)
            state.apply(changes.batch(), changes.weight)
            settle(state)
            times = []
            for beat in range(beats):
                new = inserts(rng.integers(0, rows // 10, 10_000), (beat + 1) << 32, rng)
                start = time.perf_counter()
                meet(state, new, True, PairSums())
                state.apply(new.batch(), new.weight)
                state.work(slice_rows)
                times.append(time.perf_counter() - start)
            merged = state.counters()["merged_rows"]
            state.close()
        found[compact] = float(np.percentile(times, 99)) * 1e3, int(merged)
    return {
        "member": member, "p99_ms_without": found["never"][0], "p99_ms_with": found["auto"][0],
        "merged_rows": found["auto"][1], "slice_rows": slice_rows,
        "p99_ratio": found["auto"][0] / found["never"][0],
    }  # fmt: skip
