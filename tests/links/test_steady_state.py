"""A chain in steady state allocates no memory for columns: what a beat needs was there before."""

from __future__ import annotations

import tracemalloc

import numpy as np

from edged.bench.relay_packets import PacketTemplate, columns, fill_packets
from edged.data.columns import address
from edged.data.flow import BeatContext, Flow, Link
from edged.data.schema import TYPES, Field, Schema
from edged.data.staging import Staging
from edged.sinks.base import Flush, SinkContext
from edged.sinks.edge import EdgePlan
from edged.sources._tcp_decode import Decoder
from edged.sources._tcp_schema import match
from kernels.cpu import ipc
from tests.links.support import TO
from tests.pages import shapes

SCHEMA = Schema.of(Field(name, TYPES[kind]) for name, kind in columns(50).items())
BATCH, MESSAGES = 1300, 16
ROWS = BATCH * MESSAGES
WARM, BEATS = 12, 12


class Hop:
    """What a relay does with received bytes: it decodes them into staging and writes a link's
    messages of them."""

    def __init__(self) -> None:
        self.staging = Staging("r", SCHEMA, "ts", 64 << 20, 10**15)
        self.decoder = Decoder(self.staging, 1 << 30)
        document = {"to": TO[:1], "buffer": "256KiB", "compress": "never"}
        plan = EdgePlan.parse("sinks.out", "out", document, Link(SCHEMA, "ts"))
        self.sink = plan.in_job("job").build(SinkContext("dev", 9, "", shapes.ONE))
        self.template = PacketTemplate(50, BATCH, 0)
        self.received = np.empty(MESSAGES * self.template.bytes.size, np.uint8)
        self.regions = np.zeros((1, len(ipc.REGION)), np.int64)
        self.layout = self.decoder.layout(match(SCHEMA.to_arrow(), SCHEMA, "r"))

    def beat(self, number: int) -> int:
        """A beat; returns the bytes of its pages."""
        t = self.template
        at = np.array([t.digits_at, t.seq_at, t.ts_at], np.int64)
        first = number * MESSAGES
        fill_packets(self.received, t.bytes, MESSAGES, first + 1, at, BATCH, first * BATCH + 1, 7)
        region = self.regions[0]
        region[:] = 0
        region[ipc.REGION.address] = address(self.received)
        region[ipc.REGION.length] = self.received.size
        region[ipc.REGION.layout] = self.layout
        self.decoder.run(self.regions, 1_700_000_000_000_000)
        assert region[ipc.REGION.consumed] == self.received.size and self.staging.rows == ROWS
        beat = BeatContext(number, 0, shapes.ONE)
        self.sink.write(beat, Flow(self.staging.pending(), number))
        sealed = sum(len(page.data) for page in self.sink.seal(beat, Flush.ALL))
        self.staging.consume(len(self.staging.chunks()), ROWS)
        self.staging.mark_logged()
        return sealed


def _most_allocated(hop: Hop) -> int:
    """The most bytes that are allocated at any time in some beats, above what there was before."""
    for number in range(WARM):
        hop.beat(number)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(WARM, WARM + BEATS):
            assert hop.beat(number) > 50 * ROWS
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def test_a_beat_allocates_no_memory_for_columns(monkeypatch):
    column = 4 * ROWS
    assert _most_allocated(Hop()) < column, "less than one column of a beat's rows"
    monkeypatch.setattr(Staging, "reuse", False)
    assert _most_allocated(Hop()) > 50 * ROWS, "the measurement sees allocations"
