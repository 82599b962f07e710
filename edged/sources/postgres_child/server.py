"""A PostgreSQL server as a replication needs it: connections, catalogs, slot, and copy.

psycopg2 is loaded here alone, in the child process of a `postgres` source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

import psycopg2
import psycopg2.extras
from psycopg2 import sql

from edged.sources.postgres_child.pgoutput import FULL, Converter, ReplicationError

OPTIONS = "-c datestyle=ISO -c timezone=UTC -c extra_float_digits=3 -c bytea_output=hex"
"""Settings of a session that decide about the text of values."""
STATUS_S = 10
"""Seconds between two reports of what is committed, while nothing changes."""
Errors = (psycopg2.Error,)
"""What a lost connection or a refusal of the server raises."""

_TABLE = """
    SELECT c.oid, c.relreplident FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p')
"""
_COLUMNS = """
    SELECT attname, COALESCE(NULLIF(t.typbasetype, 0), t.oid), format_type(a.atttypid, a.atttypmod)
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
_IDENTITY = """
    SELECT a.attname FROM pg_index i JOIN pg_attribute a
    ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)
    WHERE i.indrelid = %s AND CASE WHEN %s = 'i' THEN i.indisreplident ELSE i.indisprimary END
"""
_PUBLISHED = """
    SELECT 1 FROM pg_publication_tables WHERE pubname = %s AND schemaname = %s AND tablename = %s
"""
_SLOT = "SELECT plugin, wal_status FROM pg_replication_slots WHERE slot_name = %s"


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Where the server is, and what is read from it."""

    host: str
    port: int
    database: str
    user: str
    password: str
    tls: str
    table: str
    publication: str
    slot: str

    @property
    def table_parts(self) -> tuple[str, str]:
        """The table's schema and name."""
        space, _, name = self.table.rpartition(".")
        return space, name


class DatabaseServer:
    """One session: an ordinary connection, and one for replication."""

    def __init__(self, settings: ServerSettings) -> None:
        """Connect.  Raises psycopg2.Error."""
        self.settings = settings
        self._plain = self._connect(psycopg2.extensions.connection)
        self._plain.autocommit = True
        self.replication = self._connect(psycopg2.extras.LogicalReplicationConnection)
        self.cursor = self.replication.cursor()
        self.cursor.execute("IDENTIFY_SYSTEM")
        self.system = str(self.cursor.fetchone()[0])

    def close(self) -> None:
        """Close both connections."""
        self.replication.close()
        self._plain.close()

    def _connect(self, kind: Any) -> Any:
        s = self.settings
        return psycopg2.connect(
            host=s.host, port=s.port, dbname=s.database, user=s.user, password=s.password or None,
            sslmode=s.tls, connect_timeout=10, options=OPTIONS, client_encoding="UTF8",
            application_name=f"edged {s.slot}", connection_factory=kind,
            keepalives_idle=30, keepalives_interval=10, keepalives_count=3,
        )  # fmt: skip

    def check(self, converter: Converter) -> None:
        """Raise ReplicationError where table or publication do not fit."""
        space, name = self.settings.table_parts
        found = self._rows(_TABLE, space, name)
        if not found:
            raise ReplicationError(f"there is no table {self.settings.table}")
        oid, identity = found[0]
        types = {n: (int(kind), text) for n, kind, text in self._rows(_COLUMNS, oid)}
        converter.check(self.settings.table, types)
        has = {n for (n,) in self._rows(_IDENTITY, oid, identity)}
        lacking = {converter.names[n] for n in converter.key} - has
        if converter.key and identity != FULL and lacking:
            raise ReplicationError(
                f"{', '.join(sorted(lacking))} of the job's key is no part of the primary key of"
                f" {self.settings.table}: name its columns, or ALTER TABLE {self.settings.table}"
                " REPLICA IDENTITY FULL"
            )
        if not self._rows(_PUBLISHED, self.settings.publication, space, name):
            raise ReplicationError(
                f"publication {self.settings.publication} has no table {self.settings.table}:"
                f" CREATE PUBLICATION {self.settings.publication} FOR TABLE {self.settings.table}"
            )

    def slot(self) -> tuple[str, str] | None:
        """Plugin and state of the slot; None: there is none."""
        found = self._rows(_SLOT, self.settings.slot)
        return (str(found[0][0]), str(found[0][1])) if found else None

    def make_slot(self) -> tuple[int, str]:
        """Make the slot; returns where its changes begin, and the name of a snapshot of that
        moment, which lives until the next command of the replication connection."""
        self.cursor.create_replication_slot(self.settings.slot, output_plugin="pgoutput")
        _, lsn, snapshot, _ = self.cursor.fetchone()
        return lsn_of(lsn), snapshot

    def drop_slot(self) -> None:
        """Drop the slot."""
        self.cursor.drop_replication_slot(self.settings.slot)

    def copy(self, snapshot: str, names: Sequence[str], into: IO[bytes]) -> None:
        """Write the table as of a snapshot as CSV."""
        with self._plain.cursor() as cursor:
            cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            cursor.execute("SET TRANSACTION SNAPSHOT %s", (snapshot,))
            space, name = self.settings.table_parts
            query = sql.SQL(
                "COPY (SELECT {} FROM {}) TO STDOUT WITH (FORMAT csv, NULL '', FORCE_QUOTE *)"
            ).format(sql.SQL(", ").join(map(sql.Identifier, names)), sql.Identifier(space, name))
            cursor.copy_expert(query, into)
            cursor.execute("COMMIT")

    def start(self) -> Any:
        """Start the replication where the server knows it to be committed; returns its cursor."""
        self.cursor.start_replication(
            slot_name=self.settings.slot,
            options={"proto_version": "1", "publication_names": self.settings.publication},
            status_interval=STATUS_S,
        )
        return self.cursor

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._plain.cursor() as cursor:
            cursor.execute(query, values)
            found: list[tuple[Any, ...]] = cursor.fetchall()
            return found


def lsn_of(text: str) -> int:
    """An LSN as a number."""
    high, _, low = text.partition("/")
    return int(high, 16) << 32 | int(low, 16)
