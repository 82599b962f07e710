"""The format of a landing as a whole: `LANDING/format`.

The file has the same line twice, so that one damaged line is known from the other:

    {"edged": version that wrote it, "format": number, "crc": …}   (edged/documents/checked_json.py)

It is written when a landing is created, before anything else in it.  A landing without the file, or
with two damaged lines, is of format 1: earlier versions wrote none.  Only the standard library is
imported: this runs on Spark executors.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from edged import __version__
from edged.central.tables import replace_file
from edged.documents import checked_json
from edged.errors import LandingFormatUnknown

FORMAT = 1
"""The format that this version writes."""
READABLE = range(1, FORMAT + 1)
NAME = "format"


def require(landing: str | Path) -> int:
    """The landing's format.  Raises LandingFormatUnknown for one that this version cannot read."""
    found = _read(landing)[0]
    number = found.get("format", 1)
    if number in READABLE:
        return int(number)
    by = f", written by edged {found['edged']}" if "edged" in found else ""
    raise LandingFormatUnknown(
        f"{Path(landing) / NAME}: the landing has format {number}{by}; this edged {__version__} "
        f"reads formats {READABLE[0]} to {READABLE[-1]}.  Nothing was changed: install the edged "
        "that wrote it, or a later one, or give this version another directory"
    )


def create(landing: str | Path, fresh: bool) -> int:
    """The format of a landing that a collector opens; a `fresh` one gets this version's, durably,
    and a damaged line is written again.  Raises LandingFormatUnknown as `require` does."""
    number = require(landing)
    if fresh and not (Path(landing) / NAME).exists():
        number = FORMAT
        _write(landing, {"edged": __version__, "format": FORMAT})
    else:
        mend(landing)
    return number


def problem(landing: str | Path) -> str:
    """What is wrong with the file; empty if nothing is."""
    return _read(landing)[1]


def mend(landing: str | Path) -> None:
    """Write both lines again where one is damaged.  With two damaged ones the file goes."""
    found, wrong = _read(landing)
    if wrong and found:
        _write(landing, found)
    elif wrong:
        (Path(landing) / NAME).unlink()


def _write(landing: str | Path, content: dict[str, Any]) -> None:
    path = Path(landing) / NAME
    replace_file(path, 2 * _line(content))
    os.chmod(path, 0o644)  # noqa: PTH101 - whatever the umask: Spark is another user


def _read(landing: str | Path) -> tuple[dict[str, Any], str]:
    """The content, and what is wrong; nothing of both without a file."""
    try:
        data = (Path(landing) / NAME).read_bytes()
    except FileNotFoundError:
        return {}, ""
    half = len(data) // 2
    whole = [found for line in (data[:half], data[half:]) if (found := _unpack(line))]
    if not whole:
        return {}, "both lines are damaged: the landing counts as one of format 1"
    same = len(whole) == 2 and whole[0] == whole[1]
    return whole[0], "" if same else "a line is damaged"


def _unpack(line: bytes) -> dict[str, Any]:
    """The object in a line; empty where it is damaged."""
    try:
        found = checked_json.unpack(line)
    except (ValueError, RecursionError):
        return {}
    whole = isinstance(found, dict) and isinstance(found.get("format"), int)
    return found if whole and _line(found) == line else {}


def _line(content: dict[str, Any]) -> bytes:
    return checked_json.pack(content) + b"\n"
