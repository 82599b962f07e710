"""Producers in a process of their own: `python -m tests.system.producers CONFIG.json`.

Each producer is a thread that sends one batch every `period_s`.  Its rows are a function of the
producer's number and the batch's (`rows`): a restarted process continues from the daemon's store,
and the test can compute every row.  Each committed number is appended to the journal at once, as a
line of JSON `{"producer": …, "acked": …}`.  SIGUSR1 ends the streams; when all ends are committed,
the process prints `{"ended": {producer: batches}}`.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from edged.client import Producer

START_US = 1_704_067_200_000_000
LATENESS_US = 50_000
BATCH_US = 100_000
"""Event time of one batch."""
KEYS = 20_000
TIMESTAMP = pa.timestamp("us", tz="UTC")
A = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("key", pa.int32(), nullable=False),
        pa.field("time", TIMESTAMP, nullable=False),
        pa.field("note", pa.string()),
    ]
)
SCHEMAS = {"a": A, "b": pa.schema(list(A)[:3])}


def rows(stream, number, seq, count):
    """Batch `seq` of producer `number`: unique ids, times out of order within the lateness."""
    ids = (number << 40) + (seq << 16) + np.arange(count)
    dice = np.random.default_rng([number, seq])
    due = START_US + (seq - 1) * BATCH_US + np.arange(count) * BATCH_US // count
    columns = [
        pa.array(ids),
        pa.array(dice.integers(0, KEYS, count, dtype=np.int32)),
        pa.array(due - dice.integers(0, LATENESS_US, count)).cast(TIMESTAMP),
    ]
    if stream == "a":
        columns.append(pa.array([None if i % 5 == 0 else f"note {i}" for i in ids.tolist()]))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMAS[stream])


def all_rows(stream, config, batches):
    """All rows of a stream, where `batches` says how many batches each producer sent."""
    made = [
        rows(stream, p["number"], seq, config["batch"])
        for p in config["producers"]
        if p["stream"] == stream
        for seq in range(1, batches[p["id"]] + 1)
    ]
    return pa.Table.from_batches(made, SCHEMAS[stream])


class Run:
    """One process's producers."""

    def __init__(self, config):
        self.config = config
        self.stop = threading.Event()
        self.ended = {}
        self.failed = []
        self._connected = threading.Barrier(len(config["producers"]))
        self._journal = os.open(config["journal"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, producer, acked):
        """Append an acknowledgement to the journal."""
        os.write(self._journal, json.dumps({"producer": producer, "acked": acked}).encode() + b"\n")

    def produce(self, about):
        """Run one producer until SIGUSR1, then end its stream."""
        try:
            self._produce(about)
        except BaseException as problem:
            self.failed.append(f"{about['id']}: {problem!r}")
            self._connected.abort()
            self.stop.set()

    def _produce(self, about):
        config, stream = self.config, about["stream"]
        with Producer(
            config["address"], stream, SCHEMAS[stream], producer=about["id"], timeout_s=150,
            token=config.get("token"), unacked_bytes_max=config["unacked_bytes_max"],
        ) as producer:  # fmt: skip
            noted = seq = producer.connect()
            self._connected.wait(150)
            while not self.stop.is_set() and seq < config["batches_max"]:
                seq += 1
                producer.send(rows(stream, about["number"], seq, config["batch"]))
                due = config["began_s"] + seq * config["period_s"]
                while True:
                    acked = producer.poll()
                    if acked > noted:
                        self.note(about["id"], acked)
                        noted = acked
                    if time.time() >= due or self.stop.is_set():
                        break
                    time.sleep(min(0.02, max(0.0, due - time.time())))
            producer.end()
            self.note(about["id"], producer.acked)
            self.ended[about["id"]] = seq


def main():
    run = Run(json.loads(Path(sys.argv[1]).read_text()))
    signal.signal(signal.SIGUSR1, lambda *_: run.stop.set())
    threads = [
        threading.Thread(target=run.produce, args=(p,), daemon=True)
        for p in run.config["producers"]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(0.2)
    if run.failed:
        sys.exit("\n".join(run.failed))
    sys.stdout.write(json.dumps({"ended": run.ended}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
