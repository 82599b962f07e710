"""Every bit of what lies on disks, flipped one at a time: found, and never another content."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from edged.central.landing_reader import select
from edged.central.schemas import SchemaRegistry
from edged.errors import EdgedError, PageError, StoreError
from edged.pages.read import read_page
from edged.pages.sealed import PageKey, SealedPage
from edged.store import BeatRecord, Store
from tests.campaign.oracle import Verdict
from tests.campaign.registry import Run, fault_class
from tests.spark.landings import READINGS, Landing, readings
from tests.store.simdisk import SimDisk

SEGMENT_BYTES = 64 << 10
BEATS, SPOOLED = 4, 2
ZEROS = bytes(64)
"""Preallocated space, of which a few bytes are taken."""


@fault_class("bit_flips", runs=40_000, computes=True)
def bit_flips(run: Run) -> None:
    """`run.runs` bounds the flips; each kind of file is taken whole, one after the other."""
    logging.getLogger("edged.central").setLevel(logging.CRITICAL)  # a line for each flip
    place = run.directory / "landing"
    flips = [*_store_flips(), *_page_flips(), *_landing_flips(place)]
    run.dice.shuffle(flips)
    for flip in flips[: run.runs]:
        flip(run.outcome.verdict)
        run.counted()


def bits(data: bytes) -> Iterator[int]:
    """The numbers of all bits, without those of long runs of zeros."""
    for at in range(len(data)):
        if data[at : at + 64] != ZEROS[: len(data) - at] or at % 64 == 0:
            yield from range(8 * at, 8 * at + 8)


def flipped(data: bytes, bit: int) -> bytes:
    """The bytes with one bit changed."""
    changed = bytearray(data)
    changed[bit >> 3] ^= 1 << (bit & 7)
    return bytes(changed)


# A page ----------------------------------------------------------------------------------------


def _page_flips():
    page = readings(1, n=8)
    for bit in bits(page):

        def flip(verdict: Verdict, bit=bit) -> None:
            try:
                read_page(flipped(page, bit), READINGS)
            except PageError:
                return
            verdict.corrupted += 1

        yield flip


# The store -------------------------------------------------------------------------------------


def content(beat: int) -> tuple[bytes, bytes, bytes]:
    """Facts, inputs and page of a beat."""
    return b"facts %d" % beat, b"input %d" % beat * 3, b"page %d " % beat * 5


def _store() -> SimDisk:
    """A store with a snapshot, pages in the spool, and beats in the log."""
    disk = SimDisk()
    with Store.open("/store", disk, segment_bytes=SEGMENT_BYTES) as store:
        for beat in range(1, BEATS + 1):
            facts, inputs, page = content(beat)
            pages = [SealedPage(PageKey("s", 0, beat), page)]
            store.commit(BeatRecord(beat, facts, [np.frombuffer(inputs, np.uint8)], pages))
            if beat == SPOOLED:
                store.snapshot(beat, b"state", {"n": np.arange(3)})
    return disk


def _store_flips():
    disk = _store()
    for path in sorted(disk.names):
        data = bytes(disk.content(path))
        for bit in bits(data):

            def flip(verdict: Verdict, path=path, data=data, bit=bit) -> None:
                twin = disk.after_kill()
                twin.put(path, flipped(data, bit))
                _judge_store(twin, verdict, path, bit)

            yield flip


def _judge_store(disk: SimDisk, verdict: Verdict, path: str, bit: int) -> None:
    """The store names the damage, or everything is there but what it reports.

    A bit of the log's last record looks like a torn write, which is cut off.
    """
    try:
        with Store.open("/store", disk, segment_bytes=SEGMENT_BYTES) as store:
            recovery = store.recover()
            seen = {}
            for record in recovery.records:
                facts, _, page = content(record.number)
                same = record.facts == facts and [p.data for p in record.pages] == [page]
                verdict.corrupted += not same
                verdict.duplicates += record.number in seen
                seen[record.number] = True
            base = recovery.snapshot.beat if recovery.snapshot else 0
            reported = {n for gap in store.gaps.newest for n in range(gap.first, gap.last + 1)}
            needed = set(range(base + 1, BEATS)) - seen.keys() - reported
            pending = {ref.key.seq for ref in store.pending()}
            missing = needed | (set(range(1, BEATS)) - pending - reported)
            verdict.gaps += len(reported)
            verdict.missing += len(missing)
            if missing:
                verdict.examples.append(f"{path} bit {bit}: beats {sorted(missing)}")
    except StoreError:
        return


# The landing -----------------------------------------------------------------------------------


def _landing_flips(place: Path):
    made = Landing(place)
    SchemaRegistry(place).register("curve", 1, READINGS.to_json())
    made.land([readings(seq, n=2) for seq in (1, 2)])
    made.close()
    whole, _ = _rows(place)
    files = [p for p in sorted(place.rglob("*")) if p.is_file()]
    for file in files:
        data = file.read_bytes()
        for bit in bits(data):

            def flip(verdict: Verdict, file=file, data=data, bit=bit) -> None:
                file.write_bytes(flipped(data, bit))
                try:
                    found, told = _rows(place)
                    if not told and not found.equals(whole):
                        verdict.corrupted += 1
                        verdict.examples.append(f"{file.name} bit {bit}: read as if whole")
                except EdgedError:
                    pass
                finally:
                    file.write_bytes(data)
                    shutil.rmtree(place / "corrupt", ignore_errors=True)

            yield flip


def _rows(place: Path):
    """All rows, and whether damage was reported."""
    told = []
    source = select(place, "curve@1")
    batches = list(source.batches(lambda _: None, lambda *damage: told.append(damage)))
    return pa.Table.from_batches(batches, source.schema), bool(told)
