"""Durable state of HTTP ingest in one SQLite file: idempotency keys, and the API's producer names.

Exactly-once delivery rests on three properties of a producer's numbers (docs/producers.md): the
daemon drops a number that it has seen, it refuses a gap, and HELLO carries the last committed
number, which is final if the greeting asked to settle.

1. For each stream the API is one producer, as long as the file exists.
2. Before a batch is sent, its key, digest and number are durable here.
3. Its ack is recorded lazily, since the next HELLO repeats it.  Keys up to HELLO's number are
   committed; those above were not and never will be, and their numbers are reused.

A HELLO below the acknowledged number comes from a store that was reset, or whose job was deleted:
acknowledged keys stay acknowledged, and numbering continues after HELLO.

Keys are kept for KEPT_S, at most KEYS_MAX of them; the oldest are dropped first.  The file is
locked, because two APIs that shared it would be one producer.  All methods block and belong on a
thread of their own.
"""

from __future__ import annotations

import contextlib
import secrets
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from edged.errors import ConfigError

KEPT_S = 7 * 86_400
KEYS_MAX = 1_000_000
_PRUNE_EVERY = 4096
_SCHEMA = """
CREATE TABLE IF NOT EXISTS names (
  job TEXT NOT NULL, stream TEXT NOT NULL, producer TEXT NOT NULL, PRIMARY KEY (job, stream)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS requests (
  job TEXT NOT NULL, stream TEXT NOT NULL, key TEXT NOT NULL, digest BLOB NOT NULL,
  seq INTEGER NOT NULL, rows INTEGER NOT NULL, at_s INTEGER NOT NULL, acked INTEGER NOT NULL,
  PRIMARY KEY (job, stream, key)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS requests_at ON requests (at_s);
CREATE INDEX IF NOT EXISTS requests_open ON requests (job, stream, seq) WHERE acked = 0;
"""


@dataclass(frozen=True)
class KeyRecord:
    """A request with a key: its rows, its number, and whether it is committed."""

    key: str
    digest: bytes
    seq: int
    rows: int
    acked: bool = False


class Keys:
    """The state in the file at `path`.  Raises ConfigError if it cannot be opened."""

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")  # one fdatasync a transaction
            self._db.executescript(_SCHEMA)
        except (OSError, sqlite3.Error) as problem:
            raise ConfigError(
                f"{path} cannot be used: {problem}; it remembers what HTTP ingest has accepted"
            ) from problem
        self._until_prune = 0

    def producer(self, job: str, stream: str) -> str:
        """The API's producer name for a stream, created by the first call."""
        self._db.execute(
            "INSERT OR IGNORE INTO names VALUES (?, ?, ?)",
            (job, stream, f"http-{secrets.token_hex(8)}"),
        )
        row = self._db.execute(
            "SELECT producer FROM names WHERE job = ? AND stream = ?", (job, stream)
        ).fetchone()
        return str(row[0])

    def settle(self, job: str, stream: str, final: int, acked: Iterable[str]) -> None:
        """Record that batches up to `final` are committed and later numbers never will be; the keys
        in `acked` were acknowledged before."""
        with self._transaction():
            self._note(job, stream, acked)
            where = "WHERE job = ? AND stream = ? AND acked = 0"
            self._db.execute(
                f"UPDATE requests SET acked = 1 {where} AND seq <= ?", (job, stream, final)
            )
            self._db.execute(f"DELETE FROM requests {where}", (job, stream))

    def find(self, job: str, stream: str, key: str) -> KeyRecord | None:
        """The request of a key, or None; without an acknowledgement it may be committed or not."""
        row = self._db.execute(
            "SELECT key, digest, seq, rows, acked FROM requests"
            " WHERE job = ? AND stream = ? AND key = ?",
            (job, stream, key),
        ).fetchone()
        if row is None:
            return None
        key, digest, seq, rows, acked = row
        return KeyRecord(key, digest, seq, rows, bool(acked))

    def write(
        self, job: str, stream: str, entries: Sequence[KeyRecord], acked: Iterable[str]
    ) -> None:
        """Make new entries durable before their batches are sent, and record acknowledgements."""
        now_s = int(time.time())
        with self._transaction():
            self._note(job, stream, acked)
            self._db.executemany(
                "INSERT OR REPLACE INTO requests VALUES (?, ?, ?, ?, ?, ?, ?, 0)",
                [(job, stream, e.key, e.digest, e.seq, e.rows, now_s) for e in entries],
            )
            self._prune(now_s, len(entries))

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except sqlite3.Error:
            self._db.rollback()
            raise

    def _note(self, job: str, stream: str, acked: Iterable[str]) -> None:
        self._db.executemany(
            "UPDATE requests SET acked = 1 WHERE job = ? AND stream = ? AND key = ?",
            [(job, stream, key) for key in acked],
        )

    def _prune(self, now_s: int, written: int) -> None:
        self._until_prune -= written
        if self._until_prune > 0:
            return
        self._until_prune = _PRUNE_EVERY
        self._db.execute("DELETE FROM requests WHERE at_s < ? AND acked = 1", (now_s - KEPT_S,))
        (count,) = self._db.execute("SELECT count(*) FROM requests").fetchone()
        if count > KEYS_MAX:
            self._db.execute(
                "DELETE FROM requests WHERE acked = 1 AND at_s <= (SELECT at_s FROM requests"
                " ORDER BY at_s LIMIT 1 OFFSET ?)",
                (count - KEYS_MAX,),
            )
