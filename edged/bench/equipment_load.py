"""The load of `edged bench equipment`: `python -m edged.bench.equipment_load CONFIG`, a process.

It sends the records of an Arrow file to each address, on a connection of its own, and ends the
streams.  It begins when the file `begin` is there.  It writes JSON lines to standard output:
`{"ready": true}` once connected, `{"sent": records of all connections, "cpu_s": …}` once all is
acknowledged.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa

from edged.bench.equipment_jobs import STREAM
from edged.client import Producer

BATCH = 4_096
UNACKED_BYTES_MAX = 64 << 20
"""Over all connections."""
PATIENCE_S = 600.0


def main() -> None:
    """Run the load that the configuration file describes."""
    given = json.loads(Path(sys.argv[1]).read_text())
    with pa.memory_map(given["records"]) as file:
        records = pa.ipc.open_file(file).read_all()
        most = max(1 << 20, UNACKED_BYTES_MAX // len(given["targets"]))
        producers = [
            Producer(address, STREAM, records.schema, producer=f"machine-{i}",
                     unacked_bytes_max=most, timeout_s=PATIENCE_S)
            for i, address in enumerate(given["targets"])
        ]  # fmt: skip
        batches = records.to_batches(max_chunksize=BATCH)
        messages = [producers[0].prepare(batch) for batch in batches]
    for producer in producers:
        producer.connect()
    _say({"ready": True})
    while not Path(given["begin"]).exists():
        time.sleep(0.005)
    cpu_s = time.process_time()
    for message in messages:
        for producer in producers:
            producer.send(message)
    with ThreadPoolExecutor(len(producers)) as threads:  # an end waits for a beat of its job
        list(threads.map(Producer.end, producers))
    _say({"sent": len(producers) * records.num_rows, "cpu_s": time.process_time() - cpu_s})


def _say(event: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
