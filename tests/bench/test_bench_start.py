"""What `edged bench start` reads of a process."""

import os
import subprocess
import sys

import pytest

from edged.bench.start import memory


def test_memory_is_resident_of_the_process_and_proportional_with_its_children():
    rss, alone = memory(os.getpid())
    held = "x = bytearray(b'1' * 40_000_000); print(1, flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", held], **pipes) as child:
        child.stdout.readline()
        after, together = memory(os.getpid())
        child.stdin.close()
    assert after == pytest.approx(rss, abs=20)
    assert together > alone + 30
