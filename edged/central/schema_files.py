"""The files of registered schemas, each kept twice.

    LANDING/schemas/<stream>@<version>.json    the canonical JSON text
    LANDING/schemas/<stream>@<version>.sum     the CRC-32 of the text in 8 hex digits, a newline,
                                               and the text again

A text is believed where it matches the checksum, or where both copies agree.  A schema of an
earlier version has no `.sum`: the collector writes it at its next start.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from pathlib import Path

from edged.central.tables import replace_file


@dataclass(frozen=True, slots=True)
class SchemaFile:
    """What the files of one schema say."""

    text: str | None
    """The schema's text; None where neither file can be believed."""
    problem: str = ""
    """What is wrong with the files; empty if nothing is."""
    old: bool = False
    """Whether an earlier version wrote it, without a checksum."""


def path(directory: Path, name: str) -> Path:
    """The file of the schema `name`, which is `stream@version`."""
    return directory / f"{name}.json"


def sum_path(directory: Path, name: str) -> Path:
    """The file of its checksum and its copy."""
    return directory / f"{name}.sum"


def read(directory: Path, name: str) -> SchemaFile | None:
    """The schema `name`; None if it is not registered."""
    main, side = _bytes(path(directory, name)), _bytes(sum_path(directory, name))
    if main is None and side is None:
        return None
    if side is None:
        return SchemaFile(_text(main), "" if _text(main) is not None else "it is not UTF-8", True)
    crc, _, copy = side.partition(b"\n")
    if main is not None and crc == _crc(main):
        problem = "" if copy == main else "its copy is damaged"
        return SchemaFile(_text(main), problem)
    if crc == _crc(copy):
        return SchemaFile(_text(copy), "it is missing" if main is None else "it is damaged")
    if main == copy:
        return SchemaFile(_text(copy), "its checksum is damaged")
    return SchemaFile(None, "it is damaged, and so is its copy")


def write(directory: Path, name: str, text: str) -> None:
    """Write both files durably; they replace damaged ones."""
    data = text.encode()
    for file, content in (
        (sum_path(directory, name), _crc(data) + b"\n" + data),
        (path(directory, name), data),
    ):
        replace_file(file, content)
        os.chmod(file, 0o644)  # noqa: PTH101 - whatever the umask: Spark is another user


def mend(directory: Path, name: str) -> str:
    """Write a schema again whose text is known but whose files are not as they should be; returns
    the problem, empty without one."""
    found = read(directory, name)
    if found is None or found.text is None:
        return "" if found is None else found.problem
    if found.problem or found.old:
        write(directory, name, found.text)
    return found.problem


def names(directory: Path) -> list[str]:
    """Every schema that has a file, sorted."""
    files = [*directory.glob("*@*.json"), *directory.glob("*@*.sum")]
    return sorted({file.stem for file in files if not file.name.startswith(".")})


def _bytes(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None


def _text(data: bytes | None) -> str | None:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return None


def _crc(data: bytes) -> bytes:
    return f"{zlib.crc32(data):08x}".encode()
