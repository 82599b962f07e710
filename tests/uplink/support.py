"""The daemon's part of the uplink for tests, and a proxy that damages the bytes it forwards."""

import contextlib
import random
import select
import socket
import threading
import time

from edged.pages.sealed import PageKey
from edged.store.page_index import PageRef
from edged.uplink import Uplink
from tests.central.support import DEVICE, EPOCH, SCHEMA, by_partition, make_page

SCHEMAS = [("power", 1, SCHEMA)]


class Spool:
    """Pages in a file, and references to them."""

    def __init__(self, path):
        self.path = path
        self.sent = {}
        self._file = path.open("ab", buffering=0)

    def add(self, seqs, partitions=(0,), *, stream="power", **more):
        """References to new pages, written to the file."""
        refs = []
        for seq in seqs:
            for partition in partitions:
                page = make_page(seq, stream=stream, partition=partition, **more)
                at = self._file.seek(0, 2)
                self._file.write(page)
                key = PageKey(stream, partition, seq)
                self.sent[stream, partition, seq] = page
                refs.append(PageRef(key, str(self.path), at, len(page)))
        return refs

    def close(self):
        self._file.close()


class Daemon:
    """Keeps the pending pages like the store, and polls the uplink like the daemon."""

    def __init__(self, url, *, session=(1, 7), token=None, schemas=SCHEMAS, **more):
        self.uplink = Uplink(url, DEVICE, token, EPOCH, session, schemas, **more)
        self.pending = {}
        self.acks = {}
        self.uplink.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.uplink.close()

    def offer(self, refs):
        for ref in refs:
            self.pending[ref.key.stream, ref.key.partition, ref.key.seq] = ref
        self.uplink.offer(refs)

    def poll(self, timeout_s=0.0):
        if self.uplink.restart_if_dead():
            self.uplink.offer([self.pending[k] for k in sorted(self.pending)])
        select.select([self.uplink], [], [], timeout_s)
        for stream, partition, seq in self.uplink.poll():
            assert seq > self.acks.get((stream, partition), 0), "acks rise"
            self.acks[stream, partition] = seq
            for key in [k for k in self.pending if k[:2] == (stream, partition) and k[2] <= seq]:
                del self.pending[key]

    def until(self, condition, timeout_s=120.0):
        """Poll until `condition()`; fails after `timeout_s`."""
        end = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < end, self.uplink.status()
            self.poll(0.05)

    def drain(self, timeout_s=120.0):
        self.until(lambda: not self.pending, timeout_s)


def check_landed(landing, spool, ordered=True):
    """Exactly the sent pages have landed, each once (`by_partition` checks that)."""
    landed = {
        (stream, partition, seq): page
        for (_, stream, partition), pages in by_partition(landing).items()
        for seq, page in pages.items()
    }
    assert landed == spool.sent
    if ordered:
        for pages in by_partition(landing).values():
            assert list(pages) == sorted(pages), "landed in order"


class Proxy:
    """Passes bytes on to `port`, in both directions through `harm`.

    `harm(rng, data)` returns what to pass on instead of `data`, None to break the connection.
    """

    def __init__(self, port, harm, seed=1):
        self._port, self._harm, self._rng = port, harm, random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()
        self._open = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._listener.shutdown(socket.SHUT_RDWR)
        for peer in self._open:
            _close(peer)
        for thread in self._threads:
            thread.join()
        self._listener.close()
        for peer in self._open:
            peer.close()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._port))
            self._open += [client, server]
            for ends in ((client, server), (server, client)):
                thread = threading.Thread(target=self._pass, args=ends)
                self._threads.append(thread)
                thread.start()

    def _pass(self, source, target):
        try:
            while data := source.recv(1 << 16):
                data = self._harm(self._rng, data)
                if data is None:
                    break
                target.sendall(data)
        except OSError:
            pass
        _close(source)
        _close(target)


def _close(peer):
    with contextlib.suppress(OSError):
        peer.shutdown(socket.SHUT_RDWR)
