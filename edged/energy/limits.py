"""The limits that a policy sets: owned while one is at it that sets any, and given back by itself.

Before each race `watch` looks for what somebody else has changed; what a decision asks for is then
set inside of what is allowed.  A clock whose file is gone is left alone until it is back; one that
could not be set is tried again after AGAIN_US: a helper was started again, somebody gave the right.

Where clamps were asked for (`edged.energy.clamps`) the CPU's clock of a race is asked for by them,
inside of the same limits, whether these may be written or not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from edged.energy.board import Site
from edged.energy.sleeps import UCLAMP
from governors.actuators.base import Knob, Limits, Switch, limits_now
from governors.actuators.journal import Owned as OwnedByAnother
from governors.actuators.ownership import Ownership, restore
from governors.cost import Tariff
from governors.errors import ActuatorError, NotPermitted
from governors.policies.base import Act, Dial, Setting

CHANGES_MAX = 16
AGAIN_US = 5_000_000
Change = dict[str, Any]


class Owned:
    """The board's limits, as far as this daemon has them."""

    def __init__(self, site: Site, tariff: Tariff | None) -> None:
        self.dials: tuple[Dial, ...] = ()
        self.write_us = self.write_j = 0.0
        """Of setting all CPU clocks and letting them go again."""
        self.changes: deque[Change] = deque(maxlen=CHANGES_MAX)
        """What others did to limits, and what could not be set; the last ones."""
        self.taken_over = 0
        """How often somebody else has changed a limit that was ours."""
        self.restored: list[str] = []
        """What an earlier process had left, and what was done about it."""
        self._site, self._tariff = site, tariff
        self._knobs = {knob.name: knob for knob in site.knobs}
        self._ours: Ownership | None = None
        self._unset: dict[str, int] = {}
        """When clocks could not be set."""
        self._refusals: dict[str, str] = {}
        """Why, in words, of those that have not been set since."""
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
        settings: list[Knob | Switch] = [*site.knobs, *site.sleeps.switches]
        ours = Ownership(site.sysfs, site.writer, site.journal, settings)
        try:
            ours.take()
        except NotPermitted as problem:
            if not self.clamped or isinstance(problem, OwnedByAnother):
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

    def watch(self, at_us: int) -> list[str]:
        """What somebody else has changed since the last look: the names.  Raises ActuatorError."""
        found = [] if self._ours is None else self._ours.watch()
        for change in found:
            self._note(at_us, change.name, change.what, change.text)
            self.taken_over += change.what == "changed"
            self._unset.pop(change.name, None)
        again = [name for name, since_us in self._unset.items() if at_us - since_us >= AGAIN_US]
        for name in again:
            del self._unset[name]
        if found or again:
            self._look()
        return [change.name for change in found]

    def apply(self, clocks: Mapping[str, Setting], at_us: int) -> tuple[list[str], bool]:
        """Set what was decided; the dials that could not be, and whether that is because somebody
        else changed one of them meanwhile, so that it is worth deciding again."""
        lost, again = [], False
        for name, setting in clocks.items():
            try:
                self._set(self._knobs[name], setting)
            except ActuatorError as problem:
                lost.append(name)
                changed = name in self.watch(at_us)
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

    def _set(self, knob: Knob, setting: Setting) -> None:
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
            self._ours.limit(knob, Limits(min(least, setting.hz), setting.hz))

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
        return Dial(knob.name, knob.kind, knob.table_hz, allowed.min_hz, allowed.max_hz)

    def _price(self) -> None:
        """What writing costs: measured by writing what stands there; on a simulated board what its
        profile says, since files on this machine are no clocks."""
        cpus = [k for k in self._knobs.values() if k.kind == "cpu" and k.name in self._settable()]
        if self._site.simulated is not None and self._site.profile is not None:
            said = (t.us for t in self._site.profile.transitions if t.kind == "cpu")
            self.write_us = 2 * (next(said, None) or 0.0)
        elif self.sleeps.clamps is not None:
            self.write_us = self.sleeps.clamps.measure()
        elif self._ours is not None:
            self.write_us = sum(2 * self._ours.measure(knob).mean_us for knob in cpus)
        if self._tariff is not None and cpus:
            low = self._tariff.race_watts("cpu", cpus[0].floor_hz, 1.0) - self._tariff.idle_watts
            self.write_j = max(0.0, low) * self.write_us / 1e6

    def _settable(self) -> set[str]:
        if self._ours is None:
            return set(self._knobs) if self.clamped else set()
        return self._knobs.keys() - self._ours.refused.keys() - self._ours.dormant.keys()

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
        found = {} if ours is None else {
            name: {
                "times": cost.count,
                "enter_us": round(cost.mean_us, 1),
                "leave_us": round(ours.leaving[name].mean_us, 1) if name in ours.leaving else None,
            }
            for name, cost in ours.costs.items()
        }  # fmt: skip
        if self.sleeps.clamps is not None:
            found[UCLAMP] = self.sleeps.clamps.told()
        return found
