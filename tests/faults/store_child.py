"""The process that test_store_kill.py kills: prints what the store reported as durable.

It imports once and forks for each run, because importing takes longer than a run.
Lines on stdin: the store's path and a seed.  On stdout: `pid N`, then `commit N`, `ack N`.
"""

from __future__ import annotations

import os
import random
import sys

import numpy as np

from edged.pages.sealed import PageKey, SealedPage
from edged.store import BeatRecord, Store

SEGMENT = 256 << 10


def content(beat: int) -> tuple[bytes, np.ndarray, bytes]:
    """What beat number `beat` holds: facts, input and page; page seq is the beat number."""
    rng = random.Random(beat)
    inputs = np.frombuffer(rng.randbytes(rng.randrange(60_000)), np.uint8)
    return b"facts %d" % beat, inputs, rng.randbytes(rng.randrange(1, 20_000))


def live(path: str, seed: int) -> None:
    rng = random.Random(seed)
    store = Store.open(path, segment_bytes=SEGMENT)
    recovery = store.recover()
    beat = recovery.snapshot.beat if recovery.snapshot else 0
    for record in recovery.records:
        beat = record.number
    acked = 0
    while True:
        beat += 1
        facts, inputs, page = content(beat)
        record = BeatRecord(beat, facts, [inputs], [SealedPage(PageKey("s", 0, beat), page)])
        store.commit(record)
        os.write(1, b"commit %d\n" % beat)
        if rng.random() < 0.2:
            acked = rng.randint(acked, beat)
            os.write(1, b"ack %d\n" % acked)
            store.acked("s", 0, acked)
        if rng.random() < 0.15:
            store.snapshot(beat, b"state %d" % beat, {"beat": np.array([beat])})


def main() -> None:
    for line in sys.stdin:
        path, seed = line.rsplit(" ", 1)
        pid = os.fork()
        if pid == 0:
            live(path, int(seed))
        os.write(1, b"pid %d\n" % pid)
        os.waitpid(pid, 0)
        os.write(1, b"dead\n")


if __name__ == "__main__":
    main()
