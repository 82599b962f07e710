"""What a collector acknowledges is on the medium, even after a failed sync.

After a failed sync the kernel keeps the bytes in its cache and never writes them ("fsyncgate"), so
that a restarted process reads bytes that the medium lacks.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from edged.central import highwater, segments
from tests.central.support import make_page, read_landing
from tests.central.test_landing import open_landing, send


class Medium:
    """Tracks what of the segments' files is durable; replaces `os`."""

    def __init__(self):
        self.durable: dict[str, bytearray] = {}
        self._dirty: dict[str, list[tuple[int, bytes]]] = {}
        self.failing = ""
        """The suffix of the file whose next sync fails."""
        mine = {name: getattr(self, name) for name in ("pwrite", "pwritev", "fdatasync", "fsync")}
        self.os = SimpleNamespace(**{**vars(os), **mine})

    def pwrite(self, fd, data, offset):
        self._dirty.setdefault(_path(fd), []).append((offset, bytes(data)))
        return os.pwrite(fd, data, offset)

    def pwritev(self, fd, views, offset):
        return self.pwrite(fd, b"".join(views), offset)

    def fdatasync(self, fd):
        dirty = self._dirty.pop(_path(fd), [])
        if self.failing and _path(fd).endswith(self.failing):
            self.failing = ""
            raise OSError(errno.EIO, "the medium failed")
        content = self.durable.setdefault(_path(fd), bytearray())
        for offset, data in dirty:
            content.extend(bytes(max(0, offset - len(content))))
            content[offset : offset + len(data)] = data

    def fsync(self, fd):
        if Path(_path(fd)).is_file():
            self.fdatasync(fd)

    def cut_power(self, landing):
        """Set the files to the medium's content; summaries are written elsewhere, durably."""
        for file in [*segments.segments_dir(landing).iterdir(), *(landing / "devices").iterdir()]:
            if file.suffix != ".sum":
                file.write_bytes(self.durable.get(str(file), b""))


@pytest.fixture
def medium(monkeypatch):
    made = Medium()
    monkeypatch.setattr(segments, "os", made.os)
    monkeypatch.setattr(highwater, "os", made.os)
    return made


def _path(fd):
    return str(Path(f"/proc/self/fd/{fd}").readlink())


@pytest.mark.parametrize("failing", [".pages", ".idx"])
@pytest.mark.parametrize("other", [False, True])
def test_an_ack_after_a_failed_sync_outlives_a_power_cut(tmp_path, medium, failing, other):
    place = open_landing(tmp_path)
    send(place, make_page(1))
    medium.failing = failing
    with pytest.raises(OSError, match="the medium failed"):
        send(place, make_page(2))
    place.close()
    with (tmp_path / "instances" / "c0.lock").open() as lock:
        if other:  # the first never comes back, and its segments have no owner
            fcntl.flock(lock, fcntl.LOCK_EX)
        place = open_landing(tmp_path)
        assert send(place, make_page(2)).acked == {("power", 0): 2}
        place.close()
    medium.cut_power(tmp_path)
    assert [page for _, page in read_landing(tmp_path)] == [make_page(1), make_page(2)]


def test_a_segment_is_sealed_only_over_records_that_are_on_the_medium(tmp_path, medium):
    place = open_landing(tmp_path, segment_bytes=1)  # every commit ends a segment
    send(place, make_page(1))
    medium.failing = ".record"
    with pytest.raises(OSError, match="the medium failed"):
        send(place, make_page(2))
    place.close()
    open_landing(tmp_path, segment_bytes=1).close()
    medium.cut_power(tmp_path)
    place = open_landing(tmp_path)
    assert send(place, make_page(3)).acked == {("power", 0): 3}, "no page is thought missing"
    place.close()
