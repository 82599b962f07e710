"""The sink `packet_tally` of the relay benchmarks; only their daemons know it.

[sinks.seen]
type = "packet_tally"
input = "r"
file = "/path/of/the/tally"
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edged.bench.relay_tally import Tally, tally_packets
from edged.plugin import (
    BeatContext,
    Flow,
    Flush,
    Link,
    PageKey,
    SealedPage,
    Sink,
    SinkContext,
    SinkPlan,
    State,
    read,
    sink,
)


class PacketTally(Sink):
    """Counts packets in its file, and sleeps for each as the file says.  Without numbers it counts
    rows."""

    def __init__(self, file: str) -> None:
        self._tally = Tally(Path(file))

    def write(self, beat: BeatContext, flow: Flow) -> None:
        """Count."""
        batch = flow.batch
        if not batch.rows:
            return
        sleep_us = self._tally.sleep_us
        if sleep_us:
            time.sleep(batch.rows * sleep_us / 1e6)
        if "seq" not in batch.schema:
            self._tally.count(batch.rows)
            return
        columns = (batch[name].values for name in ("seq", "sender", "ts"))
        tally_packets(self._tally.cells, *columns, time.time_ns() // 1000)

    def seal(self, beat: BeatContext, flush: Flush) -> list[SealedPage]:
        """It has no pages."""
        return []

    def open_rows(self) -> int:
        """None."""
        return 0

    def save(self) -> State:
        """Nothing: the file has it."""
        return {"none": np.zeros(0, np.int64)}

    def load(self, state: State) -> None:
        """Nothing."""

    def skip(self, beat: int, keys: Sequence[PageKey]) -> None:
        """Nothing."""


@sink("packet_tally")
@dataclass(frozen=True)
class PacketTallyPlan(SinkPlan):
    """A checked `packet_tally` sink."""

    keys = frozenset({"file"})
    without_log = True

    id: str
    input: Link
    file: str

    @classmethod
    def parse(cls, path: str, id: str, document: Mapping[str, Any], input: Link) -> PacketTallyPlan:
        """Check `document`."""
        return cls(id, input, read.text(path, document, "file"))

    def build(self, context: SinkContext) -> PacketTally:
        """The running sink."""
        return PacketTally(self.file)

    def describe(self) -> list[str]:
        """Its file."""
        return [f"counts packets in {self.file}"]

    def signature(self) -> str:
        """It has no state."""
        return self.kind
