"""An idle daemon with an open link sleeps."""

from __future__ import annotations

import time
from pathlib import Path

import psutil

from tests.links.chain import Hop, Last, hop_job, rows

SECONDS = 5
SWITCHES_PER_S_MAX = 10


def switches(pid):
    """Context switches so far of all threads of a process and its children."""
    total = 0
    for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
        for task in Path(f"/proc/{process.pid}/task").iterdir():
            lines = (task / "status").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)
    return total


def test_an_idle_daemon_with_an_open_edge_link_makes_few_switches(tmp_path):
    last = Last(tmp_path / "last")
    with last, Hop(tmp_path / "hop", hop_job([last.address])) as hop, hop.producer() as producer:
        producer.send(rows(range(100)))
        producer.flush()
        last.until(lambda _: len(last.values()) == 100)
        hop.until(lambda _: hop.links()[0]["in_flight_bytes"] == 0)
        found = []
        for _ in range(6):  # what ends the work of before may still go on
            before = switches(hop.process.pid)
            time.sleep(SECONDS)
            found.append((switches(hop.process.pid) - before) / SECONDS)
            if found[-1] <= SWITCHES_PER_S_MAX:
                return
        raise AssertionError(f"switches per second: {found}")
