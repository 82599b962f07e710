"""Decoding of received bytes into staged rows: kernel passes over all connections of one stream.

The caller fills a table of regions (`kernels.cpu.ipc`) and calls `Decoder.run`.  Afterwards the
table says for each region how many bytes were consumed and which error was found.  Messages before
a refused one are staged; the refused message and everything after it are not.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from edged.data.columns import address
from edged.data.scratch import Scratch
from edged.data.staging import CLOCK_SANE_US, TIME_MAX_US, Staging, StagingTarget
from kernels.cpu import ipc, ipc_columns, ipc_packed
from kernels.cpu.ipc_columns import FACTS, TOTALS

if TYPE_CHECKING:
    from edged.data.workers import Workers
    from edged.sources._tcp_schema import Layout

Int64s = npt.NDArray[np.int64]

MESSAGE_BYTES_MIN = 48
"""Size of the smallest record batch message with at least one column."""
SLOW_LAYOUT = 0
LAYOUTS_MAX = 256
"""Column orders that are kept; a sender with a further one is decoded by pyarrow."""
SPLIT_ROWS = 1 << 17
"""From this many rows on, workers share the copy."""


class Decoder:
    """Decodes into one stream's staging."""

    def __init__(
        self, staging: Staging, message_bytes_max: int, workers: Workers | None = None
    ) -> None:
        self.staging, self._workers = staging, workers
        schema = staging.schema
        self._variable = [i for i, f in enumerate(schema) if f.dtype.variable]
        self._width = max(1, len(self._variable))
        row_bytes = sum((f.dtype.width or 8) + int(f.nullable) for f in schema)
        staged_max = staging.batch_bytes_max
        self.message_bytes_max = min(message_bytes_max, staged_max + ipc.METADATA_MAX)
        self._limits = np.zeros(len(ipc.LIMITS), np.int64)
        self._limits[ipc.LIMITS.message] = self.message_bytes_max
        self._limits[ipc.LIMITS.staged], self._limits[ipc.LIMITS.row] = staged_max, row_bytes
        self._layouts = np.zeros((1, len(schema), len(ipc.LAYOUT)), np.int64)
        self._layouts[0, :, ipc.LAYOUT.ordinal] = -1
        self._known: dict[bytes, int] = {}
        self._scratch = Scratch()
        self._messages = np.empty((0, len(ipc.MESSAGE)), np.int64)
        self._count = 0

    def layout(self, layout: Layout) -> int:
        """The number of a layout for a region; 0 (pyarrow) for layouts beyond LAYOUTS_MAX too."""
        if layout.table is None:
            return SLOW_LAYOUT
        key = layout.table.tobytes()
        if key not in self._known:
            if len(self._layouts) > LAYOUTS_MAX:
                return SLOW_LAYOUT
            self._known[key] = len(self._layouts)
            self._layouts = np.concatenate([self._layouts, layout.table[None]])
        return self._known[key]

    def run(self, regions: Int64s, wall_us: int) -> Int64s:
        """Stage all complete messages of `regions`; returns the messages that pyarrow must decode.

        The caller sets `address` to `slow`; this method sets `seq`.
        """
        producers = self.staging.producers
        regions[:, ipc.REGION.seq] = producers.seq[regions[:, ipc.REGION.producer]]
        most = int(regions[:, ipc.REGION.length].sum()) // MESSAGE_BYTES_MIN + 1
        messages = self._scratch.get("messages", most * len(ipc.MESSAGE), np.int64)
        messages = messages.reshape(most, len(ipc.MESSAGE))
        sizes = self._scratch.get("sizes", most * self._width, np.int64)
        sizes = sizes.reshape(most, self._width)
        count = ipc.scan(regions, self._layouts, self._limits, messages, sizes)
        messages, sizes = messages[:count], sizes[:count]
        if not self._variable:
            sizes[:] = 0
        if count:
            self._stage(regions, messages, sizes, wall_us)
        slow: Int64s = messages[messages[:, ipc.MESSAGE.state] == ipc.SLOW]
        return slow

    def _stage(self, regions: Int64s, messages: Int64s, sizes: Int64s, wall_us: int) -> None:
        staging, count = self.staging, len(messages)
        packed = messages[:, ipc.MESSAGE.state] == ipc.PACKED
        if packed.any():
            unpacked = int(messages[packed, ipc.MESSAGE.unpacked].sum())
            arena = address(self._scratch.get("unpacked", unpacked, np.uint8))
            ipc_packed.unpack(
                messages, count, regions, self._layouts, self._limits, sizes, arena
            )  # fmt: skip
        places = self._scratch.get("places", count * self._width, np.int64)
        places = places.reshape(count, self._width)
        totals = np.zeros(TOTALS.bytes + self._width, np.int64)
        ipc_columns.place(messages, count, sizes, places, totals)
        rows, chunks = int(totals[TOTALS.rows]), int(totals[TOTALS.chunks])
        bytes_each = np.zeros(len(staging.schema), np.int64)
        bytes_each[self._variable] = totals[TOTALS.bytes :][: len(self._variable)]
        to = staging.reserve(rows, bytes_each, chunks)
        self._copy(messages, regions, places, to, rows)
        facts = np.zeros(len(FACTS), np.int64)
        by_wall = wall_us >= CLOCK_SANE_US or not staging.timed
        facts[FACTS.limit] = staging.limit_us(wall_us) if by_wall else TIME_MAX_US
        facts[FACTS.latest], facts[FACTS.ahead] = staging.latest_us, staging.max_ahead_us
        time = staging.time_index
        ipc_columns.admit(messages, count, regions, self._layouts, time, sizes, facts)
        if facts[FACTS.again]:
            ipc_columns.place(messages, count, sizes, places, totals)
            rows = int(totals[TOTALS.rows])
            self._copy(messages, regions, places, to, rows)
        log, producers = to.chunks, staging.producers
        if facts[FACTS.refused]:
            staging.refused_ahead += int(facts[FACTS.refused])
            filtered = messages[messages[:, ipc.MESSAGE.state] == ipc.FILTERED]
            origin = regions[filtered[:, ipc.MESSAGE.region], ipc.REGION.producer]
            refused = filtered[:, ipc.MESSAGE.rows] - filtered[:, ipc.MESSAGE.kept]
            np.add.at(producers.ahead, origin, refused)
        chunks = ipc_columns.finish(
            messages, count, regions, to.row, log.tail, log.producer, log.stop, log.time_min,
            log.time_max, producers.seq, producers.latest_us, producers.ended,
            producers.promised_us, producers.sums,
        )  # fmt: skip
        staging.extend(rows, chunks, int(facts[FACTS.latest]))
        if staging.origins is not None:
            taken = messages[messages[:, ipc.MESSAGE.state] < ipc.DROPPED]
            staging.origins.add(
                regions[taken[:, ipc.MESSAGE.region], ipc.REGION.producer],
                taken[:, ipc.MESSAGE.seq], taken[:, ipc.MESSAGE.watermark],
                taken[:, ipc.MESSAGE.kept],
            )  # fmt: skip

    def _copy(
        self, messages: Int64s, regions: Int64s, places: Int64s, to: StagingTarget, rows: int
    ) -> None:
        rest = (
            regions, self._layouts, self.staging.time_index, places, to.addresses, to.row,
            to.bytes_at, to.times,
        )  # fmt: skip
        if self._workers is None or self._workers.count == 1 or rows < SPLIT_ROWS:
            ipc_columns.copy(messages, 0, len(messages), *rest)
            return
        parts = np.arange(1, self._workers.count) * rows // self._workers.count
        ends = np.cumsum(messages[:, ipc.MESSAGE.kept])
        cuts = [0, *np.searchsorted(ends, parts).tolist(), len(messages)]
        self._workers.run(
            [
                partial(ipc_columns.copy, messages, first, last, *rest)
                for first, last in pairwise(cuts)
                if first < last
            ]
        )


