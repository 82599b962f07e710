"""Code of users: where it may come from, and its identity.

A document names code in one of two ways; it never holds code.

    file = "pairs.py"         a file below the directory `run.operators`
    package = "pairs"         an entry point of the group `edged.code` of an installed package;
                              its value is the module with the code

The directory and its files must belong to root or to the user of this process, and be writable by
no other.  A module of a package is read as text; only the packages around it are imported.

Code is identified by the SHA-256 of its text.  The plan of a job puts it into the document as
`sha256`, so that a stored job names the text that it ran with.  The daemon keeps every text that it
has planned below its store, by digest: a job whose file has changed since then starts with the text
that it had, and takes the new one when it is put again without `sha256`.

`$EDGED_OPERATORS` is the directory, `$EDGED_OPERATORS_KEPT` the one of the kept texts; child
processes inherit both.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from edged.config.code_directories import DIRECTORY_VARIABLE, KEPT_VARIABLE
from edged.documents import reader as doc
from edged.errors import JobError

GROUP = "edged.code"
"""The entry-point group of packages with code."""
CODE_KEYS = frozenset({"file", "package", "sha256"})
"""The keys of a document that name code."""
DIRECTORY_DEFAULT = "/etc/edged/operators"
CODE_BYTES_MAX = 256 << 10
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class UserCode:
    """A text of code."""

    key: str
    """The key that names it: `file` or `package`."""
    name: str
    """`pairs.py`; of a package the entry point."""
    text: str
    sha256: str
    origin: str
    """The file, or the package and its version."""

    def fault(self, path: str, line: int, column: int, what: str, do: str = "") -> JobError:
        """A fault at a place in the text; columns count from 1."""
        return JobError(f"{path}.{self.key}", f"{self.name}:{line}:{column}: {what}", do)


def directory() -> Path:
    """The directory of files."""
    return Path(os.environ.get(DIRECTORY_VARIABLE) or DIRECTORY_DEFAULT)


def find(path: str, document: Mapping[str, Any]) -> UserCode:
    """The code that an operator's table names.  Raises JobError below `path`."""
    named = [key for key in ("file", "package") if key in document]
    if len(named) != 1:
        problem = "names both" if named else "is missing"
        advice = 'file = "NAME.py" in the directory run.operators, or package = "ENTRY POINT"'
        raise JobError(f"{path}.file", problem, advice)
    key, name = named[0], doc.text(path, document, named[0])
    wanted = doc.text(path, document, "sha256", "")
    if wanted and not _DIGEST.fullmatch(wanted):
        raise JobError(f"{path}.sha256", f"{wanted!r} is no digest", "64 hexadecimal digits")
    try:
        data, origin = _file(path, name) if key == "file" else _package(path, name)
    except JobError:
        kept = _kept(wanted)
        if kept is None:
            raise
        data, origin = kept
    digest = hashlib.sha256(data).hexdigest()
    if wanted and digest != wanted:
        kept = _kept(wanted)
        if kept is None:
            problem = f"{name} has the digest {digest[:12]}…, not {wanted[:12]}…"
            raise JobError(f"{path}.sha256", problem, "leave sha256 out to take the code as it is")
        (data, origin), digest = kept, wanted
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise JobError(f"{path}.{key}", f"{name} is not UTF-8 text: {problem}") from None
    _keep(digest, data)
    return UserCode(key, name, text, digest, origin)


def of_file(file: Path) -> UserCode:
    """The code in a file that a person names; for `edged operator test`."""
    data = file.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    return UserCode("file", file.name, data.decode("utf-8"), digest, str(file))


def _file(path: str, name: str) -> tuple[bytes, str]:
    where = f"{path}.file"
    if PurePosixPath(name).suffix != ".py":
        raise JobError(
            where, f"{name!r} is no name of a file", "e.g. pairs.py, below run.operators"
        )
    return read_file(where, name, CODE_BYTES_MAX)


def read_file(where: str, name: str, most_bytes: int) -> tuple[bytes, str]:
    """A file of the directory, and its path.  Raises JobError at `where`."""
    root, pure = directory(), PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts or "\0" in name:
        raise JobError(where, f"{name!r} is no name of a file", "a name below run.operators")
    file = root / name
    try:
        if not file.resolve(strict=True).is_relative_to(root.resolve(strict=True)):
            raise JobError(where, f"{name} leads out of {root}", "put the file itself there")
        for one in (root, *(root / part for part in reversed(pure.parents)), file):
            _check_owner(where, one)
        if file.stat().st_size > most_bytes:
            raise JobError(where, f"{name} is larger than {most_bytes >> 10} KiB")
        return file.read_bytes(), str(file)
    except OSError as problem:
        text = f"{file}: {problem.strerror}"
        raise JobError(where, text, "run.operators names the directory") from None


def _check_owner(where: str, path: Path) -> None:
    facts = path.stat()
    if facts.st_uid not in (0, os.geteuid()) or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        problem = f"{path} can be written by others"
        raise JobError(where, problem, "it must belong to root, with mode 0755 or less")


def _package(path: str, name: str) -> tuple[bytes, str]:
    where = f"{path}.package"
    known = {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}
    if name not in known:
        advice = doc.did_you_mean(name, known, otherwise=f"no package has code: group {GROUP}")
        raise JobError(where, f"no installed package has the code {name}", advice)
    point = known[name]
    try:
        spec = importlib.util.find_spec(point.module)
        if spec is None or spec.origin is None:
            raise ImportError(f"{point.module} has no source")
        data = Path(spec.origin).read_bytes()
    except (ImportError, OSError, ValueError) as problem:
        raise JobError(where, f"{name} cannot be read: {problem}") from None
    dist = point.dist
    return data, f"{dist.name} {dist.version}" if dist is not None else point.module


def _kept(digest: str) -> tuple[bytes, str] | None:
    """A kept text, and where it is."""
    root = os.environ.get(KEPT_VARIABLE)
    if not root or not digest:
        return None
    file = Path(root) / f"{digest}.py"
    with contextlib.suppress(OSError):
        data = file.read_bytes()
        if hashlib.sha256(data).hexdigest() == digest:
            return data, str(file)
    return None


def _keep(digest: str, data: bytes) -> None:
    """Keep a text; a full disk does not keep a job from running."""
    root = os.environ.get(KEPT_VARIABLE)
    if not root or _kept(digest) is not None:
        return
    with contextlib.suppress(OSError):
        Path(root).mkdir(mode=0o700, parents=True, exist_ok=True)
        new = Path(root) / f"{digest}.tmp"
        new.write_bytes(data)
        new.replace(Path(root) / f"{digest}.py")
