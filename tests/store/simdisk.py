"""A disk in memory that loses, tears and refuses things the way real ones do.

What is written but not synced is kept, dropped or turned into garbage sector by sector at a power
cut (after SQLite's test6.c); names that are not synced happen or not, a rename wholly or not at
all, and what depends on a name that did not happen does not happen either.  A failed sync leaves
the new bytes readable and forgets to write them, and the next sync succeeds ("fsyncgate").
"""

from __future__ import annotations

import errno
import random
from collections import Counter

import numpy as np

from edged.platform.disk import flat_view

SECTOR = 512


class PowerCut(BaseException):
    """A power cut; not an Exception, so that no handler catches it."""


class Inode:
    def __init__(self, durable=b"", current=b""):
        self.durable, self.current = bytearray(durable), bytearray(current)
        self.unsynced = []
        self.locked = False

    def change(self, offset, data, size=None):
        self.unsynced.append((offset, data, size))
        _apply(self.current, offset, data, size)


def _apply(content, offset, data, size):
    if size is not None:
        del content[size:]
        content.extend(bytes(size - len(content)))
        return
    if len(content) < offset + len(data):
        content.extend(bytes(offset + len(data) - len(content)))
    content[offset : offset + len(data)] = data


class SimFile:
    def __init__(self, disk, path, inode):
        self.path, self._disk, self._inode, self._locked = path, disk, inode, False

    def pread(self, length, offset):
        self._disk.count("pread", self.path)
        for bad, start in self._disk.bad_blocks:
            if bad == self.path and start < offset + length and offset < start + 4096:
                raise OSError(errno.EIO, "simulated: bad block", self.path)
        return bytes(self._inode.current[offset : offset + length])

    def preadinto(self, buffer, offset):
        data = self.pread(len(buffer), offset)
        buffer[: len(data)] = data
        return len(data)

    def pwritev(self, buffers, offset):
        for buffer in buffers:
            data = bytes(flat_view(buffer))
            if data:
                self._disk.count("pwritev", self.path)
                self._disk.grow(self._inode, offset + len(data))
                self._inode.change(offset, data)
                offset += len(data)

    def sync(self):
        try:
            self._disk.count("sync", self.path)
        except OSError:
            self._inode.unsynced.clear()
            raise
        if not self._disk.lying(self.path):
            for change in self._inode.unsynced:
                _apply(self._inode.durable, *change)
            self._inode.unsynced.clear()

    def allocate(self, length):
        self._disk.count("allocate", self.path)
        self._disk.grow(self._inode, length)
        if length > len(self._inode.current):
            self._inode.change(0, b"", length)

    def truncate(self, length):
        self._disk.count("truncate", self.path)
        self._inode.change(0, b"", length)

    def size(self):
        return len(self._inode.current)

    def map(self, length):
        return np.frombuffer(self.pread(length, 0), np.uint8)

    def lock(self):
        if self._inode.locked:
            return False
        self._inode.locked = self._locked = True
        return True

    def close(self):
        if self._locked:
            self._inode.locked = False


