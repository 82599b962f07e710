"""The lock of a store, `STORE/lock`: one process at a time opens, migrates or repairs it."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

from edged.errors import StoreBusy
from edged.platform.disk import DISK_FULL, Disk, File

NAME = "lock"


def take_lock(disk: Disk, store: str) -> File:
    """The lock's file, held until it is closed; it holds the pid, for diagnosis.

    Raises StoreBusy where another process has it.
    """
    lock = disk.open(f"{store}/{NAME}", create=True)
    if not lock.lock():
        pid = lock.pread(20, 0).decode(errors="replace").strip()
        lock.close()
        raise StoreBusy(
            f"{store}: process {pid or '(unknown)'} is using this store; stop it, or give "
            "this one another directory"
        )
    try:
        lock.pwritev([f"{os.getpid():<20}\n".encode()], 0)
    except OSError as problem:
        if problem.errno not in DISK_FULL:  # the pid is only for diagnosis
            lock.close()
            raise
    return lock


def holder(store: str) -> str | None:
    """The pid of the process that has a store, as its lock says; None where none has it.

    A process that starts in the moment of this call finds the store in use.
    """
    try:
        fd = os.open(f"{store}/{NAME}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(fd, 20, 0).decode(errors="replace").strip() or "(unknown)"
    except OSError:
        return None
    finally:
        with suppress(OSError):
            os.close(fd)
    return None
