"""A relay of the same bytes without an engine: three processes with `recv` and `sendall`.

`python -m edged.bench.relay_raw ROLE PORT NEXT SECONDS` is one of them.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path

from edged.platform.processes import ChildProcess, free_port

BUFFER_BYTES = 64 << 10
DISK_BYTES = 8 << 20


def measure_raw(directory: Path, packet_bytes: int, seconds: float) -> dict[str, float]:
    """Packets per second that reach the third process."""
    (directory / "logs").mkdir(exist_ok=True)
    ports = [free_port(), free_port()]
    roles = [("sink", ports[1], 0), ("relay", ports[0], ports[1]), ("source", 0, ports[0])]
    parts = []
    try:
        for role, port, to in roles:
            words = ["edged.bench.relay_raw", role, str(port), str(to), str(seconds)]
            parts.append(ChildProcess(f"raw-{role}", words, directory / "logs"))
            parts[-1].ready()
        found = parts[0].events.get(timeout=seconds + 60)
    finally:
        for part in parts:
            part.stop()
    bytes_per_s = found["bytes"] / found["seconds"]
    return {
        "packets_per_s": round(bytes_per_s / packet_bytes), "bytes_per_s": round(bytes_per_s),
    }  # fmt: skip


def disk_bytes_per_s(directory: Path, seconds: float) -> int:
    """What the disk writes: blocks of 8 MiB, each made durable, into one file from its start."""
    block, written = os.urandom(DISK_BYTES), 0
    path = directory / "disk"
    with path.open("wb", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, 32 * DISK_BYTES)
        began = time.monotonic()
        while (spent := time.monotonic() - began) < seconds:
            file.write(block)
            os.fdatasync(file.fileno())
            written += DISK_BYTES
            if written % (32 * DISK_BYTES) == 0:
                file.seek(0)
    path.unlink()
    return round(written / spent)


def _ready() -> None:
    sys.stdout.write(json.dumps({"ready": True}) + "\n")
    sys.stdout.flush()


def _accept(port: int) -> socket.socket:
    with socket.create_server(("127.0.0.1", port)) as server:
        _ready()
        return server.accept()[0]


def main() -> None:
    """Run a role."""
    role, port, to, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    data = bytearray(os.urandom(BUFFER_BYTES))
    if role == "source":
        out = socket.create_connection(("127.0.0.1", to))
        _ready()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            out.sendall(data)
        return
    come = _accept(port)
    began, total = time.monotonic(), 0
    if role == "relay":
        out = socket.create_connection(("127.0.0.1", to))
        while size := come.recv_into(data):
            out.sendall(memoryview(data)[:size])
        return
    while size := come.recv_into(data):
        total += size
    seconds = time.monotonic() - began
    sys.stdout.write(json.dumps({"bytes": total, "seconds": seconds}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
