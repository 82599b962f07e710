"""Every bit of what lies on disks, flipped one at a time: found, survived, never other content."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from edged.central import rot
from edged.central.landing_reader import select
from edged.central.schemas import SchemaRegistry
from edged.errors import EdgedError, PageError
from edged.pages.read import read_page
from tests.campaign.oracle import Verdict
from tests.campaign.registry import Run, fault_class
from tests.campaign.stored import STORES, Stored
from tests.spark.landings import READINGS, Landing, readings

ZEROS = bytes(64)
"""Preallocated space, of which a few bytes are taken."""


@fault_class("bit_flips", runs=100_000, computes=True)
def bit_flips(run: Run) -> None:
    """All bits of a page, of two stores and of a landing; `run.runs` bounds their number."""
    place = run.directory / "landing"
    flips = [*_page_flips(), *_landing_flips(place)]
    for made in STORES.values():
        flips += _store_flips(made())
    run.dice.shuffle(flips)
    log = logging.getLogger("edged.central")
    before = log.level
    log.setLevel(logging.CRITICAL)  # a line for each flip
    try:
        for flip in flips[: run.runs]:
            flip(run.outcome.verdict)
            run.counted()
    finally:
        log.setLevel(before)


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


def _store_flips(stored: Stored):
    for path in sorted(stored.disk.names):
        data = bytes(stored.disk.content(path))
        for bit in bits(data):

            def flip(verdict: Verdict, path=path, data=data, bit=bit) -> None:
                twin = stored.disk.after_kill()
                twin.put(path, flipped(data, bit))
                meant = data[bit >> 3] != 0 and stored.is_promised(path, bit >> 3)
                stored.judge(twin, verdict, f"{path} bit {bit}", meant)

            yield flip


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
                    _judge_landing(place, verdict, f"{file.name} bit {bit}", whole)
                finally:
                    file.write_bytes(data)
                    shutil.rmtree(place / "corrupt", ignore_errors=True)

            yield flip


def _judge_landing(place: Path, verdict: Verdict, flip: str, whole: pa.Table) -> None:
    """Readers get the rows as they were, or are told of damage; `check` finds it."""
    if not rot.check(place).findings:
        verdict.corrupted += 1
        verdict.examples.append(f"{flip}: check finds nothing")
    try:
        found, told = _rows(place)
    except EdgedError:
        return
    if not told and not found.equals(whole):
        verdict.corrupted += 1
        verdict.examples.append(f"{flip}: read as if whole")


def _rows(place: Path):
    """All rows, and whether damage was reported."""
    told = []
    source = select(place, "curve@1")
    batches = list(source.batches(lambda _: None, lambda *damage: told.append(damage)))
    return pa.Table.from_batches(batches, source.schema), bool(told)