def problem(region: Int64s, staging: Staging, message_bytes_max: int) -> str:
    """The text of a region's error for the peer."""
    error, detail = int(region[ipc.REGION.error]), int(region[ipc.REGION.detail])
    column = staging.schema.names[int(region[ipc.REGION.column])]
    seq = int(region[ipc.REGION.seq])
    texts = {
        ipc.E_MAGIC: "this is not an Arrow IPC stream (a message begins with FF FF FF FF)",
        ipc.E_SIZE: f"a message claims {detail} bytes; at most {message_bytes_max} are accepted",
        ipc.E_METADATA: "a message's metadata is damaged",
        ipc.E_HEADER: f"a message of type {detail} where a record batch was expected",
        ipc.E_VERSION: "an Arrow metadata version other than V4 and V5",
        ipc.E_GAP: f"batch {detail} follows batch {seq}: batches are missing",
        ipc.E_COLUMNS: "a batch has another number of columns than its schema",
        ipc.E_BUFFER: f"column {column}: a buffer lies outside its batch or is too short",
        ipc.E_NULLS: f"column {column} holds nulls but is not nullable",
        ipc.E_OFFSETS: f"column {column}: offsets fall or point outside their data",
        ipc.E_UTF8: f"column {column} holds text that is not UTF-8",
        ipc.E_LENGTH: f"column {column}: its length or null count contradicts the batch's length",
        ipc.E_SEQ: "edged.seq is not a number from 1 to 999999999999999999",
        ipc.E_AFTER_END: "bytes follow the end of the stream",
        ipc.E_WATERMARK: "edged.watermark is not a number of 64 bits",
        ipc.E_SUM: "edged.sum is not 16 hexadecimal digits",
        ipc.E_PACKED: "a compressed buffer is damaged",
        ipc.E_STAGED: f"a batch takes {detail} bytes of memory, more than this stream may hold"
        " at once; send smaller batches",
    }
    return texts[error]
