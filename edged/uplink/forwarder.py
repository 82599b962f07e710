"""Pages of other devices that a gateway sends on, in the devices' names.

The daemon offers containers (`edged.pages.container`).  Each device and epoch has a sender of its
own (`edged.uplink.sender`), the same as the daemon's own pages: pages in order for each partition,
backoff, schemas registered where the centre lacks them.  All of them share a few lanes, threads
with a connection each.

- A request carries the newest session and token that came with any of the device's pages: both are
  the device's, and the centre fences older sessions.
- Of reports (telemetry) the newest waits, and it is sent once, as a device does.
- A container is acknowledged when the centre has all its pages, in order within its partition.
- `directory` is shared with the gateway's process (`edged.central.gateway`): schemas are read
  there, desired states and refusals are written.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edged.pages.container import TABLE_AT, Contents, contents, table_bytes
from edged.platform.backoff import jitter
from edged.platform.clock import boot_us
from edged.uplink.client import CollectorClient
from edged.uplink.execution import execute, lost_header
from edged.uplink.forwarded_device import Container, ForwardedDevice
from edged.uplink.pages import PageReader
from edged.uplink.send_queue import PageLocation
from edged.uplink.tasks import Result, Task, Unreadable
from edged.uplink.telemetry import STREAM as TELEMETRY

READ_BYTES = 4096
"""How much of a container is read at first."""
_Slot = tuple[str, int]
"""Name and partition of containers."""


class Forwarder:
    """See the module's docstring.  `send` sends a message to the daemon; with `wake` it reads it
    now.  `opens_in_s` says when the upload windows open, None: they are open."""

    def __init__(
        self,
        config: dict[str, Any],
        send: Callable[[dict[str, Any], bool], None],
        opens_in_s: Callable[[], float | None],
    ) -> None:
        self._config, self._send, self._opens_in_s = config, send, opens_in_s
        self._directory = Path(config.get("pages_directory") or ".")
        self._changed = threading.Condition()
        self._devices: OrderedDict[tuple[str, int], ForwardedDevice] = OrderedDict()
        self._containers: dict[_Slot, OrderedDict[int, Container]] = {}
        self._acked: dict[_Slot, int] = {}
        self._lanes = 0
        self._opened = False
        """Whether `retry` has opened the upload windows until all waiting pages are sent."""

    # the main thread ---------------------------------------------------------------------------

    def offer(self, place: PageLocation) -> None:
        """Add a container, or a new location of one."""
        slot = (place.stream, place.partition)
        with self._changed:
            if place.seq <= self._acked.get(slot, 0):
                return
            try:
                found = _read(place)
            except (OSError, ValueError) as problem:
                self._unreadable(slot, f"{place.file}: {problem}")
                return
            containers = self._containers.setdefault(slot, OrderedDict())
            container = containers.get(place.seq)
            if container is None:
                container = containers[place.seq] = Container(slot, place.seq)
                self._add(container, found)
            container.place = place
            self._device(found).offer(container, place, found.pages)
            self._settle(slot)
            self._start_lanes()
            self._changed.notify()

    def lost(self, name: str, partition: int, first: int, last: int) -> None:
        """Forget containers whose bytes are lost, and declare their pages as lost."""
        slot = (name, partition)
        with self._changed:
            containers = self._containers.get(slot, OrderedDict())
            for seq in [s for s in containers if first <= s <= last]:
                container = containers[seq]
                assert container.device is not None
                container.device.lost(container)
            self._settle(slot)
            self._changed.notify()

    def retry(self) -> None:
        """End all waits."""
        with self._changed:
            self._opened = True
            for device in self._devices.values():
                device.retry()
            self._changed.notify_all()

    def windows_changed(self) -> None:
        """Look at the upload windows again."""
        with self._changed:
            self._opened = False
            for device in self._devices.values():
                device.due_s = 0.0
            self._changed.notify_all()

    def _add(self, container: Container, found: Contents) -> None:
        device = self._device(found)
        container.device = device
        device.adopt(found)
        reports = [page for page in found.pages if page.stream == TELEMETRY]
        container.waits = {
            (page.stream, page.partition, page.seq)
            for page in found.pages
            if page.stream != TELEMETRY
        }
        container.rows = sum(page.rows for page in found.pages)
        container.report = reports[-1] if reports else None

    def _device(self, found: Contents) -> ForwardedDevice:
        key = (found.device, found.epoch)
        device = self._devices.get(key)
        if device is None:
            device = self._devices[key] = ForwardedDevice(
                found, self._directory, int(self._config["request_bytes"]), jitter
            )
        return device

    def _start_lanes(self) -> None:
        while self._lanes < int(self._config["lanes"]):
            self._lanes += 1
            threading.Thread(target=self._lane, name=f"forward-{self._lanes}", daemon=True).start()

    # lanes -------------------------------------------------------------------------------------

    def _lane(self) -> None:
        config = self._config
        client = CollectorClient(config["url"], {}, config["ca"], config["timeout_s"])
        reader = PageReader()
        while True:
            device, task, headers = self._next()
            client.headers = headers | lost_header(task)
            result = execute(task, client, reader)
            self._done(device, task, result)

    def _next(self) -> tuple[ForwardedDevice, Task, dict[str, str]]:
        """The next task; devices take turns."""
        with self._changed:
            while True:
                now_s = boot_us() / 1e6
                self._opened = self._opened and any(d.pages for d in self._devices.values())
                wait_s = None if self._opened else self._opens_in_s()
                closed_until_s = None if wait_s is None else now_s + wait_s
                wake_s: float | None = None
                for key, device in list(self._devices.items()):
                    if device.due_s <= now_s:
                        task = device.next(now_s, closed_until_s)
                        if task is not None:
                            self._devices.move_to_end(key)
                            self._changed.notify()
                            return device, task, device.headers()
                    wake_s = device.due_s if wake_s is None else min(wake_s, device.due_s)
                left_s = None if wake_s in (None, float("inf")) else max(0.001, wake_s - now_s)
                self._changed.wait(left_s)

    def _done(self, device: ForwardedDevice, task: Task, result: Result) -> None:
        with self._changed:
            slots = device.done(task, result, boot_us() / 1e6)
            if isinstance(result, Unreadable):
                slot = device.slot_of(result.place)
                if slot is not None:
                    self._unreadable(slot, result.detail)
            for slot in slots:
                self._settle(slot)
            status = self._status(device)
            self._changed.notify()
        if status is not None:
            self._send({"acked": [], "links": [status]}, False)

    # containers --------------------------------------------------------------------------------

    def _settle(self, slot: _Slot) -> None:
        """Acknowledge the first containers whose pages the centre has."""
        containers = self._containers.get(slot)
        upto = 0
        while containers:
            seq, container = next(iter(containers.items()))
            if container.waits:
                break
            del containers[seq]
            if container.device is not None:
                container.device.finished(container)
            upto = seq
        if upto:
            self._acked[slot] = upto
            self._send({"acked": [[*slot, upto]]}, False)

    def _unreadable(self, slot: _Slot, detail: str) -> None:
        self._send({"acked": [], "unreadable": [list(slot)]}, True)

    def _status(self, device: ForwardedDevice) -> dict[str, Any] | None:
        """What has changed of a device's state."""
        number = list(self._devices).index((device.name, device.epoch))
        return device.news(number)


def _read(place: PageLocation) -> Contents:
    """What is in a container.  Raises OSError and ValueError."""
    fd = os.open(place.file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        start = os.pread(fd, min(READ_BYTES, place.length), place.offset)
        need = TABLE_AT + table_bytes(start)
        if need > place.length:
            raise ValueError("the table of the container is longer than the container")
        if need > len(start):
            start += os.pread(fd, need - len(start), place.offset + len(start))
        return contents(place.stream, place.partition, place.seq, start)
    finally:
        with contextlib.suppress(OSError):
            os.close(fd)
