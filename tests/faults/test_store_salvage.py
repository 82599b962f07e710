"""A real daemon and a real collector: damage of the store between two starts ends nothing."""

from __future__ import annotations

import contextlib
import random

import pytest

from edged.data.schema import Schema
from edged.job.plan import parse_job
from edged.pages.read import read_page
from edged.store.records import ALIGN
from tests.beat.loop import batch
from tests.beat.support import Daemon, changed, copy_job
from tests.central.support import by_partition, collecting

STORE_BYTES, MESSAGE = 16 << 20, 5_000
JOB = changed(copy_job(), promises={"latency": "20ms", "memory": "2MiB"})


def flip(path, at):
    with path.open("r+b") as file:
        file.seek(at)
        old = file.read(1)
        file.seek(at)
        file.write(bytes([old[0] ^ 16]))


def records(path):
    """Where the records of a segment begin; behind them are leftovers of the file's earlier use."""
    data, at, starts = path.read_bytes(), ALIGN, []
    own = int(path.stem).to_bytes(8, "little")
    while data[at : at + 4] == b"EdgR" and data[at + 8 : at + 16] == own:
        starts.append(at)
        at += int.from_bytes(data[at + 48 :][:8], "little")
    return starts


def damage_log(store):
    """The header of a record that others follow in its segment."""
    paths = sorted((store / "log").glob("*.log"))
    path, starts = [(p, records(p)) for p in paths if len(records(p)) > 1][-1]
    flip(path, starts[len(starts) // 2 - 1] + 20)
    return "log record"


def damage_snapshot(store):
    """The facts of all snapshots."""
    for path in (store / "snapshots").glob("*.snap"):
        head = path.read_bytes()[:64]
        flip(path, 64 + int.from_bytes(head[24:32], "little") // 64 * 64 + 64 + 5)
    return "snapshot"


def damage_page(store):
    """A page in the middle of a spool file."""
    path = sorted((store / "spool").glob("*.pages"))[0]
    data = path.read_bytes()
    flip(path, data.index(b"EDGP", len(data) // 2) + 400)
    return "page"


def lose_spool_file(store):
    """A spool file that is gone; later ones are there."""
    files = sorted((store / "spool").glob("*.pages"))
    assert len(files) > 1
    files[1].unlink()
    return "spool file"


def values(landing):
    """All values that have landed, by page number."""
    ((_, _, text),) = parse_job(JOB).sinks["rows"].schemas()
    pages = next((p for key, p in by_partition(landing).items() if key[1] == "rows"), {})
    schema = Schema.from_json(text)
    return {n: read_page(page, schema).column("value").to_pylist() for n, page in pages.items()}


@pytest.mark.parametrize("damage", [damage_log, damage_page, damage_snapshot, lose_spool_file])
def test_salvage_by_a_daemon_delivers_what_is_whole_and_tells_of_the_rest(tmp_path, damage):
    rng, given = random.Random(1), []
    landing = tmp_path / "landing"
    with collecting(landing) as collector:
        collector.kill()
        arguments = ("--store-max", str(STORE_BYTES), "--uplink", collector.url)
        daemon = Daemon(tmp_path, JOB, *arguments)
        with daemon, contextlib.closing(daemon.producer(timeout_s=300)) as producer:

            def send():
                given.append([rng.getrandbits(62) for _ in range(MESSAGE)])
                producer.send(batch(given[-1]))
                producer.flush()

            while len(given) < 20 or len(list((daemon.store / "spool").glob("*.pages"))) < 2:
                send()
            for _ in range(8):
                send()
            acked = producer.acked
            daemon.kill()
            kind = damage(daemon.store)
            daemon.restart()
            daemon.ready()
            with collecting(landing, port=collector.port):
                send()
                status = daemon.until(lambda s: s["store"]["backlog_pages"] == 0)
            status = daemon.status()
            assert kind in {found["kind"] for found in status["store"]["salvaged"]}
            assert status["events"]["store.salvaged"] == status["store"]["salvaged_count"] > 0
            gaps = status["store"]["gaps"]["newest"]
            assert producer.acked == producer.sent == acked + 1
    landed = values(landing)
    found = [value for seq in sorted(landed) for value in landed[seq]]
    assert len(set(found)) == len(found), "no row lands twice"
    assert set(given[-1]) <= set(found), "the device goes on"
    pages = {
        n for g in gaps if g["partition"] is not None for n in range(g["first"], g["last"] + 1)
    }
    assert set(range(1, max(landed) + 1)) - set(landed) <= pages
    batches = {n for g in gaps if g["partition"] is None for n in range(g["first"], g["last"] + 1)}
    here = set(found)
    lost = {n for n, message in enumerate(given, 1) if not set(message) <= here}
    assert lost <= batches or pages - set(landed)
    assert len(lost) < len(given) // 2
