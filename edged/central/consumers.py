"""Consumers: the readers of a landing and their positions, which retention must not delete beyond.

    LANDING/consumers/<name>.json    {"position": {segment: rows}, "stream": "<name>@<version>",
                                      "crc": …}           (edged/documents/checked_json.py)

Registration of a consumer and deletion both hold the directory's lock.

A consumer is registered before its first look at the landing.  It therefore holds back every later
deletion, and never sees what was deleted before.  Everything below its position is processed and
not read again.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from edged.central.tables import replace_file
from edged.documents import checked_json
from edged.errors import CentralError

_MODE, _PLAIN = 0o2770, 0o0770
"""The creator's group may write too: Spark runs as another user.  The setgid bit keeps files in
that group.  Where a unit must not set it, systemd-tmpfiles creates the directory beforehand."""


@dataclass(frozen=True, slots=True)
class Consumer:
    """One reader of one stream."""

    name: str
    stream: str
    """`name@version`."""
    position: Mapping[str, int]
    """Rows per segment that it no longer needs; it needs all rows of other segments."""


def directory(landing: str | Path) -> Path:
    """The directory of a landing's consumers."""
    return Path(landing) / "consumers"


def make(landing: str | Path) -> None:
    """Create the directory, for its owner and its group."""
    place = directory(landing)
    if not place.exists():
        place.mkdir(parents=True, exist_ok=True)
        try:
            place.chmod(_MODE)
        except PermissionError:
            place.chmod(_PLAIN)


def register(landing: str | Path, consumer: Consumer, anew: bool) -> None:
    """Register a consumer.  A known one keeps its position unless `anew`.

    Raises CentralError if the file cannot be written.
    """
    try:
        with locked(landing):
            if anew or not _file(landing, consumer.name).exists():
                advance(landing, consumer)
    except OSError as problem:
        raise CentralError(
            f"{directory(landing)}: {consumer.name} cannot be registered ({problem.strerror}): let "
            "this user write there (the collector lets its group), or give the source an empty "
            "consumer, which retention ignores"
        ) from problem


def advance(landing: str | Path, consumer: Consumer) -> None:
    """Record a consumer's position, durably."""
    content = {"stream": consumer.stream, "position": dict(consumer.position)}
    replace_file(_file(landing, consumer.name), checked_json.pack(content))


def read(landing: str | Path) -> list[Consumer]:
    """All consumers, by name.  Raises CentralError for an invalid file."""
    found = []
    for file in sorted(directory(landing).glob("*.json")):
        try:
            content = checked_json.unpack(file.read_bytes())
            position = {str(name): int(rows) for name, rows in content["position"].items()}
            found.append(Consumer(file.stem, str(content["stream"]), position))
        except OSError as problem:
            raise CentralError(
                f"{file}: cannot be read ({problem.strerror}): let its group read it"
            ) from problem
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise CentralError(
                f"{file}: not a consumer ({problem!r}): delete it if its reader is gone; a reader "
                "that runs writes it again with its next batch"
            ) from problem
    return found


@contextmanager
def locked(landing: str | Path) -> Iterator[None]:
    """Hold the lock: no consumer is registered and nothing is deleted meanwhile."""
    make(landing)
    fd = os.open(directory(landing), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _file(landing: str | Path, name: str) -> Path:
    return directory(landing) / f"{name}.json"
