"""Faults of a board's files, real where a file system can make them.

with `nobody`: ...              without root's right to read every file
open_tree()                     a directory that every user may enter (pytest's belong to root)
busy(sysfs, path)               an empty pipe: EAGAIN
Failing(root, {path: errno})    errors that only a device returns: EIO, ENODATA
coming_and_going(places)        files that vanish and return all the time
"""

import contextlib
import errno
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from governors.sysfs import Sysfs, error

NOBODY = 65534


@contextlib.contextmanager
def nobody() -> Iterator[None]:
    """Drop root's rights for the duration; does nothing for other users."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@contextlib.contextmanager
def open_tree() -> Iterator[Path]:
    """A temporary directory that every user may enter."""
    root = Path(tempfile.mkdtemp(prefix="edged-tree-"))
    root.chmod(0o755)
    try:
        yield root
    finally:
        shutil.rmtree(root)


@contextlib.contextmanager
def coming_and_going(places: Sequence[Path]) -> Iterator[None]:
    """Files or directories are moved away and back, over and over, by another thread."""
    over = threading.Event()

    def flip() -> None:
        while not over.is_set():
            for place in places:
                away = place.with_name(f"{place.name}.away")
                place.rename(away)
                away.rename(place)

    thread = threading.Thread(target=flip)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def busy(sysfs: Sysfs, path: str) -> Iterator[None]:
    """The file returns EAGAIN: it becomes an empty pipe with an open writer."""
    place = Path(sysfs.place(path))
    kept = place.read_text()
    place.unlink()
    os.mkfifo(place)
    writer = os.open(place, os.O_RDWR)
    try:
        yield
    finally:
        os.close(writer)
        place.unlink()
        place.write_text(kept)


class Failing(Sysfs):
    """Plain files, of which some fail as devices do."""

    def __init__(self, root: Path, failures: dict[str, int] | None = None) -> None:
        super().__init__(root)
        self.failures = failures or {}

    def read(self, path: str) -> str:
        """The content, or the failure."""
        for part, number in self.failures.items():
            if part in path:
                raise error(path, OSError(number, os.strerror(number)))
        return super().read(path)


EIO, ENODATA, EACCES = errno.EIO, errno.ENODATA, errno.EACCES
