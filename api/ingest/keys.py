"""What HTTP ingest remembers, durable in one SQLite file: idempotency keys, and its own producers.

Exactly once rests on three facts about a producer's numbers (docs/producers.md): the daemon drops a
number that it has seen, it refuses a gap, and HELLO tells the last committed one.

1. Before a batch goes out, its key, digest, producer and number are durable here.
2. Its ack is noted, lazily: it can be found out again.
3. A producer belongs to one life of the API.  After a crash the next life says end-of-stream for
   it, waits until that is committed, and asks for its last number: keys up to it are committed,
   the others never were and never will be, since nobody sends under that producer any more.

Keys are kept for KEPT_S, and at most KEYS_MAX of them, oldest forgotten first.  All methods block:
they belong on a thread of their own.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edged.errors import ConfigError

KEPT_S = 7 * 86_400
KEYS_MAX = 1_000_000
_PRUNE_EVERY = 4096
_SCHEMA = """
CREATE TABLE IF NOT EXISTS producers (
  id TEXT PRIMARY KEY, job TEXT NOT NULL, stream TEXT NOT NULL, final INTEGER
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS keys (
  job TEXT NOT NULL, stream TEXT NOT NULL, key TEXT NOT NULL, digest BLOB NOT NULL,
  producer TEXT NOT NULL, seq INTEGER NOT NULL, rows INTEGER NOT NULL,
  at_s INTEGER NOT NULL, acked INTEGER NOT NULL,
  PRIMARY KEY (job, stream, key)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS keys_at ON keys (at_s);
CREATE INDEX IF NOT EXISTS keys_open ON keys (producer, seq) WHERE acked = 0;
"""


@dataclass(frozen=True)
class Entry:
    """A request with a key: what it brought, under which number."""

    job: str
    stream: str
    key: str
    digest: bytes
    producer: str
    seq: int
    rows: int


class Keys:
    """The file at `path`.  Raises ConfigError where it cannot be opened."""

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")  # one fdatasync a transaction
            self._db.executescript(_SCHEMA)
        except (OSError, sqlite3.Error) as problem:
            raise ConfigError(
                f"{path} cannot be used: {problem}; it remembers what HTTP ingest has accepted"
            ) from problem
        self._until_prune = 0

    def begin(self, id: str, job: str, stream: str) -> None:
        """A new producer of this life."""
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute("INSERT INTO producers VALUES (?, ?, ?, NULL)", (id, job, stream))
            self._db.execute("COMMIT")

    def unsettled(self, job: str, stream: str) -> list[str]:
        """Producers of a stream whose last number nobody has asked for."""
        rows = self._db.execute(
            "SELECT id FROM producers WHERE job = ? AND stream = ? AND final IS NULL", (job, stream)
        )
        return [id for (id,) in rows]

    def settle(self, id: str, final: int) -> None:
        """All of this producer up to `final` is committed, nothing else of it ever will be."""
        self._db.execute("BEGIN IMMEDIATE")
        self._db.execute(
            "UPDATE keys SET acked = 1 WHERE producer = ? AND seq <= ? AND acked = 0", (id, final)
        )
        self._db.execute("DELETE FROM keys WHERE producer = ? AND acked = 0", (id,))
        self._db.execute("DELETE FROM producers WHERE id = ?", (id,))
        self._db.execute("COMMIT")

    def find(self, job: str, stream: str, key: str) -> Entry | None:
        """The committed request of this key."""
        row = self._db.execute(
            "SELECT digest, producer, seq, rows FROM keys"
            " WHERE job = ? AND stream = ? AND key = ? AND acked = 1",
            (job, stream, key),
        ).fetchone()
        return None if row is None else Entry(job, stream, key, *row)

    def write(self, entries: Sequence[Entry], acked: Iterable[tuple[str, str, str]]) -> None:
        """Make new entries durable before their batches go out; note acks on the way."""
        now_s = int(time.time())
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._db.executemany(
                "UPDATE keys SET acked = 1 WHERE job = ? AND stream = ? AND key = ?", acked
            )
            self._db.executemany(
                "INSERT OR REPLACE INTO keys VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0)",
                [
                    (e.job, e.stream, e.key, e.digest, e.producer, e.seq, e.rows, now_s)
                    for e in entries
                ],
            )
            self._prune(now_s, len(entries))
            self._db.execute("COMMIT")
        except sqlite3.Error:
            self._db.execute("ROLLBACK")
            raise

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _prune(self, now_s: int, written: int) -> None:
        self._until_prune -= written
        if self._until_prune > 0:
            return
        self._until_prune = _PRUNE_EVERY
        self._db.execute("DELETE FROM keys WHERE at_s < ? AND acked = 1", (now_s - KEPT_S,))
        (count,) = self._db.execute("SELECT count(*) FROM keys").fetchone()
        if count > KEYS_MAX:
            self._db.execute(
                "DELETE FROM keys WHERE acked = 1 AND at_s <= (SELECT at_s FROM keys"
                " ORDER BY at_s LIMIT 1 OFFSET ?)",
                (count - KEYS_MAX,),
            )
