"""Damage in a landing: `check` finds it, `repair` mends what can be derived from other bytes.

Every file that is read back and believed is read here with the checks of its own module:

    format                    CRC-32, and two lines                     (landing_format.py)
    segments/*.idx, *.crc     rows: their checksums, or their pages     (row_checks.py)
    segments/*.pages          each page's own checksum                  (edged/pages/format.py)
    segments/*.sum            CRC-32                                    (seals.py)
    schemas/*.json, *.sum     CRC-32, and two copies                    (schema_files.py)
    devices/*.record          CRC-32 of the head and of each slot       (highwater.py)
    consumers, desired, fleet CRC-32 in the JSON                        (checked_json.py)
    shares                    CRC-32                                    (landing_quota.py)
    compacted/                CRC-32 of the manifest's lines, of files  (compacted_checks.py)

A repair changes nothing that is whole, and collectors may run meanwhile.
"""

from __future__ import annotations

import contextlib
import io
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from edged.central import landing_format, schema_files, seals, segments
from edged.central.compacted_checks import check_compacted
from edged.central.highwater import is_damaged
from edged.console.damage_report import LOST, MENDABLE, Damage, DamageReport, Loss
from edged.documents import checked_json
from edged.errors import ConfigError, PageError
from edged.pages.format import Header, parse_header, verify


def check(landing: Path, repair: bool = False) -> DamageReport:
    """Read everything and report what is damaged; with `repair` mend what can be mended.

    Raises ConfigError where there is no landing, CentralError for one of an unknown format.
    """
    if not segments.segments_dir(landing).is_dir():
        raise ConfigError(f"{landing} is not a landing: it has no directory segments/")
    number = landing_format.require(landing)
    report = DamageReport("landing", str(landing), number, repaired=repair)
    if problem := landing_format.problem(landing):
        report.findings.append(Damage(landing_format.NAME, problem, MENDABLE, "format"))
        if repair:
            landing_format.mend(landing)
    names = _stream_names(landing)
    for name in segments.list_segments(landing):
        _segment(landing, name, names, report, repair)
    _summaries(landing, report, repair)
    _schemas(landing, report, repair)
    _records(landing, report)
    _small_files(landing, report, repair)
    check_compacted(landing, report, repair)
    return report


def repair(landing: Path) -> DamageReport:
    """Mend what can be mended.  Raises as `check` does."""
    report = check(landing, repair=True)
    if report.findings:
        report.left = len(check(landing).findings)
    return report


def _segment(
    landing: Path, name: str, names: dict[int, str], report: DamageReport, repair: bool
) -> None:
    rows, faults = segments.checked_rows(landing, name)
    report.count("segments")
    report.count("pages", len(rows))
    for number in faults.mended:
        report.findings.append(_row(name, number, "is damaged", MENDABLE))
    for number in faults.doubtful:
        report.findings.append(_row(name, number, "or its checksum is damaged", MENDABLE))
    for number in faults.lost:
        problem = "is damaged, and so is its page"
        report.findings.append(_row(name, number, problem, LOST, Loss("pages")))
    known = rows[rows["length"] > 0]
    for row, page in zip(known, segments.read_pages(landing, name, known), strict=True):
        try:
            verify(page)
        except PageError as problem:
            found = Damage(
                f"segments/{name}.pages", str(problem), LOST, "page", int(row["offset"]),
                (_lost_page(row, page, names),),
            )  # fmt: skip
            report.findings.append(found)
    if repair and (faults.mended or faults.unchecked):
        segments.renew_rows(landing, name)


def _row(segment: str, number: int, problem: str, state: str, *lost: Loss) -> Damage:
    text, at = f"row {number} {problem}", number * segments.ROW_BYTES
    return Damage(f"segments/{segment}.idx", text, state, "index row", at, lost)


