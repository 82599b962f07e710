"""Power cuts of a simulated disk that keeps, drops or trashes each sector that was not synced."""

from __future__ import annotations

import random

import numpy as np

from edged.errors import StoreError
from edged.pages.sealed import PageKey, SealedPage
from edged.platform.disk import flat_view
from edged.store import BeatRecord, Store
from tests.campaign.oracle import Verdict
from tests.campaign.registry import Run, fault_class
from tests.store.simdisk import PowerCut, SimDisk

SEGMENT_BYTES = 64 << 10
LIVES = 10
"""Power cuts of one disk before the next begins."""


def content(beat: int) -> tuple[bytes, bytes, bytes]:
    """Facts, inputs and page of a beat: a function of its number, which is the id."""
    dice = random.Random(beat)
    return (
        b"facts %d" % beat,
        dice.randbytes(dice.randrange(12_000)),
        dice.randbytes(dice.randrange(1, 6_000)),
    )


class Device:
    """A store over many power cuts, and what it has acknowledged."""

    def __init__(self, seed: int, verdict: Verdict) -> None:
        self.dice, self.verdict = random.Random(seed), verdict
        self.disk = SimDisk()
        self.committed = self.acked = 0

    def live(self) -> None:
        """Open, compare, and work until the power is cut."""
        self.disk.cut_at = self.disk.operations + self.dice.randint(1, 90)
        try:
            with Store.open("/store", self.disk, segment_bytes=SEGMENT_BYTES) as store:
                self._work(store, self._compare(store))
        except PowerCut:
            pass
        self.disk = self.disk.after_power_cut(self.dice)

    def last_look(self) -> None:
        """Open once more, without a cut."""
        self.disk.cut_at = None
        with Store.open("/store", self.disk, segment_bytes=SEGMENT_BYTES) as store:
            self._compare(store)

    def _work(self, store: Store, beat: int) -> None:
        while True:
            beat += 1
            facts, inputs, page = content(beat)
            store.commit(
                BeatRecord(
                    beat, facts, [np.frombuffer(inputs, np.uint8)],
                    [SealedPage(PageKey("s", 0, beat), page)],
                )
            )  # fmt: skip
            self.committed = beat
            if self.dice.random() < 0.2:
                self.acked = self.dice.randint(self.acked, beat)
                store.acked("s", 0, self.acked)
            if self.dice.random() < 0.15:
                store.snapshot(beat, b"state %d" % beat, {"beat": np.array([beat])})

    def _compare(self, store: Store) -> int:
        """Count what is wrong in a store that was opened; returns its newest beat."""
        recovery, verdict = store.recover(), self.verdict
        newest = recovery.snapshot.beat if recovery.snapshot else 0
        if recovery.snapshot and recovery.snapshot.facts != b"state %d" % newest:
            verdict.corrupted += 1
        for record in recovery.records:
            verdict.reordered += record.number != newest + 1
            newest = record.number
            facts, inputs, page = content(newest)
            same = record.facts == facts and [p.data for p in record.pages] == [page]
            same = same and b"".join(bytes(flat_view(b)) for b in record.inputs) == inputs
            verdict.corrupted += not same
        verdict.missing += max(0, self.committed - newest)
        verdict.corrupted += newest > self.committed + 1
        found = [ref.key.seq for ref in store.pending()]
        verdict.duplicates += len(found) - len(set(found))
        verdict.reordered += found != sorted(found)
        verdict.missing += len(set(range(self.acked + 1, newest + 1)) - set(found))
        for ref in store.pending():
            data = self.disk.content(ref.file)[ref.offset : ref.offset + ref.length]
            verdict.corrupted += bytes(data) != content(ref.key.seq)[2]
        verdict.landed += newest
        self.committed = newest
        return newest


@fault_class("torn_sectors", runs=2000, computes=True)
def torn_sectors(run: Run) -> None:
    """One run is one power cut at a random operation of the store, openings included."""
    for number in range(-(-run.runs // LIVES)):
        device = Device(run.dice.randrange(1 << 31), run.outcome.verdict)
        try:
            for _ in range(LIVES):
                device.live()
                run.counted()
            device.last_look()
        except StoreError as problem:
            run.outcome.problems.append(f"disk {number}: the store does not open: {problem}")
