"""Ownership of a board's limits as a transaction.

    with Ownership(sysfs, writer, journal, knobs) as ours:     # originals saved, nothing written
        ours.pin(knob, 1_344_000_000)                          # min = max, read back
        for change in ours.watch(): ...                        # another process wrote
    # restored on every exit; after a crash by `restore`

Invariants

1. Nothing is written before the originals are on disk (`journal`).
2. A file is restored only if it holds a value that this process wrote.  Values of other processes
   are kept.
3. A clock is set only inside the limits that the files held when they were acquired, or that
   another process has set since: no limit is widened.
4. One owner per board: the journal and each knob's file are locked.

When a file vanishes (its cores went offline) its knob becomes dormant.  It stays owned and returns
with its file, since the kernel keeps an offline policy's limits.  Its record stays in the journal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from types import TracebackType

from governors.actuators.base import (
    ClockLimits,
    Knob,
    Setting,
    Switch,
    WriteCost,
    ordered,
    readable,
)
from governors.actuators.journal import JournalRecord, LimitJournal, Lock, OwnedElsewhere, boot_id
from governors.actuators.restoring import give_back, recover, restore, settle
from governors.actuators.writers import Writer
from governors.errors import ActuatorError, NotPermitted, TakenOver
from governors.sysfs import Absent, Busy, Denied, Sysfs, SysfsError

__all__ = ["ForeignChange", "Ownership", "restore"]


@dataclass(frozen=True, slots=True)
class ForeignChange:
    """A change of a knob or switch by another process."""

    name: str
    what: str
    """changed, gone or back."""
    text: str
    """Description for users."""
    allowed: ClockLimits | None
    """Limits of its knob from now on; None for switches and for vanished files."""


@dataclass(slots=True)
class _Place:
    """An owned file."""

    part: str
    path: str
    original: str
    ours: str | None = None
    """Value written by this process; None while the original is in place."""
    index: int = 0
    """Index of its slot in the journal."""
    asked: str | None = None
    """Last requested value with unknown outcome: it may be in the file now or later."""

    @property
    def expected(self) -> str:
        return self.original if self.ours is None else self.ours

    def is_ours(self, now: str) -> bool:
        """Whether the current content is the value last written or requested; a requested value
        then becomes `expected`."""
        if now == self.asked and now != self.expected:
            self.ours = now
        return now == self.expected


class Ownership:
    """Owns the limits of `knobs` (and switches) for this process."""

    def __init__(
        self, sysfs: Sysfs, writer: Writer, journal_path: Path, knobs: Iterable[Setting]
    ) -> None:
        self.writer = writer
        self.settings = {setting.name: setting for setting in knobs}
        self.refused: dict[str, str] = {}
        """Settings that may not be written, with the reason."""
        self.dormant: dict[str, str] = {}
        """Settings whose files are missing now, with the reason."""
        self.costs: dict[str, WriteCost] = {}
        """Cost of setting each."""
        self.leaving: dict[str, WriteCost] = {}
        """Cost of restoring each."""
        self.restored: list[str] = []
        """What `take` restored of a dead process, as lines for users."""
        self._sysfs, self._path = sysfs, journal_path
        self._journal: LimitJournal | None = None
        self._locks: dict[str, Lock] = {}
        self._places: dict[str, list[_Place]] = {}
        self._kept: list[JournalRecord] = []

    def __enter__(self) -> Ownership:
        self.take()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def take(self) -> None:
        """Save the originals, after restoring what a dead process left.

        Raises OwnedElsewhere where another process owns them, NotPermitted where none may be
        written.
        """
        if self._journal is not None:
            return
        self._journal = LimitJournal(self._path)
        try:
            self.restored, self._kept = recover(self._sysfs, self.writer, self._journal)
            for setting in self.settings.values():
                self._acquire(setting)
            if not self._places:
                reasons = [*self.refused.values(), *self.dormant.values()]
                raise NotPermitted(f"no limit can be set: {'; '.join(reasons) or 'there is none'}")
            self._save()
        except BaseException:
            self._drop_locks()
            raise

    def allowed(self, knob: Knob) -> ClockLimits:
        """Range in which a knob may be set: its limits before the acquisition."""
        if knob.name not in self._places:
            self._own(knob)
        low, high = knob.floor_hz, knob.ceiling_hz
        for place in self._places[knob.name]:
            if place.part.startswith("min"):
                low = max(low, knob.hz(place.original))
            else:
                high = min(high, knob.hz(place.original))
        return ClockLimits(min(low, high), high)

    def pin(self, knob: Knob, hz: int) -> int:
        """Run at one clock (a cap: at most at it), rounded to the nearest that exists and is
        allowed.

        Returns the clock read back.  Raises TakenOver where another process wrote since (`watch`
        then reports the change and the new limits), NotPermitted, ActuatorError.
        """
        return self.limit(knob, ClockLimits(hz, hz)).max_hz

    def limit(self, knob: Knob, limits: ClockLimits) -> ClockLimits:
        """Run between two clocks; otherwise as `pin`."""
        started = perf_counter_ns()
        places = self._own(knob)
        allowed = self.allowed(knob)
        texts = {
            "min": knob.text(knob.snap(limits.min_hz, allowed)),
            "max": knob.text(knob.snap(limits.max_hz, allowed)),
        }
        wrote = self._write(knob.name, places, {p.part: texts[p.part[:3]] for p in places})
        if wrote:
            self.costs.setdefault(knob.name, WriteCost()).note((perf_counter_ns() - started) / 1000)
        held = {p.part: knob.hz(p.expected) for p in places}
        return ClockLimits(held.get("min", knob.floor_hz), held["max"])

    def loosen(self, knob: Knob) -> None:
        """Restore the original limits between beats and keep the ownership."""
        started = perf_counter_ns()
        places = self._own(knob)
        if self._write(knob.name, places, {p.part: p.original for p in places}):
            self.leaving.setdefault(knob.name, WriteCost()).note(
                (perf_counter_ns() - started) / 1000
            )

    def set(self, switch: Switch, value: str) -> str:
        """Set a switch; returns the value read back.  Raises as `pin`."""
        started = perf_counter_ns()
        (place,) = self._own(switch)
        if value not in (*switch.values, place.original):
            raise ActuatorError(f"{switch.name} takes {', '.join(switch.values)}, not {value!r}")
        if self._write(switch.name, [place], {place.part: value}):
            costs = self.leaving if value == place.original else self.costs
            costs.setdefault(switch.name, WriteCost()).note((perf_counter_ns() - started) / 1000)
        return place.expected

    def measure(self, setting: Setting, times: int = 3) -> WriteCost:
        """Measure the cost of writing by rewriting the current values; restoring is taken to cost
        the same."""
        cost = self.costs.setdefault(setting.name, WriteCost())
        leaving = self.leaving.setdefault(setting.name, WriteCost())
        places = [place for place in self._own(setting) if readable(place.path)]
        for _ in range(times):
            started = perf_counter_ns()
            for place in places:
                self._read(setting.name, place)
                self._store(setting.name, place, place.expected)
                self._read(setting.name, place)
            spent_us = (perf_counter_ns() - started) / 1000
            cost.note(spent_us)
            leaving.note(spent_us)
        return cost

    def watch(self) -> list[ForeignChange]:
        """Changes by other processes since the previous call.  Reads owned files only.  The new
        values count as the originals.

        Raises ActuatorError where the journal can no longer be written; the caller then has to
        release.
        """
        changes = [
            change for name in [*self._places] if (change := self._look(name, self._places[name]))
        ]
        for name in [name for name in self.dormant if name not in self._places]:
            del self.dormant[name]
            self._acquire(self.settings[name])
            if name in self._places:
                changes.append(self._change(name, "back", f"{name} can be set now"))
        if changes and self._journal is not None:
            self._save()
        return changes

    def retry_refused(self) -> list[ForeignChange]:
        """Acquire settings that were refused and may be written by now.  Raises as `watch`."""
        names = [
            name for name in self.refused
            if not any(map(self.writer.refusal, self.settings[name].files().values()))
        ]  # fmt: skip
        for name in names:
            del self.refused[name]
            try:
                self._acquire(self.settings[name])
            except OwnedElsewhere as problem:
                self.refused[name] = str(problem)
        fresh = [name for name in names if name in self._places]
        if fresh:
            self._save()
        return [self._change(name, "back", f"{name} can be set now") for name in fresh]

    def release(self) -> list[str]:
        """Restore every value that is still this process's, and give up the ownership.  Returns
        what was not restored, with reasons; the journal stays where that can be done later.  Never
        raises for a file.  An exception from a signal is raised after all is restored."""
        try:
            return self._release()
        except BaseException:
            self._release()
            raise

    def _release(self) -> list[str]:
        """Implements `release`; may be called again after an interruption and then continues."""
        if self._journal is None:
            return []
        result = give_back(self._sysfs, self.writer, self._records())
        for name, spent_us in result.spent_us.items():
            self.leaving.setdefault(name, WriteCost()).note(spent_us)
        try:
            settle(self._sysfs, self._journal, result)
        except ActuatorError as problem:
            result.failed.append(str(problem))
        self._drop_locks()
        return [*result.left, *result.failed, *(f"{r.path} is gone" for r in result.gone)]

    def _own(self, setting: Setting) -> list[_Place]:
        if self._journal is None:
            raise ActuatorError(f"{setting.name} is not owned: call take() first")
        if setting.name in self.refused:
            raise NotPermitted(f"{setting.name}: {self.refused[setting.name]}")
        if setting.name in self.dormant or setting.name not in self._places:
            why = self.dormant.get(setting.name, "it was not acquired")
            raise ActuatorError(f"{setting.name} cannot be set now: {why}")
        return self._places[setting.name]

    def _acquire(self, setting: Setting) -> None:
        """Acquire a setting's files with their current content."""
        refusals = [why for p in setting.files().values() if (why := self.writer.refusal(p))]
        gone = [p for p in setting.files().values() if readable(p) and not self._sysfs.exists(p)]
        if refusals and not gone:
            self.refused[setting.name] = refusals[0]
            return
        before = {record.path: record for record in self._kept if record.name == setting.name}
        try:
            places = [self._found(setting, *file, before) for file in setting.files().items()]
            self._lock(setting)
        except ActuatorError as problem:
            if isinstance(problem, NotPermitted):
                raise
            self.dormant[setting.name] = str(problem)
            return
        self._kept = [record for record in self._kept if record.name != setting.name]
        self._places[setting.name] = places

    def _found(
        self, setting: Setting, part: str, path: str, before: Mapping[str, JournalRecord]
    ) -> _Place:
        if not readable(path):
            return _Place(part, path, setting.uncapped if isinstance(setting, Knob) else "")
        place = _Place(part, path, "")
        place.original = self._read(setting.name, place)
        record = before.get(path)
        if (
            record is not None and place.original in record.ours
        ):  # its file was missing at the start
            place.original, place.ours = record.original, place.original
        return place

    def _lock(self, setting: Setting) -> None:
        path = [*setting.files().values()][-1]
        if not readable(path):
            return
        if setting.name in self._locks:
            self._locks.pop(setting.name).release()
        try:
            self._locks[setting.name] = Lock(self._sysfs.place(path))
        except BlockingIOError:
            raise OwnedElsewhere(
                f"{setting.name} is owned by another daemon on this board, with another "
                "journal: limits are not touched"
            ) from None
        except OSError:
            return  # unreadable: the next read reports it

    def _write(self, name: str, places: Sequence[_Place], wanted: Mapping[str, str]) -> bool:
        """Write the parts that differ, in the kernel's order, and read each back.  Returns whether
        anything was written."""
        now = {place.part: self._read(name, place) for place in places}
        by_part = {place.part: place for place in places}
        for part, place in by_part.items():
            if not place.is_ours(now[part]):
                raise TakenOver(_foreign(place, now[part]))
        differ = [part for part in ordered(wanted, now) if wanted[part] != now[part]]
        for part in differ:
            self._store(name, by_part[part], wanted[part])
        return bool(differ)

    def _store(self, name: str, place: _Place, text: str) -> None:
        assert self._journal is not None
        self._journal.note(place.index, place.ours or "", text)
        place.asked = text  # a signal or a slow helper may interrupt the write, done or not
        try:
            self.writer.write(place.path, text)
        except SysfsError as problem:
            place.asked = None
            raise self._refusal(name, place, text, problem) from problem
        actual = self._sysfs.get(place.path) if readable(place.path) else text
        if actual is not None and actual != text:
            self._journal.note(place.index, place.ours or "", actual)
        place.ours = text if actual is None else actual
        place.asked = None

    def _refusal(self, name: str, place: _Place, text: str, problem: SysfsError) -> ActuatorError:
        """The exception for a file that did not take `text`."""
        if isinstance(problem, Denied):
            return NotPermitted(f"{name}: {problem}; see `edged governor show`")
        if isinstance(problem, (Absent, Busy)):
            self.dormant[name] = str(problem)
            return ActuatorError(f"{name} is gone: {problem}")
        now = self._read(name, place)
        if now != place.expected:
            return TakenOver(_foreign(place, now))
        return ActuatorError(f"{name}: {text} was refused: {problem}")

    def _read(self, name: str, place: _Place) -> str:
        if not readable(place.path):
            return place.expected
        try:
            text = self._sysfs.read(place.path)
            setting = self.settings[name]
            if isinstance(setting, Knob):
                setting.hz(text)
            return text
        except SysfsError as problem:
            if isinstance(problem, (Absent, Busy)):
                self.dormant[name] = str(problem)
            raise ActuatorError(f"{name} cannot be read: {problem}") from problem
        except ActuatorError as problem:
            self.dormant[name] = str(problem)
            raise

    def _look(self, name: str, places: list[_Place]) -> ForeignChange | None:
        """`watch` for one setting."""
        was_dormant = name in self.dormant
        try:
            now = [self._read(name, place) for place in places]
        except ActuatorError as problem:
            if was_dormant or name not in self.dormant:
                return None
            return ForeignChange(name, "gone", str(problem), None)
        foreign = [
            (p, text) for p, text in zip(places, now, strict=True) if not p.is_ours(text)
        ]  # fmt: skip
        says = "; ".join(_foreign(place, text) for place, text in foreign)
        for place, text in foreign:
            place.original, place.ours = text, None
        if was_dormant:
            del self.dormant[name]
            self._lock(self.settings[name])
            return self._change(name, "back", f"{name} is back" + (f": {says}" if says else ""))
        return self._change(name, "changed", says) if foreign else None

    def _change(self, name: str, what: str, text: str) -> ForeignChange:
        setting = self.settings[name]
        allowed = self.allowed(setting) if isinstance(setting, Knob) else None
        return ForeignChange(name, what, text, allowed)

    def _records(self) -> list[JournalRecord]:
        return [
            *(
                JournalRecord(
                    name,
                    p.part,
                    p.path,
                    p.original,
                    frozenset(text for text in (p.ours, p.asked) if text is not None),
                )
                for name, places in self._places.items()
                for p in places
            ),
            *self._kept,
        ]

    def _save(self) -> None:
        assert self._journal is not None
        for index, place in enumerate(p for places in self._places.values() for p in places):
            place.index = index
        self._journal.create(boot_id(self._sysfs), self._records())

    def _drop_locks(self) -> None:
        journal, self._journal = (
            self._journal,
            None,
        )  # unlock last: no file is restored without its lock
        for lock in self._locks.values():
            lock.release()
        if journal is not None:
            journal.release()
        self._locks, self._places, self._kept = {}, {}, []


def _foreign(place: _Place, now: str) -> str:
    whose = "left" if place.ours is None else "set"
    return f"{place.path} holds {now}, edged {whose} {place.expected}: another process changed it"
