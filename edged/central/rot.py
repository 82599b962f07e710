"""Damage in a landing: `check` finds it, `repair` mends what can be derived from other bytes.

Every file that is read back and believed is read here with the checks of its own module:

    segments/*.idx, *.crc     rows: their checksums, or their pages     (row_checks.py)
    segments/*.pages          each page's own checksum                  (edged/pages/format.py)
    segments/*.sum            CRC-32                                    (seals.py)
    schemas/*.json, *.sum     CRC-32, and two copies                    (schema_files.py)
    devices/*.record          CRC-32 of the head and of each slot       (highwater.py)
    consumers, desired, fleet CRC-32 in the JSON                        (checked_json.py)
    shares                    CRC-32                                    (landing_quota.py)

A repair changes nothing that is whole, and collectors may run meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from edged.central import checked_json, schema_files, seals, segments
from edged.central.highwater import is_damaged
from edged.errors import PageError
from edged.pages.format import Header, parse_header, verify

MENDABLE, LOST = "mendable", "lost"


@dataclass(frozen=True, slots=True)
class Damage:
    """A damaged place."""

    file: str
    """Relative to the landing."""
    problem: str
    state: str
    """`mendable`: a repair, or the program that the problem names, gives exactly what was there;
    `lost`: nothing does."""
    page: dict[str, Any] | None = None
    """Of a lost page: device, epoch, stream, partition, seq, tuples and times, as far as known."""


@dataclass
class LandingReport:
    """The damage in a landing."""

    landing: str
    segments: int = 0
    pages: int = 0
    findings: list[Damage] = field(default_factory=list)
    repaired: bool = False

    @property
    def lost(self) -> list[Damage]:
        """What no repair brings back."""
        return [finding for finding in self.findings if finding.state == LOST]

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "landing": self.landing, "segments": self.segments, "pages": self.pages,
            "repaired": self.repaired, "findings": [asdict(f) for f in self.findings],
            "lost": len(self.lost),
        }  # fmt: skip


def check(landing: Path, repair: bool = False) -> LandingReport:
    """Read everything and report what is damaged; with `repair` mend what can be mended."""
    report = LandingReport(str(landing), repaired=repair)
    names = _stream_names(landing)
    for name in segments.list_segments(landing):
        _segment(landing, name, names, report, repair)
    _summaries(landing, report, repair)
    _schemas(landing, report, repair)
    _records(landing, report)
    _small_files(landing, report, repair)
    return report


def _segment(
    landing: Path, name: str, names: dict[int, str], report: LandingReport, repair: bool
) -> None:
    rows, faults = segments.checked_rows(landing, name)
    report.segments += 1
    report.pages += len(rows)
    file = f"segments/{name}.idx"
    for number in faults.mended:
        report.findings.append(Damage(file, f"row {number} is damaged", MENDABLE))
    for number in faults.lost:
        problem = f"row {number} is damaged, and so is its page"
        report.findings.append(Damage(file, problem, LOST, {"row": number}))
    known = rows[rows["length"] > 0]
    for row, page in zip(known, segments.read_pages(landing, name, known), strict=True):
        try:
            verify(page)
        except PageError as problem:
            found = Damage(
                f"segments/{name}.pages", f"at {int(row['offset'])}: {problem}", LOST,
                _lost_page(row, page, names),
            )  # fmt: skip
            report.findings.append(found)
    if repair and (faults.mended or faults.unchecked):
        segments.renew_rows(landing, name)


def _lost_page(row: Any, page: memoryview, names: dict[int, str]) -> dict[str, Any]:
    header: Header | None = None
    with contextlib.suppress(PageError):
        header = parse_header(page)
    told = {
        key: int(row[key]) for key in ("epoch", "partition", "seq", "tuples", "landed_at_us")
    }  # the row is checked, the header is not
    matches = header is not None and header.seq == told["seq"]
    return {
        "stream": names.get(int(row["stream_hash"]), ""),
        "device": header.device if header is not None and matches else "",
        **told,
        "time_min_us": header.time_min_us if header is not None and matches else None,
        "time_max_us": header.time_max_us if header is not None and matches else None,
    }


def _stream_names(landing: Path) -> dict[int, str]:
    return {segments.digest64(name): name for name in schema_files.names(landing / "schemas")}


def _summaries(landing: Path, report: LandingReport, repair: bool) -> None:
    live = set(segments.list_segments(landing))
    for file in sorted(segments.segments_dir(landing).glob("seg-*.sum")):
        if seals.read(landing, file.stem) is not None:
            continue
        there = file.stem in live
        problem = "is damaged: the high waters of deleted pages; late resends are not recognised"
        text = "is damaged: its rows are there" if there else problem
        state = MENDABLE if there else LOST
        report.findings.append(Damage(f"segments/{file.name}", text, state))
        if repair and there:
            rows = segments.read_rows(landing, file.stem)
            seals.write(landing, file.stem, seals.greatest(rows[rows["length"] > 0]))


def _schemas(landing: Path, report: LandingReport, repair: bool) -> None:
    directory = landing / "schemas"
    for name in schema_files.names(directory):
        found = schema_files.read(directory, name)
        if found is None or not found.problem:
            continue
        state = LOST if found.text is None else MENDABLE
        advice = ": its device registers it again" if found.text is None else ""
        report.findings.append(Damage(f"schemas/{name}.json", found.problem + advice, state))
        if repair:
            schema_files.mend(directory, name)


def _records(landing: Path, report: LandingReport) -> None:
    for file in sorted((landing / "devices").glob("*.record")):
        if is_damaged(file):
            problem = "is damaged: a collector rebuilds it from rows and summaries"
            report.findings.append(Damage(f"devices/{file.name}", problem, MENDABLE))


def _small_files(landing: Path, report: LandingReport, repair: bool) -> None:
    for file, problem, state in _damaged_files(landing):
        report.findings.append(Damage(str(file.relative_to(landing)), problem, state))
        if repair and file.parent.name in ("fleet", landing.name):
            os.unlink(file)  # noqa: PTH108 - a hint that is made again


def _damaged_files(landing: Path) -> Iterator[tuple[Path, str, str]]:
    places: tuple[tuple[str, Callable[[bytes], Any], str, str], ...] = (
        ("consumers/*.json", checked_json.unpack,
         "nothing is deleted until its reader writes it again, or it is deleted", MENDABLE),
        ("desired/*.json", checked_json.unpack, "set the desired state again", LOST),
        ("fleet/*.json", checked_json.unpack, "the device's next report replaces it", MENDABLE),
        ("shares", _check_shares, "a collector counts again", MENDABLE),
    )  # fmt: skip
    for pattern, read, advice, state in places:
        for file in sorted(landing.glob(pattern)):
            if file.name.startswith("."):
                continue
            try:
                read(file.read_bytes())
            except (ValueError, RecursionError) as problem:
                yield file, f"{problem}: {advice}", state


def _check_shares(data: bytes) -> None:
    if zlib.crc32(data[:-4]).to_bytes(4, "little") != data[-4:]:
        raise ValueError("damaged: it does not match its checksum")
