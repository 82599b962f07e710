"""Actions of other processes on a simulated board: power modes, locked clocks, hotplug, faults."""

from __future__ import annotations

import errno
import os
import re
import threading
from pathlib import Path

from governors.errors import ProfileError
from governors.profile import BoardProfile
from governors.simulated import clocks, layout
from governors.simulated.kernel import PRIVATE, SimulatedSysfs
from governors.simulated.sensors import Sensors
from governors.suggestions import closest
from governors.sysfs import CPU


class Commands:
    """Mixin of `SimulatedBoard` with its commands."""

    profile: BoardProfile
    sysfs: SimulatedSysfs
    sensors: Sensors
    _lock: threading.RLock

    def nvpmodel(self, mode: int | str) -> None:
        """Set a power mode by number or name: rewrite every limit in the order that the kernel
        accepts.  Raises ProfileError."""
        found = [m for m in self.profile.modes if mode in (m.id, m.name)]
        if not found:
            known = ", ".join(f"{m.id} {m.name}" for m in self.profile.modes) or "none"
            near = closest(str(mode), [m.name for m in self.profile.modes])
            advice = f"did you mean {near}? " if near else ""
            raise ProfileError(
                f"{self.profile.name} has no power mode {mode}; {advice}known: {known}"
            )
        chosen = found[0]
        for core in range(1, self.profile.core_count):
            self.hotplug(core, core < chosen.cores)
        for cluster in self.profile.clusters:
            at = layout.policy_path(cluster)
            if self.sysfs.exists(f"{at}/scaling_min_freq"):
                self._limits(f"{at}/scaling_{{}}_freq", chosen.cpu_min_khz, chosen.cpu_max_khz)
        if self.profile.gpu is not None:
            _, node = layout.gpu_paths(self.profile)
            self._limits(f"{node}/{{}}_freq", chosen.gpu_min_hz, chosen.gpu_max_hz)
        if self.sysfs.exists(layout.EMC_CAP):
            self.sysfs.write(layout.EMC_CAP, str(chosen.memory_max_hz))
        self.sysfs.store(layout.NVPMODEL_STATUS, f"pmode:{chosen.id:04d}")

    def jetson_clocks(self) -> None:
        """Lock every clock at its maximum; disable idle states and gating."""
        for cluster in self.profile.clusters:
            at = layout.policy_path(cluster)
            self.sysfs.write(f"{at}/scaling_min_freq", self.sysfs.read(f"{at}/scaling_max_freq"))
        for path in list(self.sysfs.glob(f"{CPU}/cpu*/cpuidle/state*/disable")):
            self.sysfs.write(path, "1")
        if self.profile.gpu is not None:
            device, node = layout.gpu_paths(self.profile)
            self.sysfs.write(f"{node}/min_freq", self.sysfs.read(f"{node}/max_freq"))
            self.sysfs.write(f"{device}/railgate_enable", "0")
        if self.sysfs.exists(layout.EMC_RATE):
            allowed = clocks.look(self.profile, self.sysfs)
            self.sysfs.store(f"{layout.EMC_RATE}/rate", allowed.memory_race_hz)
            self.sysfs.store(f"{layout.EMC_RATE}/mrq_rate_locked", 1)

    def hotplug(self, core: int, online: bool) -> None:
        """Take a core offline or online."""
        self.sysfs.write(f"{CPU}/cpu{core}/online", str(int(online)))

    def fault(self, pattern: str, error: str, ways: str = "rw") -> None:
        """Make matching paths fail with an error (EACCES, EIO, ...) when read (`r`), written (`w`)
        or both."""
        self.sysfs.set_faults([*self.sysfs.faults(), (pattern, getattr(errno, error), ways)])

    def heal(self) -> None:
        """Remove all commanded faults."""
        self.sysfs.set_faults([])

    def freeze(self, device: str) -> None:
        """Stop updates of a sensor's registers."""
        self.sensors.frozen.add(device)

    def thaw(self, device: str) -> None:
        """Resume updates of a sensor's registers."""
        self.sensors.frozen.discard(device)

    def unbind(self, device: str) -> None:
        """Unbind a sensor's driver: its files disappear."""
        with self._lock, self.sysfs.locked():
            link, place = self._chip(device)
            link.unlink()
            self._class_link(place).unlink(missing_ok=True)
            place.rename(self.sysfs.root / PRIVATE / f"unbound-{device}")
            self.sensors.gone.add(device)

    def bind(self, device: str) -> None:
        """Rebind the driver: the directory returns under another number."""
        with self._lock, self.sysfs.locked():
            link, place = self._chip(device)
            number = int(re.findall(r"\d+", place.name)[-1])
            fresh = place.with_name(place.name.replace(str(number), str(number + 10)))
            (self.sysfs.root / PRIVATE / f"unbound-{device}").rename(fresh)
            holder = fresh.parent.parent if fresh.name.startswith("hwmon") else fresh.parent
            link.symlink_to(os.path.relpath(holder, link.parent))
            if fresh.name.startswith("hwmon"):
                shown = self._class_link(fresh)
                shown.symlink_to(os.path.relpath(fresh, shown.parent))
            self.sensors.moved[device] = str(fresh)[len(str(self.sysfs.root)) :]
            self.sensors.gone.discard(device)

    def _chip(self, device: str) -> tuple[Path, Path]:
        """A chip's link at its driver, and its directory."""
        channel = next(c for c in self.profile.sensor.channels if c.device == device)
        driver = f"/sys/bus/i2c/drivers/{self.profile.sensor.meter}/{device}"
        return Path(self.sysfs.place(driver)), Path(self.sysfs.place(self.sensors.place(channel)))

    def _class_link(self, place: Path) -> Path:
        return Path(self.sysfs.place(f"/sys/class/hwmon/{place.name}"))

    def _limits(self, name: str, low: int, high: int) -> None:
        """Write both ends in the order that keeps min <= max."""
        least, most = name.format("min"), name.format("max")
        upwards = low > int(self.sysfs.read(most))
        for path in (most, least) if upwards else (least, most):
            self.sysfs.write(path, str(low if path == least else high))
