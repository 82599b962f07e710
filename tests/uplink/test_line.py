"""The connection to the centre: breaks, bit errors, killed collectors, TLS."""

import json
import random
import shutil
import socket
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from edged.errors import ConfigError
from edged.store.page_index import PageRef
from edged.uplink import Uplink
from tests.central.support import (
    Collector,
    collecting,
)
from tests.uplink.support import Daemon, Proxy, check_landed
from tests.whole import count


def test_the_collector_killed_again_and_again_under_load_costs_nothing(landing, spool):
    rng = random.Random(3)
    collector = Collector(landing, 0, "--segment-bytes", "30000")
    with Daemon(collector.url, request_bytes=3000) as daemon:
        seq = 1
        for _ in range(count(6, 20)):
            end = time.monotonic() + rng.uniform(0.01, 0.2)
            while time.monotonic() < end:
                if len(daemon.pending) < 500:
                    daemon.offer(spool.add(range(seq, seq + 5), partitions=range(4)))
                    seq += 5
                daemon.poll(0.005)
            collector.kill()
            collector = Collector(landing, collector.port, "--segment-bytes", "30000")
            daemon.uplink.retry()
        daemon.drain()
        assert daemon.uplink.status()["failures"] > 0
    assert collector.stop() == 0
    check_landed(landing, spool)


def _flip(rng, data):
    """Flips any bit, headers and acks included."""
    if rng.random() < 0.3:
        data = bytearray(data)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return None if rng.random() < 0.1 else bytes(data)


def test_a_line_that_flips_bits_and_breaks_costs_only_time(landing, spool):
    with (
        collecting(landing) as collector,
        Proxy(collector.port, _flip) as proxy,
        Daemon(proxy.url, request_bytes=20_000, timeout_s=1.0) as daemon,
    ):
        for seq in range(1, 600, 20):
            daemon.offer(spool.add(range(seq, seq + 20), partitions=range(2)))
            daemon.poll(0.02)
            daemon.uplink.retry()
        end = time.monotonic() + 120
        while daemon.pending and time.monotonic() < end:
            daemon.poll(0.02)
            daemon.uplink.retry()
        assert not daemon.pending, daemon.uplink.status()
        assert daemon.uplink.status()["failures"] > 0
    check_landed(landing, spool)


def test_an_answer_to_another_device_acknowledges_nothing(spool):
    class MixedUp(BaseHTTPRequestHandler):
        def do_PUT(self):
            self.answer({})

        def do_POST(self):
            self.answer({"device": "turbine-8", "acked": [["power", 0, 1]], "desired": None})

        def answer(self, content):
            self.rfile.read(int(self.headers["Content-Length"]))
            body = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), MixedUp) as server:
        threading.Thread(target=server.serve_forever).start()
        with Daemon(f"http://127.0.0.1:{server.server_port}") as daemon:
            daemon.offer(spool.add([1]))
            daemon.until(lambda: "another device" in daemon.uplink.status()["last_error"])
            assert not daemon.acks
        server.shutdown()


def test_few_pages_use_one_connection_and_one_request(landing, spool):
    with collecting(landing) as collector, Daemon(collector.url) as daemon:
        daemon.until(lambda: (landing / "schemas" / "power@1.json").exists())
        for seq in range(1, 11):
            daemon.offer(spool.add([seq], partitions=range(8)))
            daemon.drain()
        assert daemon.uplink.status()["requests"] == 10 + 1  # plus the schema
        pid = daemon.uplink.status()["pid"]
        files = [f for f in Path(f"/proc/{pid}/fd").iterdir() if int(f.name) > 2]
        links = [str(f.readlink()) for f in files]  # the standard streams may be anything
        assert sum("socket" in link for link in links) == 2  # the daemon and the centre


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """(certificate, key) of 127.0.0.1."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    at = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", "2", "-subj", "/CN=centre", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", at / "key.pem", "-out", at / "cert.pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    return at / "cert.pem", at / "key.pem"


def test_over_tls_only_a_centre_that_is_trusted_gets_pages(landing, spool, certificate):
    cert, key = map(str, certificate)
    with collecting(landing, "--tls-cert", cert, "--tls-key", key) as collector:
        url = collector.url.replace("http:", "https:")
        with Daemon(url) as stranger:
            stranger.until(lambda: "CERTIFICATE_VERIFY" in stranger.uplink.status()["last_error"])
        with Daemon(url, ca=cert) as daemon:
            daemon.offer(spool.add(range(1, 50)))
            daemon.drain()
    check_landed(landing, spool)


def test_an_address_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="must begin with http"):
        Uplink("centre:7500", "d", None, 1, (1, 1), [])


def test_a_centre_that_speaks_something_else_is_network_trouble(spool):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(120)
        with Daemon(f"http://127.0.0.1:{server.getsockname()[1]}") as daemon:
            peer, _ = server.accept()
            with peer:
                peer.recv(1 << 16)
                peer.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
            daemon.until(lambda: daemon.uplink.status()["state"] == "down")
            assert "BadStatusLine" in daemon.uplink.status()["last_error"]


def test_two_collectors_in_turn_and_one_dies(landing, spool):
    """A load balancer: any connection to any collector."""
    collectors = [Collector(landing, 0, "--segment-bytes", "20000") for _ in range(2)]
    rng = random.Random(6)
    seq, session = 1, 1
    for turn in range(count(4, 8)):
        session += 1
        with Daemon(collectors[turn % 2].url, session=(session, 1), request_bytes=2000) as daemon:
            first = max(1, seq - 20)
            again = [r for r in _all_refs(spool) if r.key.seq >= first]
            daemon.offer(again + spool.add(range(seq, seq + 40), partitions=range(2)))
            seq += 40
            until = time.monotonic() + rng.uniform(0.05, 0.3)
            while time.monotonic() < until:
                daemon.poll(0.01)
            if turn % 2:
                collectors[1].kill()
                collectors[1] = Collector(landing, collectors[1].port, "--segment-bytes", "20000")
                daemon.uplink.retry()
            daemon.drain()
    assert [c.stop() for c in collectors] == [0, 0]
    check_landed(landing, spool, ordered=False)


def _all_refs(spool):
    from edged.pages.sealed import PageKey

    refs, at = [], 0
    for (stream, partition, seq), page in spool.sent.items():
        refs.append(PageRef(PageKey(stream, partition, seq), str(spool.path), at, len(page)))
        at += len(page)
    return refs
