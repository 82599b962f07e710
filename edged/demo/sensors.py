"""One sensor stream of the wind farm, replayed: `python -m edged.demo.sensors power HOST:PORT …`.

Each turbine is a producer with its own connection, as in the field. All producers connect before
the first one sends, so the slowest one counts for the watermark from the start. Nulls, repeated
timestamps and gaps of the data are sent unchanged. After a crash of the daemon the producers
reconnect and resume after the last durable batch.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from edged.client import Producer

COLUMNS = {
    "power": {"turbine": "turbine", "time": "time", "power_kw": "P_avg", "pitch_deg": "Ba_avg"},
    "wind": {
        "turbine": "turbine",
        "time": "time",
        "wind_m_s": "Ws_avg",
        "direction_deg": "Wa_avg",
        "outdoor_c": "Ot_avg",
    },
}
"""Stream -> its columns -> the columns of the SCADA file."""
BATCH_ROWS = 288
"""Two days of ten-minute readings."""
END_S = 120.0
"""Timeout of end-of-stream. It covers the restart of a killed daemon."""


def readings(stream: str, scada: Path) -> dict[str, pa.Table]:
    """The readings of one stream by turbine, in the order of the source file."""
    mapping = COLUMNS[stream]
    table = pq.read_table(scada, columns=list(dict.fromkeys(mapping.values())))
    columns = {name: table.column(source) for name, source in mapping.items()}
    columns["turbine"] = columns["turbine"].cast(pa.string())
    table = pa.table(columns)
    names = sorted(pc.unique(table.column("turbine")).to_pylist())
    return {name: table.filter(pc.equal(table.column("turbine"), name)) for name in names}


def send(stream: str, address: str, token: str, scada: Path, seconds: float) -> None:
    """Send a stream's readings over about `seconds`, then end-of-stream.

    Returns when all readings are durable.
    """
    tables = readings(stream, scada)
    schema = _schema(next(iter(tables.values())).schema)
    producers = {
        name: Producer(address, stream, schema, producer=f"{name}-{stream}", token=token)
        for name in tables
    }
    for producer in producers.values():
        producer.connect()
    batches = {name: t.cast(schema).to_batches(BATCH_ROWS) for name, t in tables.items()}
    rounds = max(len(b) for b in batches.values())
    started = time.monotonic()
    for i in range(rounds):
        for name, producer in producers.items():
            if i < len(batches[name]):
                producer.send(batches[name][i])
        time.sleep(max(0.0, started + seconds * (i + 1) / rounds - time.monotonic()))
    # Concurrently: while one producer waits for its acks, the others must not fall silent.
    with ThreadPoolExecutor(len(producers)) as pool:
        list(pool.map(_end, producers.values()))


def _end(producer: Producer) -> None:
    """Send end-of-stream and wait until all readings are durable."""
    producer.end(END_S)
    producer.close()


def _schema(given: pa.Schema) -> pa.Schema:
    """The stream's schema: key and time are never null in the source, readings may be."""
    return pa.schema([f.with_nullable(f.name not in ("turbine", "time")) for f in given])


def main() -> None:
    """Command line of the sensor process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stream", choices=sorted(COLUMNS))
    parser.add_argument("address")
    parser.add_argument("--token-file", type=Path, required=True)
    parser.add_argument("--scada", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=30.0)
    given = parser.parse_args()
    token = given.token_file.read_text().strip()
    send(given.stream, given.address, token, given.scada, given.seconds)


if __name__ == "__main__":
    main()
