"""The changes of a table, from messages of the server to rows for the source."""

from __future__ import annotations

import select
import struct
from collections.abc import Callable
from typing import Any

from edged.sources._postgres_wire import Position
from edged.sources.postgres_child.channel import SourceChannel
from edged.sources.postgres_child.pgoutput import (
    Converter,
    Relation,
    ReplicationError,
    RowDecoder,
)
from edged.sources.postgres_child.server import STATUS_S, DatabaseServer

MESSAGES_MAX, BYTES_MAX = 1 << 13, 1 << 20
"""A batch ends with so many messages, or with so many bytes of them."""
_BEGIN, _COMMIT, _RELATION, _TRUNCATE = b"B", b"C", b"R", b"T"
_CHANGES = frozenset(b"IUD")
_LSN = struct.Struct(">Q")
_END_AT = 10
"""Where a COMMIT has the LSN of the transaction's end."""


class ChangeStream:
    """The stream of changes of one session.  It begins with transactions that were sent, and with
    rows that were."""

    on_sent: Callable[[Position], None]
    """Called with the position behind all rows that were sent."""
    on_confirmed: Callable[[], None]
    """Called once changes are committed."""

    def __init__(
        self, channel: SourceChannel, server: DatabaseServer, converter: Converter, at: Position
    ) -> None:
        self._channel, self._server, self._converter = channel, server, converter
        self._at = at
        self._lsn, self._rows, self._skip = at.lsn, 0, at.rows
        """The end of the last transaction of `at`, rows behind it, and how many of those are to be
        left out."""
        self._end_lsn = self._behind = 0
        """The end of the last transaction that has come, and rows behind it."""
        self._decoder: RowDecoder | None = None
        self._relation = b""
        self._skipped = self._within = False
        """Whether the transaction is one that was sent; whether one is open."""
        self._pending: list[bytes] = []
        self._bytes = 0
        self._whole = -1
        """Messages of `pending` before the last COMMIT; -1: none has come with them."""

    def run(self) -> None:
        """Take changes until an error ends it."""
        cursor = self._server.start()
        self._channel.on_wait = lambda: self._report(cursor, force=True)
        self._report(cursor)
        watched = [self._server.replication, self._channel.socket]
        while True:
            message = cursor.read_message()
            if message is not None:
                self._take(message.payload)
                if len(self._pending) >= MESSAGES_MAX or self._bytes >= BYTES_MAX:
                    self._flush()
                    self._channel.heed()
                    self._report(cursor)
                continue
            self._flush()
            self._report(cursor)
            ready = select.select(watched, [], [], STATUS_S)[0]
            if self._channel.socket in ready:
                self._channel.heed()
                self._report(cursor)

    def _take(self, payload: bytes) -> None:
        kind = payload[0]
        if kind in _CHANGES:
            if payload[1:5] == self._relation and not self._skipped:
                self._pending.append(payload)
                self._bytes += len(payload)
            return
        mark = payload[:1]
        if mark == _BEGIN:
            (commit_lsn,) = _LSN.unpack_from(payload, 1)
            self._skipped, self._within = commit_lsn < self._lsn, True
        elif mark == _COMMIT:
            (end_lsn,) = _LSN.unpack_from(payload, _END_AT)
            self._within = False
            if not self._skipped:
                self._whole, self._end_lsn = len(self._pending), end_lsn
            self._skipped = False
        elif mark == _RELATION:
            self._relate(Relation.read(payload))
        elif mark == _TRUNCATE and self._relation and not self._skipped:
            self._truncated(payload)

    def _relate(self, relation: Relation) -> None:
        """The table is described, at first or because it was altered."""
        if relation.name != self._server.settings.table:
            return
        if self._decoder is None or self._decoder.relation != relation:
            self._flush()
            self._decoder = RowDecoder(relation, self._converter)
            self._relation = struct.pack(">I", relation.id)

    def _truncated(self, payload: bytes) -> None:
        ids = [payload[i : i + 4] for i in range(6, len(payload), 4)]
        if self._relation in ids:
            self._flush()
            raise ReplicationError(
                f"{self._server.settings.table} was truncated, which no row can say: give the table"
                " another id and slot to read it from the start"
            )

    def _flush(self) -> None:
        """Send the rows of the pending messages, or that their transaction has ended."""
        if not self._pending and self._whole < 0:
            return
        rows, total, ended = None, 0, 0
        if self._pending:
            assert self._decoder is not None
            rows, counts = self._decoder.decode(self._pending)
            total, ended = rows.num_rows, int(counts[: max(0, self._whole)].sum())
        self._behind = self._behind + total if self._whole < 0 else total - ended
        self._pending, self._bytes, self._whole = [], 0, -1
        drop = min(self._skip, total)
        self._skip -= drop
        self._rows += total
        if self._end_lsn and not self._skip:
            self._lsn, self._rows, self._end_lsn = self._end_lsn, self._behind, 0
        if drop < total or (self._at.rows and not self._skip and not self._rows):
            self._at = Position(self._at.system, self._lsn, self._rows)
            rows = self._converter.none() if rows is None else rows.slice(drop)
            self._channel.rows(self._at, rows)
            self.on_sent(self._at)

    def _report(self, cursor: Any, force: bool = False) -> None:
        """Report what is committed: all that the server has sent, where no row of it is not."""
        committed = self._channel.confirmed
        if committed:
            self.on_confirmed()
        if committed >= self._at.lsn and not (self._within or self._at.rows):
            committed = max(committed, cursor.wal_end)
        if committed:
            cursor.send_feedback(
                write_lsn=cursor.wal_end, flush_lsn=committed, apply_lsn=committed, force=force
            )