class SimDisk:
    """See the module.  `capacity` is bytes over all files; syncs of paths that end in one of `lies`
    do nothing."""

    def __init__(self, capacity=1 << 40, lies=()):
        self.names, self._durable_names, self._events = {}, {}, []
        self._directories = set()
        self.capacity, self.lies = capacity, lies
        self.operations, self.counts = 0, Counter()
        self.fail_at, self.fail_errno, self.cut_at = None, errno.EIO, None
        self.fail_kinds, self.fail_for_good = None, False
        self.bad_blocks = set()
        """(path, offset of a block of 4096): what cannot be read."""

    # -- faults --

    def count(self, kind, path=""):
        self.counts[kind] += 1
        if self.fail_kinds and kind not in self.fail_kinds:
            return
        self.operations += 1
        if self.cut_at is not None and self.operations >= self.cut_at:
            raise PowerCut
        if self.fail_at is not None and (
            self.operations == self.fail_at
            or (self.fail_for_good and self.operations > self.fail_at)
        ):
            self.failed = kind
            raise OSError(self.fail_errno, f"simulated, operation {self.operations}: {kind} {path}")

    def lying(self, path):
        return path.endswith(tuple(self.lies))

    def grow(self, inode, size):
        used = sum(len(i.current) for i in self.names.values())
        if size > len(inode.current) and used + size - len(inode.current) > self.capacity:
            raise OSError(errno.ENOSPC, "simulated: disk full")

    def after_kill(self):
        """The disk as the next process finds it after a kill."""
        twin = SimDisk(self.capacity, self.lies)
        copies = {}
        for inode in [*self.names.values(), *self._durable_names.values()]:
            copy = copies.setdefault(id(inode), Inode(inode.durable, inode.current))
            copy.unsynced = list(inode.unsynced)
        for event in self._events:
            if event[0] == "create":
                inode = event[2]
                copy = copies.setdefault(id(inode), Inode(inode.durable, inode.current))
                copy.unsynced = list(inode.unsynced)
        twin.names = {p: copies[id(i)] for p, i in self.names.items()}
        twin._durable_names = {p: copies[id(i)] for p, i in self._durable_names.items()}
        twin._events = [
            (e[0], e[1], copies[id(e[2])] if e[0] == "create" else e[2]) for e in self._events
        ]
        twin._directories = set(self._directories)
        return twin

    def after_power_cut(self, rng: random.Random):
        """One of the possible disks after a power cut."""
        old = self.after_kill()
        twin = SimDisk(self.capacity, self.lies)
        twin._directories = old._directories
        twin.names = old._names_after_cut(rng)
        for inode in {id(i): i for i in twin.names.values()}.values():
            for offset, data, size in inode.unsynced:
                _tear(inode.durable, offset, data, size, rng)
            inode.current = bytearray(inode.durable)
            inode.unsynced = []
        twin._durable_names = dict(twin.names)
        return twin

    def _names_after_cut(self, rng):
        names, lost = dict(self._durable_names), set()
        for kind, path, other in self._events:
            touched = {path, other} if kind == "rename" else {path}
            if touched & lost or rng.random() < 0.5:
                lost |= touched
            else:
                _happen(names, kind, path, other)
        return names

    # -- the Disk protocol --

    def open(self, path, create=False):
        if path not in self.names:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "simulated: no such file", path)
            self.count("create", path)
            self._do("create", path, Inode())
        return SimFile(self, path, self.names[path])

    def mkdir(self, path):
        self._directories.add(path)

    def listdir(self, path):
        return sorted(p[len(path) + 1 :] for p in self.names if p.startswith(path + "/"))

    def exists(self, path):
        return path in self.names or path in self._directories

    def rename(self, old, new):
        self.count("rename", old)
        self._do("rename", old, new)

    def unlink(self, path):
        self.count("unlink", path)
        self._do("unlink", path, None)

    def free(self, path):
        return self.capacity - sum(len(i.current) for i in self.names.values())

    def sync_directory(self, path):
        self.count("sync_directory", path)
        if self.lying(path):
            return
        rest = []
        for event in self._events:
            if event[1].rpartition("/")[0] == path:
                _happen(self._durable_names, *event)
            else:
                rest.append(event)
        self._events = rest

    def _do(self, kind, path, other):
        _happen(self.names, kind, path, other)
        self._events.append((kind, path, other))

    # -- for tests --

    def content(self, path):
        return self.names[path].current

    def put(self, path, data):
        """Replace a file's bytes, on the medium as well."""
        inode = self.names[path]
        inode.current, inode.durable, inode.unsynced = bytearray(data), bytearray(data), []


def _happen(names, kind, path, other):
    if kind == "create":
        names[path] = other
    elif path not in names:
        raise FileNotFoundError(errno.ENOENT, "simulated: no such file", path)
    elif kind == "rename":
        names[other] = names.pop(path)
    else:
        del names[path]


def _tear(content, offset, data, size, rng):
    if size is not None:
        if rng.random() < 0.5:
            _apply(content, offset, data, size)
        return
    at = 0
    mood = rng.random()
    while at < len(data):
        step = min(SECTOR - (offset + at) % SECTOR, len(data) - at)
        piece = data[at : at + step]
        fate = mood if mood < 0.5 else rng.random()
        if fate < 0.25 or 0.5 <= fate < 0.75:
            _apply(content, offset + at, piece, None)
        elif fate > 0.9:
            _apply(content, offset + at, rng.randbytes(step), None)
        at += step
