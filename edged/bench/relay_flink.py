"""Flink as a peer of the relay: a chain of three tasks, source → filter → sink, in one JVM.

With operator chaining off, tasks hand packets on through serialized network buffers, as between
machines, but without a socket, which favours Flink.  The source generates the packets, the sink
drops them; no checkpoints are taken, so nothing is durable.  Parallelism is 1 and objects are used
again.  Time is counted from the submission on, the work of the JVM's compiler included.
"""

from __future__ import annotations

import json
from typing import Any

from edged.bench.flink_peer import flink_python, run_flink
from edged.bench.relay_chain import bench_directory

PACKETS = 20_000_000
_SETTINGS = {
    "parallelism.default": "1", "pipeline.operator-chaining.enabled": "false",
    "pipeline.object-reuse": "true",
}  # fmt: skip
_TYPES = {
    "seq": "BIGINT", "ts": "BIGINT", "sender": "INT", "state": "SMALLINT", "unit": "SMALLINT",
    "flags": "TINYINT", "quality": "TINYINT", "power": "DOUBLE", "speed": "DOUBLE",
    "pitch": "FLOAT", "yaw": "FLOAT",
}  # fmt: skip
"""The 50 bytes of a packet (`relay_packets`)."""


def measure_flink_chain(say: Any, packets: int = PACKETS) -> dict[str, Any]:
    """The peer's row.  Raises EdgedError where Flink is not there or fails."""
    python = flink_python(say)
    columns = ", ".join(f"`{name}` {kind}" for name, kind in _TYPES.items())
    tables = [
        f"CREATE TABLE made ({columns}) WITH ('connector' = 'datagen', "
        f"'rows-per-second' = '{1 << 40}', 'number-of-rows' = '{packets}')",
        f"CREATE TABLE dropped ({columns}) WITH ('connector' = 'blackhole')",
    ]
    relay = "INSERT INTO dropped SELECT * FROM made WHERE `yaw` >= 0"
    with bench_directory() as directory:
        given = {"settings": _SETTINGS, "tables": tables, "inserts": [relay]}
        (directory / "flink.json").write_text(json.dumps(given))
        got = run_flink(python, directory)
    return {
        "name": "Flink 2.3, three tasks in one JVM",
        "packets_per_s": round(packets / got["took_s"]),
        "rss_mib": round(got["rss"] / 2**20),
    }  # fmt: skip
