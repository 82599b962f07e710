"""Damage in the compacted part of a landing, for `edged/central/rot.py`.

A damaged file costs nothing while the segments of its group are there: a repair takes the group
out of the manifest, its rows are read from pages again, and the next run of the compactor writes
the group again.
"""

from __future__ import annotations

import zlib
from pathlib import Path

from edged.central import compacted, consumers, segments
from edged.central.compacted import CompactedFile, CompactedGroup
from edged.console.damage_report import LOST, MENDABLE, Damage, DamageReport, Loss
from edged.errors import CentralError

_PART_BYTES = 1 << 20


def check_compacted(landing: Path, report: DamageReport, repair: bool) -> None:
    """Add the damage of manifest and files to `report`; with `repair` mend what can be mended."""
    name = str(compacted.manifest_path(landing).relative_to(landing))
    problem = compacted.problem(landing)
    try:
        content = compacted.read(landing)
    except CentralError:
        lost = (Loss("the list of compacted files"),)
        report.findings.append(Damage(name, problem, LOST, "manifest", lost=lost))
        return
    if problem:
        report.findings.append(Damage(name, problem, MENDABLE, "manifest"))
    live = set(segments.list_segments(landing))
    broken = set()
    for group in content.groups:
        there = live.issuperset(group.segments)
        for file in group.files:
            report.count("compacted files")
            wrong = _problem(group.path(landing, file), file)
            if wrong:
                report.findings.append(_damage(landing, group, file, wrong, there))
                if there:
                    broken.add(group.number)
    if repair and (problem or broken):
        _repair(landing, broken)


def _repair(landing: Path, broken: set[int]) -> None:
    """Write the manifest again without the `broken` groups whose segments are still there."""
    with consumers.locked(landing):
        content, live = compacted.read(landing), set(segments.list_segments(landing))
        gone = {g.number for g in content.groups if live.issuperset(g.segments)} & broken
        compacted.write(landing, content.without(gone))


def _problem(path: Path, file: CompactedFile) -> str:
    """What is wrong with a file; empty if nothing is."""
    crc = size = 0
    try:
        with path.open("rb", buffering=0) as data:
            while part := data.read(_PART_BYTES):
                crc, size = zlib.crc32(part, crc), size + len(part)
    except OSError as problem:
        return str(problem.strerror)
    return "" if (crc, size) == (file.crc, file.bytes) else "it does not match its checksum"


def _damage(
    landing: Path, group: CompactedGroup, file: CompactedFile, wrong: str, there: bool
) -> Damage:
    name = str(group.path(landing, file).relative_to(landing))
    if there:
        return Damage(name, f"{wrong}: its segments are there", MENDABLE, "compacted file")
    lost = (Loss("rows", file.stream, rows=file.rows),)
    return Damage(name, f"{wrong}, and its segments are deleted", LOST, "compacted file", lost=lost)
