"""A real file system filled by another program: the daemon survives and resumes with space."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time

import pytest

from edged.data.schema import Schema
from edged.job.plan import parse_job
from edged.pages.read import read_page
from edged.store import Store
from tests.beat.loop import batch
from tests.beat.support import Daemon, changed, copy_job

DISK_BYTES = 24 << 20
A_MESSAGE = 5_000


@pytest.fixture
def disk(tmp_path):
    """A file system of DISK_BYTES."""
    place = tmp_path / "disk"
    place.mkdir()
    size = f"size={DISK_BYTES}"
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", size, "edged-test", str(place)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip(f"no file system may be mounted here: {made.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(file):
    """Take all that is free, as another program's log does."""
    with file.open("ab", buffering=0) as out, contextlib.suppress(OSError):
        while True:
            out.write(bytes(1 << 12))


def values(store, document):
    """Of all rows in the pages that wait in the store."""
    ((_, _, text),) = parse_job(document).sinks["rows"].schemas()
    schema, found = Schema.from_json(text), []
    with Store.open(store) as opened:
        for ref in opened.pending():
            with open(ref.file, "rb") as file:
                data = os.pread(file.fileno(), ref.length, ref.offset)
            found += read_page(data, schema).column("value").to_pylist()
    return found


def until_it_waits(daemon, producer, sent):
    """Send until the daemon reports a full disk; returns the number of messages."""
    while not daemon.status()["store"]["full"]:
        daemon.check()
        if producer.poll() == sent:
            producer.send(batch(list(range(sent * A_MESSAGE, (sent + 1) * A_MESSAGE))))
            sent += 1
    return sent


def test_a_disk_filled_by_another_program_holds_producers_and_a_restart_and_loses_nothing(
    tmp_path, disk
):
    ballast, store = disk / "ballast", disk / "store"
    document = changed(copy_job(), promises={"latency": "50ms"})
    daemon = Daemon(tmp_path, document, "--store", str(store))
    with daemon, contextlib.closing(daemon.producer(timeout_s=300)) as producer:
        producer.connect()
        fill(ballast)
        sent = until_it_waits(daemon, producer, 0)
        assert "the sources wait until there is room" in daemon.log.read_text()
        ballast.unlink()
        daemon.until(lambda s: producer.poll() == sent and not s["store"]["full"])

        fill(ballast)
        sent = until_it_waits(daemon, producer, sent)
        daemon.kill()
        fill(ballast)
        daemon.restart()
        until_ready_or_waiting(daemon)
        ballast.unlink()
        daemon.ready()
        daemon.until(lambda s: producer.poll() == sent and s["jobs"]["copying"]["state"])
        daemon.stop()
        assert daemon.process.returncode == 0
    assert sorted(values(store, document)) == list(range(sent * A_MESSAGE))


def until_ready_or_waiting(daemon, seconds=300.0):
    """The start has finished or waits: the space that it freed itself may have been enough."""
    deadline = time.monotonic() + seconds
    while "the start waits for room" not in daemon.log.read_text() and daemon.events.empty():
        assert time.monotonic() < deadline
        daemon.check()
        time.sleep(0.05)
