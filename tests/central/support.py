"""What the tests of collector and uplink share: made-up pages, real collectors, a naive reader.

`read_landing` is written from the law's text alone, with struct, and shares nothing with edged.
"""

import contextlib
import dataclasses
import hashlib
import json
import random
import signal
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx

from edged.pages.format import LAYOUT_DENSE, Header
from edged.pages.header import HEADER_BYTES, checksum

SCHEMA = (
    '[{"name":"k","type":"int32","nullable":false},{"name":"v","type":"float64","nullable":true}]'
)
STRIDE = 13
DEVICE, EPOCH = "turbine-7", 0xFEDC_BA98_7654_3210


def make_page(
    seq, *, stream="power", partition=0, version=1, device=DEVICE, epoch=EPOCH, rows=3, salt=0
):
    """A valid dense page whose content is a function of its key."""
    size = HEADER_BYTES + rows * STRIDE
    header = Header(
        LAYOUT_DENSE,
        max(4096, size),
        size,
        size,
        rows,
        STRIDE,
        0,
        epoch,
        seq,
        seq,
        partition,
        version,
        1000,
        2000,
        3000,
        0,
        device,
        stream,
    )
    body = random.Random(f"{stream} {partition} {seq} {device} {salt}").randbytes(rows * STRIDE)
    crc = checksum(header.pack() + body)
    return dataclasses.replace(header, checksum=crc).pack() + body


class Collector:
    """A real `edged central collect` process."""

    def __init__(self, landing, port=0, *options, prefix=()):
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-W", "error", "-m", "edged", "central", "collect",
             "--landing", str(landing), "--listen", f"127.0.0.1:{port}", "--json", *options],
            stdout=subprocess.PIPE,
            stderr=self._stderr,
        )  # fmt: skip
        line = self.process.stdout.readline()
        if not line:
            self.stop()
            raise AssertionError(self.log)
        told = json.loads(line)
        self.address, self.metrics = told["listen"], told["metrics"]
        self.port = int(self.address.rpartition(":")[2])
        self.url = f"http://{self.address}"

    def kill(self):
        self._end(signal.SIGKILL)

    def stop(self):
        """The exit status; its output is in `log`."""
        return self._end(signal.SIGTERM)

    def _end(self, number):
        if not self._stderr.closed:
            self.process.send_signal(number)
            self.process.wait(120)
            self.process.stdout.close()
            self._stderr.seek(0)
            self.log = self._stderr.read().decode()
            self._stderr.close()
        return self.process.returncode


@contextlib.contextmanager
def collecting(landing, *options, port=0):
    collector = Collector(landing, port, *options)
    try:
        yield collector
    finally:
        collector.stop()


class Device:
    """A device that sends HTTP requests without edged's client."""

    def __init__(self, collector, name=DEVICE, epoch=EPOCH, session=(1, 77), token=None):
        self.headers = {
            "X-Edged-Device": name,
            "X-Edged-Epoch": str(epoch),
            "X-Edged-Session": f"{session[0]}:{session[1]}",
        }
        if token is not None:
            self.headers["Authorization"] = f"Bearer {token}"
        self.http = httpx.Client(base_url=collector.url, headers=self.headers, timeout=120)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.http.close()

    def register(self, stream="power", version=1, text=SCHEMA):
        return self.http.put(f"/v1/schemas/{stream}/{version}", content=text)

    def send(self, *pages):
        return self.http.post("/v1/pages", content=b"".join(pages))


_IDX = struct.Struct("<QIIIIQQqQQ")


def read_landing(landing):
    """[(idx row as a tuple, page bytes), ...] of all segments, in order, checked row by row."""
    found = []
    for idx in sorted((Path(landing) / "segments").glob("*.idx")):
        rows, data = idx.read_bytes(), idx.with_suffix(".pages").read_bytes()
        for at in range(0, len(rows) - 63, 64):
            row = _IDX.unpack_from(rows, at)
            page = data[row[0] : row[0] + row[1]]
            assert page[:4] == b"EDGP" and len(page) == row[1]
            assert row[2:7] == (
                *struct.unpack_from("<I", page, 28),
                *struct.unpack_from("<I", page, 20),
                *struct.unpack_from("<I", page, 56),
                *struct.unpack_from("<Q", page, 40),
                *struct.unpack_from("<Q", page, 32),
            )
            device, stream = page[96:160].rstrip(b"\0"), page[160:224].rstrip(b"\0")
            version = struct.unpack_from("<I", page, 60)[0]
            assert row[8] == _hash(stream + b"@%d" % version) and row[9] == _hash(device)
            found.append((row, page))
    return found


def _hash(text):
    return struct.unpack("<Q", hashlib.sha256(text).digest()[:8])[0]


def landed_pages(landing):
    """The pages' bytes, segment by segment."""
    return [page for _, page in read_landing(landing)]


def by_partition(landing):
    """{(device, stream, partition): {seq: page}}; a seq that landed twice fails."""
    found = {}
    for row, page in read_landing(landing):
        key = (page[96:160].rstrip(b"\0").decode(), page[160:224].rstrip(b"\0").decode(), row[4])
        pages = found.setdefault(key, {})
        assert row[5] not in pages, f"{key} seq {row[5]} landed twice"
        pages[row[5]] = page
    return found


def open_files(pid):
    """The number of descriptors of a process."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
