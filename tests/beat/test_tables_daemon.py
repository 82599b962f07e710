"""The example of `docs/jobs.md`: readings over TCP meet a registry that a file holds."""

import json
from pathlib import Path

import pyarrow as pa

from edged.client import Producer
from edged.documents import reader as doc
from tests.beat.support import COMPILED_S, T0, Daemon

ROOT = Path(__file__).parents[2]
ARROW = pa.schema(
    [("device", pa.string()), ("time", pa.timestamp("us", tz="UTC")), ("raw", pa.float64())]
)


def example(tmp_path):
    """The example's document, with its files at places of the test."""
    document = doc.load_document(ROOT / "examples" / "device_registry.toml")
    table = tmp_path / "devices.csv"
    table.write_bytes((ROOT / "examples" / "devices.csv").read_bytes())
    document["tables"]["devices"]["source"]["path"] = str(table)
    document["sinks"]["by_site"]["path"] = str(tmp_path / "by_site")
    return document


def rows_of(directory):
    files = sorted(directory.glob("*.ndjson"))
    return [json.loads(line) for f in files for line in f.read_text().splitlines()]


def job_of(status):
    return status["jobs"]["device_registry"]


def send(daemon, rows):
    """Send readings as one batch and wait for the acknowledgement."""
    where = f"127.0.0.1:{daemon.port}"
    with Producer(where, "readings", ARROW, "p", timeout_s=COMPILED_S) as producer:
        columns = zip(*rows, strict=True)
        arrays = [pa.array(c, f.type) for c, f in zip(columns, ARROW, strict=True)]
        producer.send(pa.record_batch(arrays, schema=ARROW))
        producer.flush()


def test_readings_meet_the_registry_before_and_after_a_restart(tmp_path):
    with Daemon(tmp_path, example(tmp_path)) as daemon:
        daemon.until(lambda s: job_of(s)["streams"]["devices"]["populated"])
        send(daemon, [("pump-1", T0, 4.0), ("fan-1", T0 + 1, 1.5), ("lost", T0 + 2, 1.0)])
        status = daemon.until(lambda s: job_of(s)["sinks"]["by_site"]["rows"] == 3)
        located = job_of(status)["operators"]["located"]
        assert (located["matched"], located["unmatched"]) == (2, 1)
        daemon.kill()
        daemon.restart()
        daemon.ready(300)
        send(daemon, [("pump-2", T0 + 3, 7.0)])
    found = [(r["device"], r["site"], r["value"]) for r in rows_of(tmp_path / "by_site")]
    assert found == [
        ("pump-1", "north", 2.0),
        ("fan-1", "south", 3.0),
        ("lost", None, None),
        ("pump-2", "north", 7.0),
    ]
