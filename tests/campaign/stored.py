"""Small stores on a simulated disk with all that a store holds, and their judge."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from edged.documents import checked_json
from edged.errors import StoreError
from edged.pages.sealed import PageKey, SealedPage
from edged.platform.disk import replace_file
from edged.store import BeatRecord, Store
from edged.store.gaps import DROPPED, Gap
from edged.store.inspection import POLICY, examine
from tests.campaign.oracle import Verdict
from tests.central.support import make_page
from tests.store.simdisk import SimDisk

PLACE = "/store"
STREAM, BEATS, ACKED = "power", 8, 1
BLOCK = 4096


@dataclass
class Stored:
    """A store of BEATS beats with a page each, of which page ACKED is acked."""

    disk: SimDisk
    segment_bytes: int
    epoch: int
    snapshots: tuple[int, ...]

    def is_promised(self, path: str, at: int) -> bool:
        """Whether a byte is of what is promised: not of the lock, of a spare file, of the version
        that wrote the identity, and not of the last record, which looks torn when it is damaged."""
        if path == f"{PLACE}/identity":
            return at < self.disk.content(path).index(b"edged") - 1
        if not path.startswith(f"{PLACE}/log/"):
            return path != f"{PLACE}/lock"
        if path.endswith(".spare"):
            return False
        logs = sorted(p for p in self.disk.names if p.endswith(".log"))
        data = bytes(self.disk.content(path))
        last = max(i for i in range(0, len(data), BLOCK) if data[i : i + 4] != bytes(4))
        return path != logs[-1] or not last <= at < last + BLOCK

    def page(self, beat: int) -> bytes:
        """The page of a beat."""
        return make_page(beat, epoch=self.epoch, stream=STREAM)

    def judge(self, disk: SimDisk, verdict: Verdict, flip: str, promised: bool) -> None:
        """Damage is found by `check`; a start succeeds; what was acknowledged is there or reported.

        `promised`: the damage is in bytes that a promise is about.
        """
        wrong: list[str] = []
        try:
            found = examine(PLACE, disk.after_kill(), segment_bytes=self.segment_bytes).findings
            if promised and not found:
                wrong.append("check finds nothing")
            Store.open(PLACE, disk, segment_bytes=self.segment_bytes).close()  # interrupted
            with Store.open(PLACE, disk, segment_bytes=self.segment_bytes) as store:
                self._judge(disk, store, verdict, promised, wrong)
        except StoreError as problem:
            wrong.append(f"no start: {problem}")
        verdict.corrupted += len(wrong)
        verdict.examples += [f"{flip}: {text}" for text in wrong]

    def _judge(self, disk, store, verdict: Verdict, promised: bool, wrong: list[str]) -> None:
        if store.device_epoch != self.epoch:
            wrong.append("another epoch")
        store.check_pages()
        recovery = store.recover()
        base = recovery.snapshot.beat if recovery.snapshot else 0
        lost = {n for gap in store.gaps.newest if gap.stream == STREAM
                for n in range(gap.first, gap.last + 1)}  # fmt: skip
        if store.salvaged:  # then the replay, which knows the newest numbers, records these
            for first, until in store.missing_pages(STREAM, 0, BEATS):
                lost |= set(range(first, until + 1))
        seen, remade, holes = set(), set(), [recovery.end]
        for record in recovery.records:
            if record.facts != b"facts %d" % record.number:
                wrong.append(f"beat {record.number} has other facts")
            verdict.duplicates += record.number in seen
            seen.add(record.number)
            remade |= {key.seq for key in record.lost}
            holes.append(record.hole)
        beats = {n for hole in holes if hole for n in range(hole.after + 1, hole.before)}
        delivered = self._delivered(disk, store, wrong)
        last = BEATS if promised else BEATS - 1
        missing = set(range(base + 1, last + 1)) - seen - beats
        missing |= set(range(ACKED + 1, last + 1)) - delivered - lost - beats - remade
        verdict.missing += len(missing)
        verdict.gaps += len(lost | beats)
        wrong += [f"beats {sorted(missing)} are missing"] if missing else []

    def _delivered(self, disk, store, wrong: list[str]) -> set[int]:
        found = set()
        for ref in store.pending():
            with contextlib.closing(disk.open(ref.file)) as file:
                data = file.pread(ref.length, ref.offset)
            if data != self.page(ref.key.seq):
                wrong.append(f"page {ref.key.seq} has another content")
            found.add(ref.key.seq)
        return found


def _made(segment_bytes: int, snapshots: tuple[int, ...]) -> Stored:
    disk = SimDisk()
    with Store.open(PLACE, disk, segment_bytes=segment_bytes) as store:
        made = Stored(disk, segment_bytes, store.device_epoch, snapshots)
        for beat in range(1, BEATS + 1):
            inputs: list[Any] = [np.full(40, beat, "u1")]
            page = SealedPage(PageKey(STREAM, 0, beat), made.page(beat))
            store.commit(BeatRecord(beat, b"facts %d" % beat, inputs, [page]))
            if beat == snapshots[0]:
                store.acked(STREAM, 0, ACKED)
                store.gaps.add([Gap(DROPPED, "other", 1, 2, 0)])
                store.shelve(("job", beat), b"{}", {"x": np.arange(3)})
            if beat in snapshots:
                store.snapshot(beat, b"state %d" % beat, {"n": np.arange(3), "m": np.arange(5)})
    policy = {"policy": "fixed", "settings": {}, "over": {"policy": "hands_off", "settings": {}}}
    replace_file(disk, f"{PLACE}/{POLICY}", [checked_json.pack(policy)])
    return made


STORES = {
    "spooled": lambda: _made(2 * BLOCK, (5,)),
    "logged": lambda: _made(64 << 10, (3, 6)),
}
"""One record a segment, and pages in the spool; one segment, and two snapshots."""
