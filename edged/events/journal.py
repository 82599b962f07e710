"""Log lines for the systemd journal, with levels and fields.

If standard error is connected to the journal, lines go there in its native protocol (systemd's
JOURNAL_NATIVE_PROTOCOL), else to standard error.  The daemon writes with `writer`; API and
collector use Python's `logging`, which `log_to` configures.
"""

from __future__ import annotations

import logging
import os
import socket
import stat
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edged.events.log import PRIORITIES, Write, to_stderr

JOURNAL = Path("/run/systemd/journal/socket")
LINE_BYTES_MAX = 1 << 15
"""Longer values are truncated, because the size of a datagram is bounded."""


def log_to(identifier: str, level: str, environ: Mapping[str, str] | None = None) -> None:
    """Configure Python's `logging` from a level on, for the journal under `identifier`.

    Fields are a record's `extra={"fields": {name: value}}`.
    """
    environ = os.environ if environ is None else environ
    handler: logging.Handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(f"{identifier}: %(message)s"))
    if _is_journal(environ):
        handler = ToJournal(Journal(identifier=identifier))
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)


def report_error(problem: object, identifier: str = "edged") -> None:
    """Report the error that ends a command, with level `error` in the journal."""
    if _is_journal(os.environ):
        Journal(identifier=identifier)("error", str(problem), {})
    else:
        sys.stderr.write(f"{identifier}: {problem}\n")


class ToJournal(logging.Handler):
    """A logging handler that writes records, with their traceback, to the journal."""

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self._journal = journal

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        level = next(
            (name for name in ("error", "warning", "info")
             if record.levelno >= getattr(logging, name.upper())), "debug"
        )  # fmt: skip
        self._journal(level, self.format(record), getattr(record, "fields", {}))

    def close(self) -> None:
        """Release the socket."""
        self._journal.close()
        super().close()


def writer(environ: Mapping[str, str] | None = None) -> Write:
    """The writer for this process: the journal, if standard error is connected to it, else standard
    error."""
    environ = os.environ if environ is None else environ
    return Journal() if _is_journal(environ) else to_stderr


class Journal:
    """Writes lines with fields to the journal: `Write` of `edged.events.log`."""

    def __init__(self, path: Path = JOURNAL, identifier: str = "edged") -> None:
        self._path, self._identifier = str(path), identifier
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def __call__(self, level: str, text: str, fields: dict[str, Any]) -> None:
        """Write one line, with fields as EDGED_<NAME>; to standard error where the journal does not
        accept it."""
        entry = {"MESSAGE": text, "PRIORITY": PRIORITIES[level],
                 "SYSLOG_IDENTIFIER": self._identifier}  # fmt: skip
        entry.update({f"EDGED_{name.upper()}": value for name, value in fields.items()})
        try:
            self._socket.sendto(b"".join(map(_field, entry, entry.values())), self._path)
        except OSError:
            to_stderr(level, text, fields)

    def close(self) -> None:
        """Release the socket."""
        self._socket.close()


def _field(name: str, value: object) -> bytes:
    """`NAME=value`; a value with a newline as NAME, its length in 8 bytes, and the value."""
    data = str(value).encode("utf-8", "replace")[:LINE_BYTES_MAX]
    if b"\n" not in data:
        return b"%s=%s\n" % (name.encode(), data)
    return b"%s\n%s%s\n" % (name.encode(), struct.pack("<Q", len(data)), data)


def _is_journal(environ: Mapping[str, str]) -> bool:
    """Whether standard error is the journal's: $JOURNAL_STREAM has its device and inode."""
    try:
        facts = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    stream = f"{facts.st_dev}:{facts.st_ino}"
    return stat.S_ISSOCK(facts.st_mode) and environ.get("JOURNAL_STREAM") == stream