def _lost_page(row: Any, page: memoryview, names: dict[int, str]) -> Loss:
    """The row is checked; the header is not, and counts where it fits the row."""
    header: Header | None = None
    with contextlib.suppress(PageError):
        header = parse_header(page)
    seq = int(row["seq"])
    if header is not None and header.seq != seq:
        header = None
    return Loss(
        "pages", names.get(int(row["stream_hash"]), ""), int(row["partition"]), seq, seq,
        rows=int(row["tuples"]),
        first_us=header.time_min_us if header else None,
        last_us=header.time_max_us if header else None,
        device=header.device if header else "",
        epoch=int(row["epoch"]),
        landed_at_us=int(row["landed_at_us"]),
    )  # fmt: skip


def _stream_names(landing: Path) -> dict[int, str]:
    return {segments.digest64(name): name for name in schema_files.names(landing / "schemas")}


def _summaries(landing: Path, report: DamageReport, repair: bool) -> None:
    live = set(segments.list_segments(landing))
    for file in sorted(segments.segments_dir(landing).glob("seg-*.sum")):
        if seals.read(landing, file.stem) is not None:
            continue
        there = file.stem in live
        problem = "is damaged: the high waters of deleted pages; late resends are not recognised"
        text = "is damaged: its rows are there" if there else problem
        state = MENDABLE if there else LOST
        lost = () if there else (Loss("high waters of deleted pages"),)
        report.findings.append(Damage(f"segments/{file.name}", text, state, "summary", lost=lost))
        if repair and there:
            rows = segments.read_rows(landing, file.stem)
            seals.write(landing, file.stem, seals.greatest(rows[rows["length"] > 0]))


def _schemas(landing: Path, report: DamageReport, repair: bool) -> None:
    directory = landing / "schemas"
    for name in schema_files.names(directory):
        found = schema_files.read(directory, name)
        if found is None or not found.problem:
            continue
        state = LOST if found.text is None else MENDABLE
        advice = ": its device registers it again" if found.text is None else ""
        lost = (Loss("schema", name),) if found.text is None else ()
        report.findings.append(
            Damage(f"schemas/{name}.json", found.problem + advice, state, "schema", lost=lost)
        )
        if repair:
            schema_files.mend(directory, name)


def _records(landing: Path, report: DamageReport) -> None:
    for file in sorted((landing / "devices").glob("*.record")):
        if is_damaged(file):
            problem = "is damaged: a collector rebuilds it from rows and summaries"
            report.findings.append(
                Damage(f"devices/{file.name}", problem, MENDABLE, "record of a device")
            )


def _small_files(landing: Path, report: DamageReport, repair: bool) -> None:
    for damage in _damaged_files(landing):
        report.findings.append(damage)
        file = landing / damage.file
        if repair and file.parent.name in ("fleet", landing.name):
            os.unlink(file)  # noqa: PTH108 - a hint that is made again


def _damaged_files(landing: Path) -> Iterator[Damage]:
    places: tuple[tuple[str, Callable[[bytes], Any], str, str], ...] = (
        ("consumers/*.json", checked_json.unpack, "consumer",
         "nothing is deleted until its reader writes it again, or it is deleted"),
        ("desired/*.json", checked_json.unpack, "desired state", "set the desired state again"),
        ("fleet/*.json", checked_json.unpack, "report of a device",
         "the device's next report replaces it"),
        ("shares", _check_shares, "shares", "a collector counts again"),
    )  # fmt: skip
    for pattern, read, kind, advice in places:
        for file in sorted(landing.glob(pattern)):
            if file.name.startswith("."):
                continue
            try:
                read(file.read_bytes())
            except (ValueError, RecursionError) as problem:
                lost = (Loss(kind, device=file.stem),) if kind == "desired state" else ()
                yield Damage(
                    str(file.relative_to(landing)), f"{problem}: {advice}",
                    LOST if lost else MENDABLE, kind, lost=lost,
                )  # fmt: skip


def _check_shares(data: bytes) -> None:
    """An earlier version wrote the array without a checksum: then nothing follows it."""
    if zlib.crc32(data[:-4]).to_bytes(4, "little") == data[-4:]:
        return
    file = io.BytesIO(data)
    with contextlib.suppress(ValueError, EOFError):
        np.load(file, allow_pickle=False)
        if file.tell() == len(data):
            return
    raise ValueError("damaged: it does not match its checksum")
