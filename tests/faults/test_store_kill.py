"""kill -9 at random moments: what was reported as committed is there, once, byte for byte."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from edged.platform.disk import flat_view
from edged.store import Store
from tests.faults.store_child import SEGMENT, content

KILLS = 60


def one_life(zygote: subprocess.Popen, path: Path, seed: int, rng: random.Random) -> list[str]:
    """Start a process and kill it, while it opens the store or among its first beats.

    Returns the lines that it wrote.
    """
    zygote.stdin.write(f"{path} {seed}\n")
    zygote.stdin.flush()
    lines = []
    pid = 0
    while not pid:
        line = zygote.stdout.readline()
        lines.append(line)
        if line.startswith("pid "):
            pid = int(line.split()[1])
    commits = rng.choice([0, 1, 2, 5, 9])
    while commits:
        lines.append(zygote.stdout.readline())
        commits -= lines[-1].startswith("commit ")
    time.sleep(rng.random() * 0.02)
    os.kill(pid, signal.SIGKILL)
    while lines[-1] != "dead\n":
        lines.append(zygote.stdout.readline())
    return [line.strip() for line in lines]


def test_sixty_kills_lose_nothing_repeat_nothing_and_invent_nothing(tmp_path):
    path, rng = tmp_path / "store", random.Random(20)
    committed = acked = 0
    code = [sys.executable, "-m", "tests.faults.store_child"]
    with subprocess.Popen(
        code, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as zygote:
        for life in range(KILLS):
            for line in one_life(zygote, path, life, rng):
                word, _, number = line.partition(" ")
                if word == "commit":
                    assert int(number) == committed + 1 or int(number) == committed + 2
                    committed = int(number)
                elif word == "ack":
                    acked = max(acked, int(number))
            committed = check(path, committed, acked)
        zygote.stdin.close()
    assert committed > 2 * KILLS


def check(path: Path, committed: int, acked: int) -> int:
    """Everything committed is there, and at most the one beat that was in flight beside it."""
    with Store.open(path, segment_bytes=SEGMENT) as store:
        recovery = store.recover()
        base = recovery.snapshot.beat if recovery.snapshot else 0
        if recovery.snapshot:
            assert recovery.snapshot.facts == b"state %d" % base
            assert recovery.snapshot.arrays["beat"].tolist() == [base]
        newest = base
        for record in recovery.records:
            assert record.number == newest + 1
            newest = record.number
            facts, inputs, page = content(newest)
            assert record.facts == facts
            assert [bytes(flat_view(b)) for b in record.inputs] == [inputs.tobytes()]
            assert [p.data for p in record.pages] == [page]
        assert committed <= newest <= committed + 1
        seqs = []
        for ref in store.pending():
            seqs.append(ref.key.seq)
            with Path(ref.file).open("rb") as f:
                f.seek(ref.offset)
                assert f.read(ref.length) == content(ref.key.seq)[2]
        assert seqs == sorted(set(seqs))
        assert set(range(acked + 1, newest + 1)) <= set(seqs)
        assert all(seq <= newest for seq in seqs)
    return newest
