"""The limits that a policy sets: owned while one is at it that sets any, and given back by itself.

Before each race `watch` looks for what somebody else has changed; what a decision asks for is then
set inside of what is allowed.  A clock whose file is gone is left alone until it is back; one that
could not be set is tried again after AGAIN_US, and so is one that nobody might write at the start:
a helper was started (again), somebody gave the right.

Where clamps were asked for (`edged.energy.clamps`) the CPU's clock of a race is asked for by them,
inside of the same limits, whether these may be written or not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from edged.energy.board import BoardSite
from edged.energy.sleeps import AGAIN_US, UCLAMP
from governors.actuators.base import ClockLimits, Knob, Switch, limits_now, readable
from governors.actuators.journal import OwnedElsewhere
from governors.actuators.ownership import ForeignChange, Ownership, restore
from governors.errors import ActuatorError, NotPermitted
from governors.policies.base import Act, ClockSetting
from governors.tariff import Tariff
from governors.work import Dial

CHANGES_MAX = 16


class OwnedLimits:
    """The board's limits, as far as this daemon has them."""

    def __init__(self, site: BoardSite, tariff: Tariff | None) -> None:
        self.dials: tuple[Dial, ...] = ()
        self.write_us = self.write_j = 0.0
        """Of setting all CPU clocks and letting them go again."""
        self.changes: deque[dict[str, Any]] = deque(maxlen=CHANGES_MAX)
        """What others did to limits, and what could not be set; the last ones."""
        self.taken_over = 0
        """How often somebody else has changed a limit that was ours."""
        self.taken: Callable[[ForeignChange], None] = lambda _: None
        """Told of each such change."""
        self.restored: list[str] = []
        """What an earlier process had left, and what was done about it."""
        self._site, self._tariff = site, tariff
        self._knobs = {knob.name: knob for knob in site.knobs}
        self._settings: list[Knob | Switch] = [*site.knobs, *site.sleeps.switches]
        self._others_us: dict[str, float] = {}
        """Of setting each clock that is no CPU's and letting it go again, where it is known."""
        self._ours: Ownership | None = None
        self._unset: dict[str, int] = {}
        """When clocks could not be set."""
        self._refusals: dict[str, str] = {}
        """Why, in words, of those that have not been set since."""
        self._looked_us = 0
        """When somebody else was last looked for who may write."""
        self.sleeps = site.sleeps

    @property
    def clamped(self) -> bool:
        """Whether CPU clocks are asked for by clamping this process's threads, not by limits."""
        return self.sleeps.clamps is not None

    def restore(self) -> None:
        """Put back what a daemon that died has left, whatever policy runs now.

        Raises ActuatorError.
        """
        if self._site.journal.exists():
            self.restored += restore(self._site.sysfs, self._site.writer, self._site.journal)

    def take(self) -> None:
        """Own them.  Raises ActuatorError where that cannot be, and nothing can be clamped."""
        if self._ours is not None:
            return
        site = self._site
        site.writer.look()
        ours = Ownership(site.sysfs, site.writer, site.journal, self._settings)
        try:
            ours.take()
        except NotPermitted as problem:
            if not self.clamped or isinstance(problem, OwnedElsewhere):
                raise
        else:
            self._ours = ours
            self.sleeps.take(ours, self._tariff)
            self.restored += ours.restored
        self._price()
        self._look()

    def release(self) -> list[str]:
        """Give them back; what was not restored, and why."""
        ours, self._ours = self._ours, None
        self.dials, self._unset, self._refusals = (), {}, {}
        self.sleeps.released()
        return [] if ours is None else ours.release()

    def watch(self, at_us: int) -> list[ForeignChange]:
        """What has become of limits that are ours since the last look: what somebody else has
        changed, what is gone, back, or may be set by now.  Raises ActuatorError."""
        found = [] if self._ours is None else self._ours.watch()
        found += self._ask_again(at_us)
        for change in found:
            self._note(at_us, change.name, change.what, change.text)
            self._unset.pop(change.name, None)
            if change.what == "changed":
                self.taken_over += 1
                self.taken(change)
        self.sleeps.again(at_us)
        again = [name for name, since_us in self._unset.items() if at_us - since_us >= AGAIN_US]
        for name in again:
            del self._unset[name]
        if found or again:
            self._look()
        return found

    def may(self) -> bool:
        """Whether there is a limit that may be written as things are now."""
        self._site.writer.look()
        files = (setting.files().values() for setting in self._settings)
        return any(not any(map(self._site.writer.refusal, paths)) for paths in files)

    def apply(self, clocks: Mapping[str, ClockSetting], at_us: int) -> tuple[list[str], bool]:
        """Set what was decided; the dials that could not be, and whether that is because somebody
        else changed one of them meanwhile, so that it is worth deciding again."""
        lost, again = [], False
        for name, setting in clocks.items():
            try:
                self._set(self._knobs[name], setting)
            except ActuatorError as problem:
                lost.append(name)
                changed = name in {change.name for change in self.watch(at_us)}
                again |= changed
                if not changed:
                    self._refused(at_us, name, str(problem))
            else:
                if self._refusals.pop(name, None) is not None:
                    self._note(at_us, name, "back", f"{name} can be set again")
        return lost, again

    def describe(self) -> dict[str, Any]:
        """For people: who writes, what is owned, how it stands."""
        ours = self._ours
        return {
            "writer": {"name": self._site.writer.name, "why": self._site.writer.why},
            "owned": [] if ours is None else [dial.name for dial in self.dials],
            "refused": {} if ours is None else dict(ours.refused),
            "restored": self.restored,
            "changes": list(self.changes),
            "taken_over": self.taken_over,
            "write_us": round(self.write_us, 1),
            "costs": self._costs(),
            "sleeps": self.sleeps.describe(),
            "limits": {name: self._clock(knob) for name, knob in self._knobs.items()},
        }

    def standing(self) -> tuple[Dial, ...]:
        """The dials as their limits stand, whether they are owned or not; those of which it can be
        told."""
        if self.dials:
            return self.dials
        found = []
        for knob in self._knobs.values():
            try:
                now = limits_now(self._site.sysfs, knob)
            except ActuatorError:
                continue
            found.append(Dial(knob.name, knob.kind, knob.table_hz, now.min_hz, now.max_hz, False))
        return tuple(found)

    def clock_hz(self) -> int | None:
        """The clock of the first CPU domain as it stands now."""
        for knob in self._knobs.values():
            if knob.kind == "cpu":
                now = self._site.sysfs.get_int(knob.current_path) if knob.current_path else None
                return None if now is None else now * knob.unit_hz
        return None

    def _clock(self, knob: Knob) -> dict[str, Any]:
        read = self._site.sysfs.get_int

        def hz(path: str) -> int | None:
            value = read(path) if path.startswith("/") else None
            return None if value is None else value * knob.unit_hz

        return {
            "hz": hz(knob.current_path), "min_hz": hz(knob.min_path), "max_hz": hz(knob.max_path)
        }  # fmt: skip

    def _set(self, knob: Knob, setting: ClockSetting) -> None:
        clamps = self.sleeps.clamps if knob.kind == "cpu" else None
        if clamps is not None and setting.act is Act.PIN:
            clamps.ask(knob.name, setting.hz)
            return
        if clamps is not None:
            clamps.drop(knob.name)
        if self._ours is None or knob.name in self._ours.refused:
            return
        if setting.act is Act.RELEASE:
            self._ours.loosen(knob)
        elif setting.act is Act.PIN or knob.kind == "memory":
            self._ours.pin(knob, setting.hz)
        else:
            least = self._ours.allowed(knob).min_hz
            self._ours.limit(knob, ClockLimits(min(least, setting.hz), setting.hz))

    def _look(self) -> None:
        """The dials as they may be set now."""
        found = (self._dial(knob) for knob in self._knobs.values())
        self.dials = tuple(dial for dial in found if dial is not None)

    def _dial(self, knob: Knob) -> Dial | None:
        """None: it may never be set here."""
        ours = self._ours
        owned = ours is not None and knob.name not in ours.refused
        if not owned and not (self.clamped and knob.kind == "cpu"):
            return None
        if knob.name in self._unset or (ours is not None and knob.name in ours.dormant):
            return Dial(knob.name, knob.kind, knob.table_hz, knob.floor_hz, knob.ceiling_hz, False)
        if ours is not None and owned:
            allowed = ours.allowed(knob)
        else:
            allowed = limits_now(self._site.sysfs, knob)
        return Dial(
            knob.name, knob.kind, knob.table_hz, allowed.min_hz, allowed.max_hz,
            write_us=self._others_us.get(knob.name),
        )  # fmt: skip

    def _price(self) -> None:
        """What writing costs: measured by writing what stands there; on a simulated board what its
        profile says, since files on this machine are no clocks."""
        settable = self._settable()
        cpus = [k for k in self._knobs.values() if k.kind == "cpu" and k.name in settable]
        ours = self._ours
        if self._site.simulated is not None and self._site.profile is not None:
            said = {t.kind: t.us for t in self._site.profile.transitions if t.us is not None}
            self.write_us = 2 * said.get("cpu", 0.0)
            self._others_us = {
                k.name: 2 * said[k.kind] for k in self._knobs.values()
                if k.kind != "cpu" and k.kind in said
            }  # fmt: skip
        elif ours is not None:
            told = {
                name: us for name, knob in self._knobs.items()
                if name in settable and (us := self._measured_us(ours, knob)) is not None
            }  # fmt: skip
            self.write_us = sum(told.get(knob.name, 0.0) for knob in cpus)
            self._others_us = {n: us for n, us in told.items() if self._knobs[n].kind != "cpu"}
        if self.sleeps.clamps is not None:
            self.write_us = self.sleeps.clamps.measure()
        if self._tariff is not None and cpus:
            low = self._tariff.race_watts("cpu", cpus[0].floor_hz, 1.0) - self._tariff.idle_watts
            self.write_j = max(0.0, low) * self.write_us / 1e6

    def _measured_us(self, ours: Ownership, knob: Knob) -> float | None:
        """Of setting it and letting it go; None where it cannot be set, or only by calls that would
        set something."""
        if not readable(knob.max_path):
            return None
        try:
            return 2 * ours.measure(knob).usual_us
        except ActuatorError as problem:
            self._refused(0, knob.name, str(problem))
            return None

    def _settable(self) -> set[str]:
        if self._ours is None:
            return set(self._knobs) if self.clamped else set()
        return self._knobs.keys() - self._ours.refused.keys() - self._ours.dormant.keys()

    def _ask_again(self, at_us: int) -> list[ForeignChange]:
        """Where something may not be set, or could not be: whether somebody may by now."""
        ours = self._ours
        lacking = self._unset or (ours is not None and ours.refused)
        if not lacking or at_us - self._looked_us < AGAIN_US:
            return []
        self._looked_us = at_us
        self._site.writer.look()
        return [] if ours is None else ours.retry_refused()

    def _refused(self, at_us: int, name: str, why: str) -> None:
        """It could not be set: leave it alone for a while.  Told once."""
        if self._refusals.get(name) != why:
            self._note(at_us, name, "refused", why)
        self._unset[name], self._refusals[name] = at_us, why
        self._look()

    def _note(self, at_us: int, name: str, what: str, text: str) -> None:
        self.changes.append({"at_us": at_us, "name": name, "what": what, "text": text})

    def _costs(self) -> dict[str, dict[str, Any]]:
        """What setting what was set has taken, and letting it go, measured."""
        ours = self._ours
        pairs = {} if ours is None else {
            name: (cost, ours.leaving.get(name)) for name, cost in ours.costs.items()
        }  # fmt: skip
        found = {
            name: {
                "times": enter.count,
                "enter_us": round(enter.usual_us, 1),
                "leave_us": round(leave.usual_us, 1) if leave is not None and leave.count else None,
            }
            for name, (enter, leave) in {**pairs, **self.sleeps.costs}.items()
        }
        if self.sleeps.clamps is not None:
            found[UCLAMP] = self.sleeps.clamps.told()
        return found
