"""The queue of contacts between a collector's answers and its view of the fleet.

One thread takes them in order, GATHER_S after the first one came, so that it wakes for many at a
time.  A device waits once: a later contact replaces a waiting one, and keeps its report if it has
none itself.  At most WAITING_MAX devices wait; a contact beyond is
dropped and counted, because the next one says more.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable

from edged.pages.format import Header

WAITING_MAX = 4096
GATHER_S = 0.2
CLOSE_S = 0.5
"""How long `close` lets the thread go on."""
Report = tuple[Header, memoryview]
_LOG = logging.getLogger(__name__)


class ReportQueue:
    """Calls `on_contact(device, report or None, now_us)` on a thread.  `add` is thread-safe."""

    def __init__(self, on_contact: Callable[[str, Report | None, int], None]) -> None:
        self.dropped = 0
        """Contacts for which there was no room."""
        self._on_contact = on_contact
        self._waiting: OrderedDict[str, tuple[Report | None, int]] = OrderedDict()
        self._changed = threading.Condition()
        self._closing = self._stopped = False
        self._thread = threading.Thread(target=self._run, name="fleet", daemon=True)
        self._thread.start()

    def add(self, device: str, report: Report | None, now_us: int) -> None:
        """Queue a contact; never waits."""
        with self._changed:
            earlier = self._waiting.get(device)
            if earlier is None and len(self._waiting) >= WAITING_MAX:
                self.dropped += 1
                return
            kept = report if report is not None or earlier is None else earlier[0]
            self._waiting[device] = (kept, now_us)
            if len(self._waiting) in (1, WAITING_MAX // 2):
                self._changed.notify()

    def close(self) -> None:
        """End the thread, at the latest CLOSE_S and one contact later; what still waits is dropped.
        A device's next contact, with any collector, makes up for it."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(CLOSE_S)
        self._stopped = True

    def _run(self) -> None:
        while not self._stopped:
            with self._changed:
                if not self._waiting:
                    self._changed.wait_for(lambda: self._waiting or self._closing)
                    self._changed.wait_for(self._is_due, GATHER_S)
                if not self._waiting:
                    return
                device, (report, now_us) = self._waiting.popitem(last=False)
            try:
                self._on_contact(device, report, now_us)
            except Exception:
                _LOG.exception("the fleet's record of %s was not updated", device)

    def _is_due(self) -> bool:
        return self._closing or len(self._waiting) >= WAITING_MAX // 2
