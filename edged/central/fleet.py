"""The fleet: each device's last telemetry report and its last contact.

    LANDING/fleet/<device>.json     {"seq": …, "row": {column: value, …} or null, "crc": …}

The file's modification time is the device's last contact with any collector, to SEEN_S.  `row` is
its newest report (edged/uplink/telemetry.py), null before the first.  The files are written without
a sync and may be deleted: they only repeat landed pages, and the next report recreates them.  A
file is FILE_BYTES, padded with spaces, and rewritten in place by one write: a new inode for each
report costs five times as much.  A reader that meets half of a write reads again.

All collectors of a landing share the files, so each exports the whole fleet: scrape one of them, or
all and aggregate with `max by (device)`.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edged.central.report_decoding import last_report
from edged.central.schemas import valid_id
from edged.documents import checked_json
from edged.errors import PageError
from edged.metrics.central import DEVICES_MAX
from edged.pages.format import Header
from edged.uplink import telemetry
from edged.uplink.upload_schedule import opens_in_s

FILE_BYTES = 4096
"""A block of the disk.  A larger report replaces the file."""
_READS = 5
"""Reads of a file that is being written."""
SEEN_S = 10.0
"""Smallest time between two updates of a device's file by requests without a report."""
SILENT_S_MIN, SILENT_S_UNKNOWN = 10.0, 300.0
"""A device is silent after INTERVALS_SILENT of its intervals, but not before SILENT_S_MIN; one that
sends no reports, after SILENT_S_UNKNOWN."""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FleetDevice:
    """A device: its last contact (wall clock) and its newest report."""

    name: str
    seen_us: int
    row: Mapping[str, Any] | None

    def up(self, now_us: int) -> bool:
        """Whether its last contact is recent enough."""
        after_s = SILENT_S_UNKNOWN
        if self.row is not None and isinstance(self.row.get("interval_s"), float):
            after_s = max(SILENT_S_MIN, telemetry.INTERVALS_SILENT * self.row["interval_s"])
        return now_us - self.seen_us <= 1e6 * after_s

    def upload_open(self, now_us: int) -> bool:
        """Whether its upload windows are open; True without windows, or where they are invalid."""
        try:
            windows = json.loads((self.row or {})["upload_windows"])
            return opens_in_s([(int(a), int(b)) for a, b in windows], now_us / 1e6) is None
        except (KeyError, TypeError, ValueError, RecursionError):
            return True


class Fleet:
    """The files of a landing.  Thread-safe."""

    def __init__(self, landing: str | Path, devices_max: int = DEVICES_MAX) -> None:
        self._directory = Path(landing) / "fleet"
        self._devices_max = devices_max
        self._lock = threading.Lock()
        self._touched: dict[str, float] = {}
        self._known: dict[str, tuple[tuple[int, int, int], FleetDevice]] = {}
        self.left_out = 0
        """Devices beyond `devices_max` at the last call of `devices`."""

    def on_contact(
        self, device: str, report: tuple[Header, memoryview] | None, now_us: int
    ) -> None:
        """Record a contact of the device, with or without a page of telemetry.

        If the disk cannot be written, only the view of the fleet is stale.
        """
        try:
            if report is not None:
                self._write(device, report[0].seq, last_report(*report), now_us)
            elif time.monotonic() - self._touched.get(device, -SEEN_S) >= SEEN_S:
                if not self._path(device).exists():
                    self._write(device, 0, None, now_us)
                self._touch(device, now_us)
        except (OSError, PageError) as problem:
            _LOG.warning("the fleet's record of %s was not updated: %s", device, problem)

    def devices(self) -> list[FleetDevice]:
        """All devices by name; of more than `devices_max` the most recent ones."""
        found = []
        try:
            with os.scandir(self._directory) as entries:
                found = [(e.stat(), e.name) for e in entries if e.name.endswith(".json")]
        except FileNotFoundError:
            return []
        found.sort(key=lambda entry: entry[0].st_mtime_ns, reverse=True)
        self.left_out = max(0, len(found) - self._devices_max)
        devices = [self._device(stat, name[:-5]) for stat, name in found[: self._devices_max]]
        return sorted((d for d in devices if valid_id(d.name)), key=lambda d: d.name)

    def device(self, name: str) -> FleetDevice | None:
        """One device; None if it is unknown."""
        try:
            return self._device(self._path(name).stat(), name)
        except FileNotFoundError:
            return None

    def forget(self, name: str) -> bool:
        """Forget a device until its next contact; returns whether it was known."""
        known = self._path(name).exists()
        self._path(name).unlink(missing_ok=True)
        return known

    def _path(self, device: str) -> Path:
        return self._directory / f"{device}.json"

    def _write(self, device: str, seq: int, row: dict[str, Any] | None, now_us: int) -> None:
        path, at_ns = self._path(device), 1000 * now_us
        data = checked_json.pack({"seq": seq, "row": row}).ljust(FILE_BYTES)
        if not _overwrite(path, data, at_ns):
            fresh = path.with_name(f".{device}.{os.getpid()}.{threading.get_ident()}.new")
            self._directory.mkdir(parents=True, exist_ok=True)
            fresh.write_bytes(data)
            os.utime(fresh, ns=(at_ns, at_ns))
            fresh.replace(path)
        self._touched[device] = time.monotonic()

    def _touch(self, device: str, now_us: int) -> None:
        os.utime(self._path(device), ns=(1000 * now_us, 1000 * now_us))
        self._touched[device] = time.monotonic()

    def _device(self, stat: os.stat_result, name: str) -> FleetDevice:
        stamp = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
        with self._lock:
            known = self._known.get(name)
        if known is not None and known[0] == stamp:
            return known[1]
        row = self._row(name)
        device = FleetDevice(name, stat.st_mtime_ns // 1000, row if isinstance(row, dict) else None)
        with self._lock:
            self._known[name] = (stamp, device)
            if len(self._known) > 2 * self._devices_max:
                self._known.clear()
        return device

    def _row(self, name: str) -> Any:
        for _ in range(_READS):
            try:
                return checked_json.unpack(self._path(name).read_bytes())["row"]
            except ValueError:
                continue
            except (OSError, KeyError, TypeError):
                break
        return None


def _overwrite(path: Path, data: bytes, at_ns: int) -> bool:
    """Rewrite a file of FILE_BYTES; False where it is missing or one of them has another size."""
    if len(data) != FILE_BYTES:
        return False
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        if os.fstat(fd).st_size != FILE_BYTES:
            return False
        os.pwrite(fd, data, 0)
        os.utime(fd, ns=(at_ns, at_ns))
    finally:
        os.close(fd)
    return True
