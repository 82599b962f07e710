"""Who reads a landing, and how far each has got: what retention may not delete yet.

    LANDING/consumers/<name>.json    {"position": {segment: rows}, "stream": "<name>@<version>"}

The directory is locked by whoever enters a consumer, and by whoever deletes.

A consumer is entered before it looks at the landing for the first time.  Whatever is deleted after
that it counts for, and what was deleted before it does not see.  All below its position has been
processed and is not read again by it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from edged.central.tables import replace_file
from edged.errors import CentralError

_MODE, _PLAIN = 0o2770, 0o0770
"""The group of whoever made it may write, too: Spark runs as another user.  The bit has its files
stay the group's; where a unit may not set it, the directory is made ahead (systemd-tmpfiles)."""


@dataclass(frozen=True, slots=True)
class Consumer:
    """One reader of one stream."""

    name: str
    stream: str
    """`name@version`."""
    position: Mapping[str, int]
    """Rows per segment that it needs no more; of segments that are not named it needs all."""


def directory(landing: str | Path) -> Path:
    """Where the consumers of a landing are."""
    return Path(landing) / "consumers"


def make(landing: str | Path) -> None:
    """Make the directory, for its owner and its group."""
    place = directory(landing)
    if not place.exists():
        place.mkdir(parents=True, exist_ok=True)
        try:
            place.chmod(_MODE)
        except PermissionError:
            place.chmod(_PLAIN)


def enter(landing: str | Path, consumer: Consumer, anew: bool) -> None:
    """Enter a consumer; one that is known keeps its position unless it begins `anew`.

    Raises CentralError where that cannot be written.
    """
    try:
        with locked(landing):
            if anew or not _file(landing, consumer.name).exists():
                advance(landing, consumer)
    except OSError as problem:
        raise CentralError(
            f"{directory(landing)}: {consumer.name} cannot be entered ({problem.strerror}): let "
            "this user write there (the collector lets its group), or give the source an empty "
            "consumer, of which retention knows nothing"
        ) from problem


def advance(landing: str | Path, consumer: Consumer) -> None:
    """Put down how far a consumer has got, durably."""
    content = {"stream": consumer.stream, "position": dict(consumer.position)}
    replace_file(_file(landing, consumer.name), json.dumps(content, sort_keys=True).encode())


def read(landing: str | Path) -> list[Consumer]:
    """All of them, by name.  Raises CentralError for a file that is none."""
    found = []
    for file in sorted(directory(landing).glob("*.json")):
        try:
            content = json.loads(file.read_bytes())
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
    """Hold the lock: no consumer is entered, and nobody else deletes."""
    make(landing)
    fd = os.open(directory(landing), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _file(landing: str | Path, name: str) -> Path:
    return directory(landing) / f"{name}.json"
