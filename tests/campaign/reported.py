"""Reported losses as ids: the gaps of a store, and the rows that lay in them.

A gap of batches names its rows.  A gap of pages names numbers of a stream and partition.  The rows
of a producer are in one partition and in order, so those of lost pages lie between the rows that
landed before the gap and those that landed after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from tests.campaign import oracle

END = 1 << 62
"""Above all ids of a producer."""


def lost_ids(landing, acked: Mapping, gaps: Iterable[dict]) -> dict[str, np.ndarray]:
    """The ids that gaps cover, by stream of pages."""
    lost: dict[str, list[np.ndarray]] = {pages: [] for pages in (*oracle.PAGES, oracle.PAIRS)}
    gaps = list(gaps)
    for stream in {g["stream"] for g in gaps if g["partition"] is not None} & lost.keys():
        found = oracle.read(landing, stream, metadata=True).table
        for gap in (g for g in gaps if g["stream"] == stream):
            lost[stream] += _between(found, gap, acked)
    for gap in (g for g in gaps if g["partition"] is None and g["producer"]):
        batches = oracle.ids(int(gap["producer"][1:]), gap["first"], gap["last"])
        for pages, stream in (*oracle.PAGES.items(), (oracle.PAIRS, "a"), (oracle.PAIRS, "b")):
            if stream == gap["stream"]:
                lost[pages].append(batches)
    return {pages: np.concatenate([*parts, np.empty(0, np.int64)]) for pages, parts in lost.items()}


def _between(found, gap: dict, acked: Mapping) -> Iterable[np.ndarray]:
    """The ids of each producer that lie between the neighbours of a gap of pages."""
    partitions = found.column("_partition").to_numpy()
    seqs, ids = found.column("_seq").to_numpy(), found.column("id").to_numpy()
    for number in {p for _, p in acked}:
        own = ids >> 48 == number
        elsewhere = own & (partitions != gap["partition"])
        if elsewhere.any():
            continue
        before = ids[own & (seqs < gap["first"])].max(initial=-1)
        after = ids[own & (seqs > gap["last"])].min(initial=END)
        last = max(batch for (_, p), batch in acked.items() if p == number)
        mine = oracle.ids(number, 1, last)
        yield mine[(mine > before) & (mine < after)]
