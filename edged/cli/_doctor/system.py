"""Clock, disk, journals, groups."""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from edged.cli._doctor.base import Finding, Machine, check, failure, ok, optional, warning
from edged.cli.board import GROUP

YEAR_2024_S = 1_704_067_200
"""A clock before this is that of a board that booted without a battery (docs/jobs.md)."""
FREE_MIN, FREE_LOW = 64 << 20, 1 << 30
SYNC_SLOW_S = 0.05
SYNCS = 5
VOLATILE = {"tmpfs", "ramfs"}
TIME_ERROR = 5
"""What adjtimex(2) returns for a clock that no time service disciplines."""


@check("run")
def clock(machine: Machine) -> Iterator[Finding]:
    """Whether the wall clock can be right: `max_ahead` and the pages' times rest on it."""
    del machine
    remedy = "sudo timedatectl set-ntp true"
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    if time.time() < YEAR_2024_S:
        yield failure("clock", f"{shown}: the board has lost its time", remedy)
    elif _synchronised():
        yield ok("clock", f"{shown}, synchronised")
    else:
        yield warning("clock", f"{shown}, not synchronised by a time service", remedy)


def _synchronised() -> bool:
    timex = (ctypes.c_long * 64)()  # struct timex, 208 bytes; modes = 0 reads
    with suppress(OSError, AttributeError):
        state: int = ctypes.CDLL(None, use_errno=True).adjtimex(timex)
        return 0 <= state < TIME_ERROR
    return False


@check("run")
def disk(machine: Machine) -> Iterator[Finding]:
    """The store's directory: there, writable, durable, with room."""
    store = machine.store
    place = next(p for p in (store, *store.parents) if p.exists())
    kind = _filesystem(machine, place)
    free = shutil.disk_usage(place).free
    room = f"{free / (1 << 30):.1f} GiB free on {place} ({kind})"
    if free < FREE_MIN:
        yield failure("disk", room, "free some space, or choose another [store] directory")
    elif free < FREE_LOW:
        yield warning("disk", room, "bound the store: [store] bytes_max")
    else:
        yield ok("disk", room)
    if kind in VOLATILE:
        yield warning("disk", f"{kind} does not survive a power cut", "choose another directory")
    elif not os.access(place, os.W_OK | os.X_OK):
        text = f"{place} is not writable by this user (the service runs as edged)"
        yield optional("disk", text, f"sudo -u {GROUP} edged doctor")
    else:
        yield _synced(place)


def _synced(place: Path) -> Finding:
    """How long a commit waits for the disk."""
    took = []
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            for _ in range(SYNCS):
                file.write(bytes(4096))
                file.flush()
                started = time.perf_counter()
                os.fdatasync(file.fileno())
                took.append(time.perf_counter() - started)
    except OSError as problem:
        return failure("disk", f"{place} cannot be written: {problem.strerror}")
    typical = sorted(took)[SYNCS // 2]
    text = f"a commit waits {1000 * typical:.1f} ms for it (fdatasync, median of {SYNCS})"
    if typical > SYNC_SLOW_S:
        return warning("disk", text, "promise no shorter latency than some of these")
    return ok("disk", text)


def _filesystem(machine: Machine, place: Path) -> str:
    """The type of the file system that holds `place`."""
    best, found = -1, "unknown"
    with suppress(OSError):
        for line in (machine.root / "proc/mounts").read_text().splitlines():
            _, mount, kind, *_ = line.split()
            at = Path(mount.replace("\\040", " "))
            inside = at == place.resolve() or at in place.resolve().parents
            if inside and len(at.parts) > best:
                best, found = len(at.parts), kind
    return found


@check("run")
def journal(machine: Machine) -> Iterator[Finding]:
    """Whether the service's log survives a boot."""
    if not (machine.root / "run/systemd/system").is_dir():
        yield optional("journal", "no systemd: edged run logs to standard error")
    elif (machine.root / "var/log/journal").is_dir():
        yield ok("journal", "kept over boots")
    else:
        remedy = "sudo mkdir -p /var/log/journal && sudo systemctl restart systemd-journald"
        yield warning("journal", "lost at each boot", remedy)


@check("services")
def group(machine: Machine) -> Iterator[Finding]:
    """Membership of the group that may use the API's socket."""
    import grp
    import pwd

    del machine
    try:
        found = grp.getgrnam(GROUP)
    except KeyError:
        yield optional("group", f"no group {GROUP}: edged is not installed as a service")
        return
    user = pwd.getpwuid(os.geteuid()).pw_name
    if os.geteuid() == 0 or found.gr_gid in (os.getegid(), *os.getgroups()):
        yield ok("group", f"{user} may use the service's sockets")
    else:
        text = f"{user} is not in the group {GROUP} and may not use the service's sockets"
        yield warning("group", text, f"sudo usermod -aG {GROUP} {user}, then log in again")
