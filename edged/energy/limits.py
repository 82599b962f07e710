"""Owned clock limits of the running policy, and their restoration.

Before each race `watch` detects changes by other processes; decisions are then applied inside the
allowed limits.  A clock whose file is missing is skipped until the file returns.  A clock that
could not be set is retried after AGAIN_US. So is one that no writer may write: a helper may have
started, or a permission been granted.

The GPU's clock is released, and not set, while another process uses the GPU.

With clamps (`edged.energy.clamps`) the CPU clock of a race is requested by them, inside the same
limits, whether or not the limits are writable.
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
from governors.policies.base import RELEASE, Act, ClockSetting
from governors.tariff import Tariff
from governors.work import Dial

CHANGES_MAX = 16


class OwnedLimits:
    """Limits of the board that this daemon owns."""

    def __init__(self, site: BoardSite, tariff: Tariff | None) -> None:
        self.dials: tuple[Dial, ...] = ()
        self.write_us = self.write_j = 0.0
        """Cost of setting all CPU clocks and releasing them."""
        self.changes: deque[dict[str, Any]] = deque(maxlen=CHANGES_MAX)
        """The last changes by other processes and failed settings."""
        self.taken_over = 0
        """Number of changes of owned limits by other processes."""
        self.taken: Callable[[ForeignChange], None] = lambda _: None
        """Called on each such change."""
        self.gpu_shared: Callable[[], bool] = lambda: False
        """Whether another process uses the GPU."""
        self._gpu_shared = False
        self.restored: list[str] = []
        """Actions that restored the limits of an earlier process."""
        self._site, self._tariff = site, tariff
        self._knobs = {knob.name: knob for knob in site.knobs}
        self._settings: list[Knob | Switch] = [*site.knobs, *site.sleeps.switches]
        self._others_us: dict[str, float] = {}
        """Cost of setting and releasing each clock other than the CPU's, where known."""
        self._ours: Ownership | None = None
        self._unset: dict[str, int] = {}
        """Time of the last failure by clock."""
        self._refusals: dict[str, str] = {}
        """Reason of the last failure by clock, until it succeeds."""
        self._retried_us = 0
        """Time of the last search for a writer."""
        self.sleeps = site.sleeps

    @property
    def clamped(self) -> bool:
        """Whether CPU clocks are requested by clamps instead of limits."""
        return self.sleeps.clamps is not None

    def restore(self) -> None:
        """Restore the limits that a dead daemon left, for any policy.  Raises ActuatorError."""
        if self._site.journal.exists():
            self.restored += restore(self._site.sysfs, self._site.writer, self._site.journal)

    def take(self) -> None:
        """Acquire the limits.  Raises ActuatorError where that fails and clamps are not
        available."""
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
        self._refresh_dials()

    def release(self) -> list[str]:
        """Restore the limits; returns what was not restored, with reasons."""
        ours, self._ours = self._ours, None
        self.dials, self._unset, self._refusals = (), {}, {}
        self.sleeps.released()
        return [] if ours is None else ours.release()

    def watch(self, at_us: int) -> list[ForeignChange]:
        """Changes of owned limits since the previous call: changed by other processes, missing,
        back, or writable by now.  Raises ActuatorError."""
        found = [] if self._ours is None else self._ours.watch()
        found += self._retry_refused(at_us)
        for change in found:
            self._note(at_us, change.name, change.what, change.text)
            self._unset.pop(change.name, None)
            if change.what == "changed":
                self.taken_over += 1
                self.taken(change)
        self.sleeps.again(at_us)
        self._watch_gpu(at_us)
        again = [name for name, since_us in self._unset.items() if at_us - since_us >= AGAIN_US]
        for name in again:
            del self._unset[name]
        if found or again:
            self._refresh_dials()
        return found

    def _watch_gpu(self, at_us: int) -> None:
        """Give the GPU's clock back when another process begins to use the GPU."""
        gpus = [knob for knob in self._knobs.values() if knob.kind == "gpu"]
        if self._ours is None or not gpus or self.gpu_shared() == self._gpu_shared:
            return
        self._gpu_shared = not self._gpu_shared
        for knob in gpus if self._gpu_shared else ():
            try:
                self._set(knob, RELEASE)
            except ActuatorError as problem:
                self._refused(at_us, knob.name, str(problem))
            else:
                self._note(at_us, knob.name, "shared", "another process uses the GPU")
        self._refresh_dials()

    def may(self) -> bool:
        """Whether at least one limit may be written now."""
        self._site.writer.look()
        files = (setting.files().values() for setting in self._settings)
        return any(not any(map(self._site.writer.refusal, paths)) for paths in files)

    def apply(self, clocks: Mapping[str, ClockSetting], at_us: int) -> tuple[list[str], bool]:
        """Apply clocks.  Returns the dials that failed, and whether another process changed one of
        them meanwhile, so that a new decision is worthwhile."""
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
        """Writer, owned limits and clocks, for the status."""
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
        """Dials at their current limits, owned or not; without those that cannot be read."""
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
        """Current clock of the first CPU domain."""
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
            clamps.request(knob.name, setting.hz)
            return
        if clamps is not None:
            clamps.drop(knob.name)
        if self._ours is None or knob.name in self._ours.refused:
            return
        if setting.act is Act.RELEASE:
            self._ours.loosen(knob)
        elif knob.kind == "gpu" and self._gpu_shared:
            return
        elif setting.act is Act.PIN or knob.kind == "memory":
            self._ours.pin(knob, setting.hz)
        else:
            least = self._ours.allowed(knob).min_hz
            self._ours.limit(knob, ClockLimits(min(least, setting.hz), setting.hz))

    def _refresh_dials(self) -> None:
        """Update the dials to the current limits."""
        found = (self._dial(knob) for knob in self._knobs.values())
        self.dials = tuple(dial for dial in found if dial is not None)

    def _dial(self, knob: Knob) -> Dial | None:
        """None for a knob that can never be set here."""
        ours = self._ours
        owned = ours is not None and knob.name not in ours.refused
        if not owned and not (self.clamped and knob.kind == "cpu"):
            return None
        kept_off = knob.kind == "gpu" and self._gpu_shared
        if kept_off or knob.name in self._unset or (ours is not None and knob.name in ours.dormant):
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
        """Measure the cost of writing by rewriting current values.  On a simulated board it is the
        profile's, since files of this machine are not clocks."""
        settable = self._settable()
        cpus = [k for k in self._knobs.values() if k.kind == "cpu" and k.name in settable]
        ours = self._ours
        if self._site.simulated is not None and self._site.profile is not None:
            profile_us = {t.kind: t.us for t in self._site.profile.transitions if t.us is not None}
            self.write_us = 2 * profile_us.get("cpu", 0.0)
            self._others_us = {
                k.name: 2 * profile_us[k.kind] for k in self._knobs.values()
                if k.kind != "cpu" and k.kind in profile_us
            }  # fmt: skip
        elif ours is not None:
            measured_us = {
                name: us for name, knob in self._knobs.items()
                if name in settable and (us := self._measured_us(ours, knob)) is not None
            }  # fmt: skip
            self.write_us = sum(measured_us.get(knob.name, 0.0) for knob in cpus)
            self._others_us = {
                n: us for n, us in measured_us.items() if self._knobs[n].kind != "cpu"
            }
        if self.sleeps.clamps is not None:
            self.write_us = self.sleeps.clamps.measure()
        if self._tariff is not None and cpus:
            low = self._tariff.race_watts("cpu", cpus[0].floor_hz, 1.0) - self._tariff.idle_watts
            self.write_j = max(0.0, low) * self.write_us / 1e6

    def _measured_us(self, ours: Ownership, knob: Knob) -> float | None:
        """Cost of setting and releasing a knob; None where it cannot be set, or where measuring
        would change a setting."""
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

    def _retry_refused(self, at_us: int) -> list[ForeignChange]:
        """Search for a writer again where a knob may not be set or failed."""
        ours = self._ours
        lacking = self._unset or (ours is not None and ours.refused)
        if not lacking or at_us - self._retried_us < AGAIN_US:
            return []
        self._retried_us = at_us
        self._site.writer.look()
        return [] if ours is None else ours.retry_refused()

    def _refused(self, at_us: int, name: str, why: str) -> None:
        """A knob could not be set: skip it for a while; reported once per reason."""
        if self._refusals.get(name) != why:
            self._note(at_us, name, "refused", why)
        self._unset[name], self._refusals[name] = at_us, why
        self._refresh_dials()

    def _note(self, at_us: int, name: str, what: str, text: str) -> None:
        self.changes.append({"at_us": at_us, "name": name, "what": what, "text": text})

    def _costs(self) -> dict[str, dict[str, Any]]:
        """Measured cost of setting and releasing."""
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
            found[UCLAMP] = self.sleeps.clamps.as_dict()
        return found
