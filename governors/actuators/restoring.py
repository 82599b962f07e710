"""Restores a board's limits, in the order that the kernel accepts.

Only files that still hold a value of the journal's owner are written.  Root may restore from the
journal of an unprivileged daemon: a record counts only if discovery finds its file and the file may
hold its value.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter_ns

from governors.actuators.base import findings, ordered, readable
from governors.actuators.journal import JournalRecord, LimitJournal, boot_id
from governors.actuators.writers import Writer
from governors.detect import detect
from governors.errors import ActuatorError, NotPermitted
from governors.sysfs import Absent, Denied, Sysfs, SysfsError

__all__ = ["Result", "give_back", "recover", "restore", "settle"]


def restore(sysfs: Sysfs, writer: Writer, journal_path: Path) -> list[str]:
    """Restore what a dead process left; returns what was done, in lines for users.

    Raises NotPermitted where a daemon owns the journal or no writer may write, ActuatorError where
    the journal is invalid or a write fails.  The journal is deleted when nothing is left to
    restore.
    """
    if not journal_path.exists():
        return []
    journal = LimitJournal(journal_path)
    try:
        lines, missing = recover(sysfs, writer, journal)
        return [*lines, *(f"{r.path} is gone; {journal_path} is kept for it" for r in missing)]
    finally:
        journal.release()


@dataclass(slots=True)
class Result:
    """Outcome of a restoration."""

    done: list[str] = field(default_factory=list)
    """Lines for users, as are `left` and `failed`."""
    left: list[str] = field(default_factory=list)
    """Changed by another process."""
    failed: list[str] = field(default_factory=list)
    unrestored: list[JournalRecord] = field(default_factory=list)
    """Failed records."""
    gone: list[JournalRecord] = field(default_factory=list)
    """Records whose files are missing now."""
    spent_us: dict[str, float] = field(default_factory=dict)
    """By knob or switch."""
    denied: bool = False
    """Whether a write failed for lack of permission."""


def recover(
    sysfs: Sysfs, writer: Writer, journal: LimitJournal
) -> tuple[list[str], list[JournalRecord]]:
    """Restore from the journal of a dead process; returns lines for users, and records whose files
    are missing now."""
    loaded = journal.load()
    if loaded is None:
        return [], []
    boot, records = loaded
    if boot != boot_id(sysfs):
        journal.remove()
        return [f"{journal.path} is from before the last boot, which reset the limits"], []
    wrong, trusted = _checked(sysfs, records)
    result = give_back(sysfs, writer, trusted)
    settle(sysfs, journal, result)
    if result.failed:
        kind = NotPermitted if result.denied else ActuatorError
        more = f"; nor could {len(result.failed) - 1} more" if len(result.failed) > 1 else ""
        raise kind(f"{result.failed[0]}{more}; {journal.path} is kept: restore again")
    return [*result.done, *result.left, *wrong], result.gone


def _checked(
    sysfs: Sysfs, records: Iterable[JournalRecord]
) -> tuple[list[str], list[JournalRecord]]:
    """Lines on rejected records, and the accepted records."""
    found = {
        (setting.name, part, path): setting
        for setting in findings(sysfs, detect(sysfs))
        for part, path in setting.files().items()
    }
    wrong, trusted = [], []
    for record in records:
        setting = found.get((record.name, record.part, record.path))
        if setting is not None and setting.may_hold(record.original):
            trusted.append(record)
        elif setting is None and record.path.startswith("/sys/") and not sysfs.exists(record.path):
            trusted.append(record)  # its cores may be offline
        else:
            wrong.append(
                f"{record.path}: {record.original[:40]!r} is no value of this limit: not restored"
            )
    return wrong, trusted


def settle(sysfs: Sysfs, journal: LimitJournal, result: Result) -> None:
    """Keep the records in the journal that are still to be restored."""
    later = [*result.unrestored, *result.gone]
    if later:
        journal.create(boot_id(sysfs), later)
    else:
        journal.remove()


def give_back(sysfs: Sysfs, writer: Writer, records: Iterable[JournalRecord]) -> Result:
    """Restore files that hold a value of this process; never raises for a file."""
    result = Result()
    by_name: dict[str, list[JournalRecord]] = {}
    for record in records:
        if record.ours:
            by_name.setdefault(record.name, []).append(record)
    for name, group in by_name.items():
        started = perf_counter_ns()
        before = len(result.done)
        _give_back_one(sysfs, writer, group, result)
        if len(result.done) > before:
            result.spent_us[name] = (perf_counter_ns() - started) / 1000
    return result


def _give_back_one(
    sysfs: Sysfs, writer: Writer, group: list[JournalRecord], result: Result
) -> None:
    now: dict[str, str] = {}
    wanted: dict[str, str] = {}
    for record in group:
        try:
            held = sysfs.read(record.path) if readable(record.path) else max(record.ours)
        except Absent:
            result.gone.append(record)
            continue
        except SysfsError as problem:
            _fail(result, record, problem)
            continue
        now[record.part] = held
        if held in record.ours and held != record.original:
            wanted[record.part] = record.original
        elif held != record.original:
            result.left.append(f"{record.path} holds {held}, set by another process: not restored")
    by_part = {record.part: record for record in group}
    _fit(wanted, now)
    for part in ordered(wanted, now):
        try:
            writer.write(by_part[part].path, wanted[part])
            result.done.append(f"{by_part[part].path}: {now[part]} -> {wanted[part]}")
        except Absent:
            result.gone.append(by_part[part])
        except (SysfsError, NotPermitted) as problem:
            _fail(result, by_part[part], problem)


def _fit(wanted: dict[str, str], now: dict[str, str]) -> None:
    """Keep min <= max where the other limit belongs to another process."""
    for part in wanted:
        low, high = part.replace("max", "min"), part.replace("min", "max")
        other = high if part == low else low
        if part == other or other in wanted or other not in now:
            continue
        least, most = (wanted[low], now[high]) if part == low else (now[low], wanted[high])
        if int(least) > int(most):
            wanted[part] = now[other]


def _fail(result: Result, record: JournalRecord, problem: Exception) -> None:
    result.denied |= isinstance(problem, (Denied, NotPermitted))
    result.unrestored.append(record)
    result.failed.append(f"{record.path} could not be restored to {record.original}: {problem}")
