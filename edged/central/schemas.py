"""The schema registry: each schema is written once (`edged/central/schema_files.py`).

A schema whose files are damaged beyond its copy counts as unregistered: the device registers it
again, and the files are replaced.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edged.central import schema_files
from edged.central.segments import digest64, stream_hash
from edged.data.schema import Schema
from edged.errors import CentralError, SchemaMismatch
from edged.pages.format import COLUMN_NAME_BYTES_MAX, PAGE_COLUMNS_MAX
from edged.uplink import telemetry

_ID = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_VERSION_MAX = (1 << 32) - 1
SCHEMA_BYTES_MAX = 1 << 20
DETAIL_MAX = 300
"""Characters of what is wrong with a schema, in an answer."""
_LOG = logging.getLogger(__name__)


def valid_id(text: str) -> bool:
    """Whether `text` may name a device or a job's stream; such names become file names."""
    return _ID.fullmatch(text) is not None


def valid_stream(text: str) -> bool:
    """Whether `text` may name a stream: a job's, or the built-in telemetry stream."""
    return text == telemetry.STREAM or valid_id(text)


class SchemaRegistry:
    """The registered schemas of a landing, cached after the first read."""

    def __init__(self, landing: str | Path) -> None:
        self._directory = Path(landing) / "schemas"
        self._directory.mkdir(parents=True, exist_ok=True)
        self._known: dict[tuple[str, int], str] = {}
        self._creating = threading.Lock()
        for name in schema_files.names(self._directory):
            if problem := schema_files.mend(self._directory, name):
                _LOG.error("%s: %s", schema_files.path(self._directory, name), problem)

    def path(self, stream: str, version: int) -> Path:
        """The file of `stream@version`."""
        return self._directory / f"{stream}@{version}.json"

    def get(self, stream: str, version: int) -> str | None:
        """The schema's canonical JSON text; None if it is not registered."""
        known = self._known.get((stream, version))
        if known is not None:
            return known
        if not valid_stream(stream):
            return None
        found = schema_files.read(self._directory, f"{stream}@{version}")
        if found is None or found.text is None:
            return None
        self._known[stream, version] = found.text
        return found.text

    def registered(self, stream: str, version: int) -> bool:
        """Whether `stream@version` is registered."""
        return self.get(stream, version) is not None

    def register(self, stream: str, version: int, text: str) -> None:
        """Register `text` (a schema's JSON) durably; repeating it changes nothing.

        Raises SchemaMismatch if another schema is registered, CentralError if `text` is not a
        schema, a new one is beyond the limits of `edged.pages.format`, or the name is invalid.
        """
        if not valid_stream(stream) or not 0 <= version <= _VERSION_MAX:
            raise CentralError(f"{stream!r} version {version} is not a valid schema name")
        canonical = _canonical(stream, version, text)
        if stream == telemetry.STREAM and canonical != telemetry.SCHEMAS.get(version, canonical):
            raise SchemaMismatch(f"{stream}@{version} has other columns: edged/uplink/telemetry.py")
        if self.get(stream, version) is None:
            _check_limits(stream, version, canonical)
            self._create(stream, version, canonical)
        if self.get(stream, version) != canonical:
            raise SchemaMismatch(
                f"{stream}@{version} is registered with other columns: give the new ones a new "
                f"version ({self.path(stream, version).name} has {self.get(stream, version)})"
            )

    def _create(self, stream: str, version: int, canonical: str) -> None:
        """Create the files durably, unless another process is first."""
        with self._creating, self._locked():
            if self.get(stream, version) is None:
                schema_files.write(self._directory, f"{stream}@{version}", canonical)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the directory: one process creates files."""
        fd = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def streams_by_hash(self) -> dict[int, int]:
        """For every registered stream@version: the `stream_hash` of its rows to the stream's own
        hash."""
        found = {}
        for name in schema_files.names(self._directory):
            stream, _, version = name.rpartition("@")
            if valid_stream(stream) and version.isdigit():
                found[stream_hash(stream, int(version))] = digest64(stream)
        return found


def _check_limits(stream: str, version: int, canonical: str) -> None:
    """Raise CentralError if the schema has too many columns, or one with too long a name."""
    names = Schema.from_json(canonical).names
    longest = max(len(name.encode()) for name in names)
    problem = ""
    if len(names) > PAGE_COLUMNS_MAX:
        problem = f"{len(names)} columns; at most {PAGE_COLUMNS_MAX} are registered"
    elif longest > COLUMN_NAME_BYTES_MAX:
        problem = f"a column's name of {longest} bytes; at most {COLUMN_NAME_BYTES_MAX} are"
    if problem:
        raise CentralError(f"{stream}@{version} has {problem}")


def _no_number(text: str) -> int:
    raise ValueError(f"a schema holds no number: {text[:40]}")


def _canonical(stream: str, version: int, text: str) -> str:
    """The canonical text of a schema's JSON; raises CentralError for another text."""
    try:
        if len(text) > SCHEMA_BYTES_MAX:
            raise ValueError(f"{len(text)} characters; at most {SCHEMA_BYTES_MAX}")
        document = json.loads(
            text, parse_int=_no_number, parse_float=_no_number, parse_constant=_no_number
        )
        schema = Schema.from_json(document)
        for name in schema.names:
            name.encode()  # a lone surrogate is no text: ValueError
        return schema.to_json()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise CentralError(
            f"the text received for {stream}@{version} is not a schema: {str(problem)[:DETAIL_MAX]}"
        ) from None
