"""`rocksdb`: a RocksDB database for a state, through the package `rocksdict`.

The way of Epsio ("Optimizing Streaming JOINs", 2025), for comparison: one database a side, and one
batch of writes a beat.  A key of the database is a row's key hash, big-endian, and its image
(`kernels.cpu.tables.images`); the value is its weight.  `apply` reads the old weights with one
multi-get and writes the new ones with one batch.  `probe` seeks each distinct hash with one
iterator; the binding has no call for many prefixes, so that it takes Python for each key and row.

`compact`: `always` and `auto` are RocksDB's own levels, `never` turns them off, `seed` turns them
off at `probing_ends`.  Merges run on RocksDB's threads, not in `work`.  The log of RocksDB is off:
a snapshot is a checkpoint of hard links, and a restart goes on from a clone of it.  Needs a real
disk.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import struct
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edged.data.columns import Batch
from edged.data.flow import State
from edged.data.hashing import Hashes, all_valid, hash_columns
from edged.data.schema import Schema
from edged.data.scratch import Scratch
from edged.errors import ConfigError, StoreCorrupt
from edged.tables._find import find
from edged.tables._images import Images
from edged.tables._merge import sorted_run
from edged.tables._run import from_records
from edged.tables.base import NEVER, SEED, Matches, TableContext, TableState, Weights, table_state
from edged.tables.runs import with_keys
from kernels.cpu.tables import sort
from kernels.cpu.tables.images import HEADER

_LIVE, _SAVED = "live", "saved"
_WRITTEN_IN_PLACE = ("CURRENT", "MANIFEST", "OPTIONS", "IDENTITY", "LOG", "rocksdict")


@table_state("rocksdb")
class RocksDB(TableState):
    """The member; see the module."""

    def __init__(self, schema: Schema, key: tuple[str, ...], context: TableContext) -> None:
        super().__init__(schema, key, context)
        try:
            self._rocks: Any = importlib.import_module("rocksdict")
        except ImportError as problem:
            raise ConfigError("rocksdb needs a package: pip install rocksdict") from problem
        context.disk.mkdir(context.directory)
        self._images, self._scratch = Images(schema, key), Scratch()
        self._next = 1 + max(
            (int(name.split(".")[0]) for name in context.disk.listdir(context.directory)),
            default=-1,
        )
        self._counts = {"applied_rows": 0, "probed_keys": 0, "merged_rows": 0, "written_bytes": 0}
        self._path = self._new_path(_LIVE)
        self._db = self._open()

    def _new_path(self, kind: str) -> Path:
        number, self._next = self._next, self._next + 1
        return Path(self.context.directory) / f"{number:016d}.{kind}"

    def options(self) -> Any:
        """The options of the database: a quarter of the memory for each of two write buffers, half
        of it for blocks; Bloom filters of 10 bits; no compression."""
        rocks, memory = self._rocks, max(1 << 20, self.context.memory_bytes)
        options, table = rocks.Options(raw_mode=True), rocks.BlockBasedOptions()
        options.create_if_missing(True)
        options.set_write_buffer_size(memory // 4)
        options.set_max_write_buffer_number(2)
        options.set_compression_type(rocks.DBCompressionType.none())
        options.set_level_zero_slowdown_writes_trigger(1 << 20)
        options.set_level_zero_stop_writes_trigger(1 << 20)
        options.set_disable_auto_compactions(self.context.compact == NEVER)
        table.set_block_cache(rocks.Cache(memory // 2))
        table.set_bloom_filter(10, False)
        options.set_block_based_table_factory(table)
        return options

    def _open(self) -> Any:
        database = self._rocks.Rdict(str(self._path), self.options())
        without_log = self._rocks.WriteOptions()
        without_log.disable_wal = True
        database.set_write_options(without_log)
        self._writing = without_log
        return database

    def apply(self, rows: Batch, weights: Weights) -> None:
        """See `TableState.apply`."""
        if rows.rows == 0:
            return
        rows, weights = with_keys(rows, weights, self.key, self._scratch)
        hashes = hash_columns(rows, self.key, self._scratch, workers=self.context.workers)
        records = self._images.encode(rows, hashes, np.ascontiguousarray(weights, np.int32))
        run = sorted_run(records, hashes, self._scratch)
        keys, added = [], []
        content, at = run.records.tobytes(), 0
        while at < len(content):
            h, words, weight = struct.unpack_from("<QIi", content, at)
            keys.append(h.to_bytes(8, "big") + content[at + HEADER : at + 8 * words])
            added.append(weight)
            at += 8 * words
        old = self._db.get(keys) if keys else []
        sums = [
            weight + (0 if value is None else int.from_bytes(value, "little", signed=True))
            for weight, value in zip(added, old, strict=True)
        ]
        if any(abs(total) > sort.SUM_MAX for total in sums):
            raise OverflowError("the weight of a row leaves int32")
        batch = self._rocks.WriteBatch(raw_mode=True)
        for key, total in zip(keys, sums, strict=True):
            if total:
                batch.put(key, total.to_bytes(4, "little", signed=True))
            else:
                batch.delete(key)
        self._db.write(batch, self._writing)
        self._counts["applied_rows"] += rows.rows
        self._counts["written_bytes"] += len(content)

    def probe(self, keys: Batch) -> Matches:
        """See `TableState.probe`."""
        hashes = hash_columns(keys, keys.schema.names, self._scratch, workers=self.context.workers)
        valid = all_valid(keys, keys.schema.names, self._scratch)
        asked = hashes if valid is None else hashes[valid != 0]
        content, rows, heaviest = self._records(np.unique(asked))
        run = from_records(np.frombuffer(content, np.uint8), rows, heaviest)
        valid = np.empty(0, np.uint8) if valid is None else valid
        places = np.array([run.place()], np.int64)
        images = self._images.encode_keys(keys)
        probing, found, weights = find(places, hashes, valid, images, 0, keys.rows, self._scratch)
        self._counts["probed_keys"] += keys.rows
        return Matches(probing, self._images.decode(found), weights)

    def _records(self, hashes: Hashes) -> tuple[bytes, int, int]:
        """The records of these hashes as a run has them, their number, and the largest weight."""
        parts: list[bytes] = []
        rows, heaviest, cursor = 0, 0, self._db.iter()
        try:
            for h in hashes.tolist():
                prefix = h.to_bytes(8, "big")
                cursor.seek(prefix)
                while cursor.valid():
                    key = cursor.key()
                    if key[:8] != prefix:
                        break
                    weight = int.from_bytes(cursor.value(), "little", signed=True)
                    parts.append(struct.pack("<QIi", h, (len(key) + 8) >> 3, weight))
                    parts.append(key[8:])
                    rows, heaviest = rows + 1, max(heaviest, abs(weight))
                    cursor.next()
                cursor.status()
        except Exception as problem:
            raise StoreCorrupt(
                f"{self._path}: RocksDB: {problem}; the table's rows go with it"
            ) from problem
        return b"".join(parts), rows, heaviest

    def probing_ends(self) -> None:
        """See `TableState.probing_ends`."""
        if self.context.compact == SEED:
            self._db.set_options({"disable_auto_compactions": "true"})

    def work(self, budget_rows: int) -> bool:
        """See `TableState.work`: RocksDB merges by itself."""
        return False

    def merge_all(self) -> None:
        """See `TableState.merge_all`."""
        self._db.compact_range(None, None)

    def save(self) -> State:
        """See `TableState.save`."""
        path = self._new_path(_SAVED)
        self._rocks.Checkpoint(self._db).create_checkpoint(str(path))
        rows = self._db.property_int_value("rocksdb.estimate-num-keys")
        text = json.dumps([{"name": path.name, "rows": rows}]).encode()
        return {"files": np.frombuffer(text, np.uint8).copy()}

    def load(self, state: State) -> None:
        """See `TableState.load`.  Damage within a file is found by the probe that reads it."""
        (named,) = json.loads(state["files"].tobytes())
        source = Path(self.context.directory) / named["name"]
        takes = f"{named['rows']} rows of the table go with it"
        if not source.is_dir():
            raise StoreCorrupt(f"{source}: the checkpoint is missing; {takes}")
        self._db.close()
        self._path = self._new_path(_LIVE)
        self._path.mkdir()
        for file in source.iterdir():
            if file.name.startswith(_WRITTEN_IN_PLACE):
                shutil.copy(file, self._path / file.name)
            else:
                os.link(file, self._path / file.name)
        try:
            self._db = self._open()
        except Exception as problem:
            raise StoreCorrupt(f"{source}: RocksDB: {problem}; {takes}") from problem

    def sync(self) -> None:
        """See `TableState.sync`: RocksDB has synced a checkpoint's files."""
        self.context.disk.sync_directory(self.context.directory)

    def keep(self, states: Collection[State]) -> None:
        """See `TableState.keep`."""
        kept = {self._path.name}
        for state in states:
            kept |= {row["name"] for row in json.loads(state["files"].tobytes())}
        for path in Path(self.context.directory).iterdir():
            if path.name not in kept:
                shutil.rmtree(path)

    def memory_bytes(self) -> int:
        """See `TableState.memory_bytes`: write buffers, and the block cache when it is full."""
        held = self._db.property_int_value("rocksdb.cur-size-all-mem-tables")
        return int(held or 0) + max(1 << 20, self.context.memory_bytes) // 2

    def disk_bytes(self) -> int:
        """See `TableState.disk_bytes`."""
        return sum(file.stat().st_size for file in self._path.iterdir())

    def counters(self) -> Mapping[str, int | float]:
        """See `TableState.counters`."""
        files = sum(file.suffix == ".sst" for file in self._path.iterdir())
        rows = self._db.property_int_value("rocksdb.estimate-num-keys") or 0
        return {"rows": int(rows), "runs": files, "files": files, "debt_ns": 0.0, **self._counts}

    def close(self) -> None:
        """See `TableState.close`."""
        self._db.close()
