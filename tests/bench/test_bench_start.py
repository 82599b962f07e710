"""What `edged bench start` reads of a process."""

import subprocess
import sys

import pytest

from edged.bench.start import memory

HELD = "x = bytearray(b'1' * 40_000_000); print(1, flush=True); input()"
HOLDER = (
    "import subprocess, sys; print(1, flush=True); input(); "
    "subprocess.run([sys.executable, '-c', sys.argv[1]])"
)


def test_memory_is_resident_of_the_process_and_proportional_with_its_children():
    words = [sys.executable, "-c", HOLDER, HELD]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        rss, alone = memory(holder.pid)
        holder.stdin.write(b"\n")
        holder.stdin.flush()
        holder.stdout.readline()
        after, together = memory(holder.pid)
        holder.stdin.write(b"\n")
        holder.stdin.close()
    assert after == pytest.approx(rss, abs=5)
    assert together > alone + 35
