"""A Debian package as bytes that depend on its files alone.

Members are in a fixed order with one time and root as the owner.  Equal files of the environments
are hard links, and what is alike lies side by side, so that the compressor sees it.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import IO

MAGIC = b"!<arch>\n"
WINDOW_BITS = 26
"""64 MiB: a library of one Python is compared with that of the next; what dpkg needs of memory."""
OF_PYTHON = re.compile(r"python3\.\d+|cpython-3\d+")
VERSIONED = re.compile(r"(?<=\.so)[.\d]+")
CHUNK = 1 << 20
TIMES_S = 1 << 28
"""Range of the times of shared files, 8.5 years."""


class Zstd:
    """A file to write to, compressed.  Its bytes do not depend on the number of threads, which is
    never 0 here."""

    def __init__(self, path: Path, level: int) -> None:
        self._path, self._level = path, level

    def __enter__(self) -> IO[bytes]:
        program = shutil.which("zstd")
        if program is None:
            raise SystemExit("zstd is missing: sudo apt-get install zstd")
        words = [program, "--quiet", "--force", "-T2", f"-{self._level}", f"--long={WINDOW_BITS}",
                 "-o", str(self._path)]  # fmt: skip
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE)
        assert self._process.stdin is not None
        return self._process.stdin

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self._process.wait():
            raise SystemExit(f"zstd ended with {self._process.returncode}")


class Package:
    """The ar archive of a package's members; `debian-binary` comes first."""

    def __init__(self, path: Path, time_s: int) -> None:
        self._path, self._time_s = path, time_s

    def __enter__(self) -> Package:
        self._file = self._path.open("wb")
        self._file.write(MAGIC)
        self.member("debian-binary", b"2.0\n")
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def member(self, name: str, content: bytes | Path) -> None:
        """Add a member: bytes, or those of a file."""
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        head = f"{name:<16}{self._time_s:<12}{0:<6}{0:<6}{'100644':<8}{size:<10}`\n"
        self._file.write(head.encode())
        if isinstance(content, bytes):
            self._file.write(content)
        else:
            with content.open("rb") as source:
                shutil.copyfileobj(source, self._file, CHUNK)
        self._file.write(b"\n" * (size % 2))


def data(root: Path, target: IO[bytes], time_s: int, shared: str) -> int:
    """Write all files below `root` as a tar archive; equal ones below `shared` are stored once.

    The time of a file below `shared` is a function of its bytes: caches of bytecode and machine
    code, which compare times and sizes, hold for the files that an upgrade has not changed, and
    for no other.  Returns what all takes on disk in KiB, as Debian counts: a KiB begun is one, and
    so is anything that is no file.
    """
    paths = sorted(root.rglob("*"), key=_alike)
    # A directory comes before what is in it; files are in another order, so all of them come first.
    directories = sorted(path for path in paths if path.is_dir() and not path.is_symlink())
    size_kib = 0
    with tarfile.open(fileobj=target, mode="w|", format=tarfile.GNU_FORMAT) as tar:
        for path in (root, *directories):
            tar.addfile(_entry(root, path, time_s))
            size_kib += 1
        first: dict[tuple[bytes, int], str] = {}
        for path in (path for path in paths if path.is_symlink() or not path.is_dir()):
            entry = _entry(root, path, time_s)
            if entry.issym():
                tar.addfile(entry)
                size_kib += 1
                continue
            content = path.read_bytes()
            if entry.name.startswith(shared):
                digest = hashlib.sha256(content).digest()
                entry.mtime = time_s + int.from_bytes(digest[:4], "big") % TIMES_S
            # Empty files stay files: a file system has a limit of links.
            if content and entry.name.startswith(shared):
                key = digest, entry.mode
                if (same := first.setdefault(key, entry.name)) != entry.name:
                    entry.type, entry.linkname, entry.size = tarfile.LNKTYPE, same, 0
                    tar.addfile(entry)
                    continue
            tar.addfile(entry, io.BytesIO(content))
            size_kib += -(-len(content) // 1024)
    return size_kib


def control(files: Mapping[str, str], programs: Collection[str], time_s: int) -> bytes:
    """The package's description and scripts as a compressed tar archive."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.GNU_FORMAT) as tar:
        tar.addfile(_named("./", tarfile.DIRTYPE, 0o755, time_s))
        for name, text in sorted(files.items()):
            mode = 0o755 if name in programs else 0o644
            entry = _named(f"./{name}", tarfile.REGTYPE, mode, time_s)
            entry.size = len(text.encode())
            tar.addfile(entry, io.BytesIO(text.encode()))
    return lzma.compress(target.getvalue())


def _alike(path: Path) -> tuple[str, str]:
    """A key that puts the files of all Pythons side by side."""
    name = VERSIONED.sub("", OF_PYTHON.sub("", str(path)))
    return name, str(path)


def _entry(root: Path, path: Path, time_s: int) -> tarfile.TarInfo:
    name = "./" if path == root else f"./{path.relative_to(root)}"
    if path.is_symlink():
        entry = _named(name, tarfile.SYMTYPE, 0o777, time_s)
        entry.linkname = str(path.readlink())
    elif path.is_dir():
        entry = _named(name, tarfile.DIRTYPE, 0o755, time_s)
    else:
        entry = _named(name, tarfile.REGTYPE, 0o755 if os.access(path, os.X_OK) else 0o644, time_s)
        entry.size = path.stat().st_size
    return entry


def _named(name: str, kind: bytes, mode: int, time_s: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.mtime = kind, mode, time_s
    entry.uname = entry.gname = "root"
    return entry
