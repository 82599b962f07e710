"""The uplink's real child process against real collectors: in order, once, whatever is killed."""

import errno
import json
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from edged.central import segments
from edged.central.tokens import token_line
from edged.errors import ConfigError
from edged.store.backlog import PageRef
from edged.uplink import Uplink
from tests.central.support import (
    DEVICE,
    SCHEMA,
    Collector,
    Device,
    by_partition,
    collecting,
    make_page,
)
from tests.uplink.support import SCHEMAS, Daemon, Proxy, Spool


@pytest.fixture
def spool(tmp_path):
    made = Spool(tmp_path / "spool")
    yield made
    made.close()


@pytest.fixture
def landing(tmp_path):
    return tmp_path / "landing"


def check_landed(landing, spool, ordered=True):
    """Exactly what was sent has landed, each page once (`by_partition` sees to that)."""
    landed = {
        (stream, partition, seq): page
        for (_, stream, partition), pages in by_partition(landing).items()
        for seq, page in pages.items()
    }
    assert landed == spool.sent
    if ordered:
        for pages in by_partition(landing).values():
            assert list(pages) == sorted(pages), "landed in order"


def test_pages_arrive_once_and_in_order(landing, spool):
    with collecting(landing) as collector, Daemon(collector.url, request_bytes=5000) as daemon:
        for first in range(1, 200, 10):
            daemon.offer(spool.add(range(first, first + 10), partitions=range(4)))
            daemon.poll()
        daemon.drain()
        assert daemon.acks == {("power", p): 200 for p in range(4)}
        status = daemon.uplink.status()
        assert status["backlog_pages"] == status["backlog_bytes"] == 0
        assert status["acked_pages"] == 800 and status["state"] == "sending"
        assert status["last_ack_age_s"] < 30
    check_landed(landing, spool)


def test_schemas_are_registered_before_any_page(landing):
    with collecting(landing) as collector, Daemon(collector.url) as daemon:
        daemon.until(lambda: (landing / "schemas" / "power@1.json").exists())
    assert (landing / "schemas" / "power@1.json").read_text() == SCHEMA


def test_schemas_that_come_later_are_registered_by_the_same_child_and_by_the_next(landing, spool):
    path = landing / "schemas" / "later@1.json"
    first = Collector(landing)
    with Daemon(first.url) as daemon:
        daemon.offer(spool.add(range(1, 20)))
        daemon.drain()
        daemon.uplink.register([*SCHEMAS, ("later", 1, SCHEMA)])
        daemon.offer(spool.add(range(1, 20), stream="later"))
        daemon.drain()
        assert daemon.uplink.status()["starts"] == 1
        assert path.read_text() == SCHEMA
        assert first.stop() == 0
        path.unlink()
        with collecting(landing, port=first.port):
            os.kill(daemon.uplink.status()["pid"], signal.SIGKILL)
            daemon.until(path.exists)
    check_landed(landing, spool)


def test_registering_waits_for_no_child_that_hangs(landing):
    with collecting(landing) as collector, Daemon(collector.url) as daemon:
        daemon.until(lambda: (landing / "schemas" / "power@1.json").exists())
        os.kill(daemon.uplink.status()["pid"], signal.SIGSTOP)
        begin = time.monotonic()
        daemon.uplink.register([("later", 1, SCHEMA)])
        assert time.monotonic() - begin < 1.0
        os.kill(daemon.uplink.status()["pid"], signal.SIGCONT)
        daemon.until(lambda: (landing / "schemas" / "later@1.json").exists())


def test_pages_wait_for_a_collector_that_is_not_there_yet(landing, spool):
    port = Collector(landing)
    port.stop()
    with Daemon(port.url) as daemon:
        daemon.offer(spool.add(range(1, 50)))
        daemon.until(lambda: daemon.uplink.status()["state"] == "down")
        assert "refused" in daemon.uplink.status()["last_error"]
        with collecting(landing, port=port.port):
            daemon.uplink.retry()
            daemon.drain()
    check_landed(landing, spool)


def test_the_collector_killed_20_times_under_load_costs_nothing(landing, spool):
    rng = random.Random(3)
    collector = Collector(landing, 0, "--segment-bytes", "30000")
    with Daemon(collector.url, request_bytes=3000) as daemon:
        seq = 1
        for _ in range(20):
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


def test_the_child_killed_at_random_moments_costs_nothing(landing, spool):
    rng = random.Random(4)
    more = {"request_bytes": 2000, "restart_s_max": 0.0}
    with collecting(landing) as collector, Daemon(collector.url, **more) as daemon:
        seq = 1
        for _ in range(20):
            end = time.monotonic() + rng.uniform(0.0, 0.25)
            while time.monotonic() < end:
                daemon.offer(spool.add(range(seq, seq + 3), partitions=range(2)))
                seq += 3
                daemon.poll(0.005)
            os.kill(daemon.uplink.status()["pid"], signal.SIGKILL)
        daemon.drain()
        assert daemon.uplink.status()["starts"] > 15
    check_landed(landing, spool)


def _sleeps_until_restarted(daemon, timeout_s=120.0):
    """Restart on news of `watch_fileno()` alone; returns how often that woke the sleeper."""
    wakes, end = 0, time.monotonic() + timeout_s
    while True:
        assert select.select([daemon.uplink.watch_fileno()], [], [], end - time.monotonic())[0]
        wakes += 1
        for stream, partition, seq in daemon.uplink.poll():
            daemon.acks[stream, partition] = seq
        if daemon.uplink.restart_if_dead():
            daemon.uplink.offer([daemon.pending[k] for k in sorted(daemon.pending)])
            return wakes


def test_children_that_die_young_are_followed_by_others_though_nothing_else_happens(landing, spool):
    port = Collector(landing)
    port.stop()
    with Daemon(port.url) as daemon:
        daemon.offer(spool.add(range(1, 50)))
        watched = daemon.uplink.watch_fileno()
        for _ in range(4):
            os.kill(daemon.uplink.status()["pid"], signal.SIGKILL)
            assert _sleeps_until_restarted(daemon) <= 3, "it sleeps through the backoff"
            assert daemon.uplink.watch_fileno() == watched
        assert daemon.uplink.status()["starts"] == 5
        with collecting(landing, port=port.port):
            daemon.uplink.retry()
            daemon.drain()
    check_landed(landing, spool)


def test_what_a_living_child_says_does_not_wake_who_watches_for_its_death(landing, spool):
    with collecting(landing) as collector, Daemon(collector.url) as daemon:
        daemon.offer(spool.add(range(1, 50)))
        assert select.select([daemon.uplink], [], [], 20.0)[0]
        assert select.select([daemon.uplink.watch_fileno()], [], [], 0.0)[0] == []
        daemon.drain()


def test_children_that_keep_dying_are_started_ever_more_rarely(tmp_path, monkeypatch):
    """Each dies at its start; the machine has better things to do."""
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with Daemon("http://127.0.0.1:9", restart_s_max=2.0) as daemon:
        end = time.monotonic() + 6.0
        while time.monotonic() < end:
            select.select([daemon.uplink], [], [], max(0.0, end - time.monotonic()))
            daemon.uplink.poll()
            daemon.uplink.restart_if_dead()
        assert 3 <= daemon.uplink.status()["starts"] <= 40


def test_between_two_children_the_descriptor_is_one_to_sleep_on(tmp_path, monkeypatch):
    """Else who waits for room in the store would spin."""
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with Daemon("http://127.0.0.1:9") as daemon:
        while daemon.uplink.status()["pid"] is not None:
            select.select([daemon.uplink], [], [], 20.0)
            daemon.uplink.poll()
            daemon.uplink.restart_if_dead()
        starts = daemon.uplink.status()["starts"]
        assert select.select([daemon.uplink], [], [], 40.0)[0]
        daemon.uplink.restart_if_dead()
        assert daemon.uplink.status()["starts"] == starts + 1
        daemon.uplink.close()
        assert daemon.uplink.fileno() == -1


def test_a_daemon_that_starts_again_takes_up_where_it_was(landing, spool):
    with collecting(landing) as collector:
        refs = spool.add(range(1, 100))
        with Daemon(collector.url, request_bytes=1000) as first:
            first.offer(refs)
            first.until(lambda: first.acks)
        with Daemon(collector.url, session=(2, 1)) as second:
            second.offer(refs)  # it never wrote down its acks
            second.drain()
    check_landed(landing, spool)


def _flip(rng, data):
    """Any bit, headers and acks included."""
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
        end = time.monotonic() + 40
        while daemon.pending and time.monotonic() < end:
            daemon.poll(0.02)
            daemon.uplink.retry()
        assert not daemon.pending, daemon.uplink.status()
        assert daemon.uplink.status()["failures"] > 0
    check_landed(landing, spool)


def test_a_page_damaged_on_the_devices_disk_is_held_and_others_pass(landing, spool):
    with collecting(landing) as collector, Daemon(collector.url) as daemon:
        refs = spool.add(range(1, 4), partitions=(0, 1))
        bad = refs[2]  # partition 0, seq 2
        with spool.path.open("r+b") as file:
            file.seek(bad.offset + bad.length - 1)
            file.write(bytes([spool.sent["power", 0, 2][-1] ^ 1]))
        daemon.offer(refs)
        daemon.until(lambda: daemon.acks == {("power", 0): 1, ("power", 1): 3})
        daemon.until(lambda: "own disk" in daemon.uplink.status()["last_error"])
        [stuck] = daemon.uplink.status()["stuck"]
        assert (stuck["stream"], stuck["partition"]) == ("power", 0)
        with spool.path.open("r+b") as file:
            file.seek(bad.offset)
            file.write(spool.sent["power", 0, 2])
        daemon.uplink.retry()
        daemon.drain()
    check_landed(landing, spool)


def test_a_daemon_that_sleeps_is_woken_before_its_unread_acks_stop_the_uplink(landing, spool):
    pages = 500  # a request each: their answers do not fit into the socket between the two
    with collecting(landing) as collector, Daemon(collector.url, request_bytes=1) as daemon:
        daemon.offer(spool.add(range(1, pages + 1)))
        end, wakes = time.monotonic() + 60, 0
        while sum(segments.positions(landing).values()) < pages:
            assert time.monotonic() < end, "the uplink stands still"
            if select.select([daemon.uplink.watch_fileno()], [], [], 0.2)[0]:
                daemon.uplink.clear_news()
                daemon.poll()
                wakes += 1
        assert 1 <= wakes <= pages // 20
        daemon.drain()
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


def test_a_child_that_cannot_be_started_again_is_tried_later(landing, spool, monkeypatch):
    def no_memory(*_, **__):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    with collecting(landing) as collector, Daemon(collector.url, restart_s_max=0.5) as daemon:
        with monkeypatch.context() as patch:
            patch.setattr(subprocess, "Popen", no_memory)
            os.kill(daemon.uplink.status()["pid"], signal.SIGKILL)
            daemon.until(lambda: "does not start" in daemon.uplink.status()["problem"])
            assert daemon.uplink.status()["next_try_us"] is not None
        daemon.offer(spool.add([1, 2]))
        daemon.drain()
    check_landed(landing, spool)


def test_a_page_that_has_moved_is_found_at_its_new_place(landing, spool, tmp_path):
    with collecting(landing) as collector, Daemon(collector.url) as daemon:
        refs = spool.add(range(1, 4))
        other = Spool(tmp_path / "other")
        moved = other.add(range(1, 4))
        other.close()
        spool.path.write_bytes(make_page(99) * 3)  # the old file holds something else by now
        gone = [PageRef(r.key, str(tmp_path / "gone"), r.offset, r.length) for r in refs]
        daemon.offer([refs[0], gone[1], refs[2]])
        daemon.until(lambda: daemon.uplink.status()["last_error"])
        assert not daemon.acks
        daemon.offer(moved)
        daemon.drain(10)
    check_landed(landing, spool)


def test_a_page_that_the_centre_lacks_is_reported_and_nothing_else_waits(landing, spool):
    with collecting(landing) as collector, Daemon(collector.url) as daemon:
        refs = spool.add([3, 4]) + spool.add([1, 2], partitions=[1])
        daemon.offer(refs)
        daemon.until(lambda: daemon.acks == {("power", 1): 2})
        daemon.until(lambda: daemon.uplink.status()["stuck"])
        [stuck] = daemon.uplink.status()["stuck"]
        assert (stuck["problem"], stuck["partition"], stuck["expected"]) == ("gap", 0, 1)
        daemon.offer(spool.add([1, 2]))
        daemon.drain()
    landed = by_partition(landing)[DEVICE, "power", 0]
    assert list(landed) == [1, 2, 3, 4]


def test_another_history_under_the_same_names_is_reported(landing, spool):
    with collecting(landing) as collector:
        with Device(collector, session=(1, 7)) as device:
            device.register()
            device.send(make_page(1, salt=1))
        with Daemon(collector.url) as daemon:
            daemon.offer(spool.add([1]))
            daemon.until(lambda: daemon.uplink.status()["stuck"])
            assert daemon.uplink.status()["stuck"][0]["problem"] == "conflict"


def test_a_fenced_uplink_stops_and_says_so(landing, spool):
    with collecting(landing) as collector:
        with Device(collector, session=(5, 5)) as newer:
            newer.send()
        with Daemon(collector.url, session=(4, 1)) as daemon:
            daemon.offer(spool.add([1]))
            daemon.until(lambda: daemon.uplink.status()["state"] == "fenced")
            assert "copies of one store" in daemon.uplink.status()["last_error"]
            daemon.uplink.retry()
            daemon.offer(spool.add([2]))
            time.sleep(0.2)
            daemon.poll()
            assert daemon.uplink.status()["alive"] and not daemon.acks
    assert by_partition(landing) == {}


def test_a_wrong_token_is_reported_and_a_new_one_taken(landing, spool, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text(token_line(DEVICE, "right"))
    with (
        collecting(landing, "--tokens", str(tokens)) as collector,
        Daemon(collector.url, token="wrong") as daemon,
    ):
        daemon.offer(spool.add(range(1, 5)))
        daemon.until(lambda: daemon.uplink.status()["state"] == "unauthorized")
        daemon.uplink.set_token("right")
        daemon.drain()
    check_landed(landing, spool)


def test_a_landing_that_lost_its_schemas_gets_them_again(landing, spool):
    collector = Collector(landing)
    with Daemon(collector.url) as daemon:
        daemon.offer(spool.add([1]))
        daemon.drain()
        collector.kill()
        (landing / "schemas" / "power@1.json").unlink()
        with collecting(landing, port=collector.port):
            daemon.offer(spool.add([2, 3]))
            daemon.uplink.retry()
            daemon.drain()
    check_landed(landing, spool)


def test_a_stream_whose_schema_is_refused_is_kept_back(landing, spool):
    with collecting(landing) as collector:
        with Device(collector) as device:
            device.register("power", 1, '[{"name":"x","type":"bool"}]')
        with Daemon(collector.url, schemas=[("power", 1, SCHEMA), ("wind", 1, SCHEMA)]) as daemon:
            daemon.offer(spool.add([1]) + spool.add([1], stream="wind"))
            daemon.until(lambda: daemon.acks == {("wind", 0): 1})
            assert daemon.uplink.status()["refused_streams"] == ["power"]
    assert list(by_partition(landing)) == [(DEVICE, "wind", 0)]


def test_a_collector_with_a_smaller_limit_gets_smaller_requests(landing, spool):
    with collecting(landing, "--body-bytes", "65536") as collector, Daemon(collector.url) as daemon:
        daemon.offer(spool.add(range(1, 1001)))
        daemon.drain()
    check_landed(landing, spool)


def test_what_is_desired_reaches_the_daemon(landing, spool):
    with collecting(landing) as collector, Daemon(collector.url) as daemon:
        (landing / "desired").mkdir()
        (landing / "desired" / f"{DEVICE}.json").write_text('{"job":"next"}')
        daemon.offer(spool.add([1]))
        daemon.drain()
        assert daemon.uplink.status()["desired"] == {"job": "next"}


def _threads(pid):
    return list(Path(f"/proc/{pid}/task").iterdir())


def _switches(pid):
    total = 0
    for task in _threads(pid):
        for line in (task / "status").read_text().splitlines():
            total += int(line.split()[1]) if "ctxt_switches" in line else 0
    return total


def test_an_idle_child_sleeps_without_a_timer(landing, spool):
    with collecting(landing) as collector, Daemon(collector.url) as daemon:
        daemon.offer(spool.add(range(1, 20)))
        daemon.drain()
        pid = daemon.uplink.status()["pid"]
        time.sleep(0.3)
        before = _switches(pid)
        time.sleep(1.0)
        assert _switches(pid) - before <= 1
        status = Path(f"/proc/{pid}/status").read_text()
        [rss] = [int(x.split()[1]) for x in status.splitlines() if x.startswith("VmRSS")]
        assert rss < 40_000  # KiB


def test_few_pages_use_one_connection_and_one_request(landing, spool):
    with collecting(landing) as collector, Daemon(collector.url) as daemon:
        daemon.until(lambda: (landing / "schemas" / "power@1.json").exists())
        time.sleep(0.2)
        for seq in range(1, 11):
            daemon.offer(spool.add([seq], partitions=range(8)))
            daemon.drain()
        assert daemon.uplink.status()["requests"] == 10 + 1  # and the schema
        pid = daemon.uplink.status()["pid"]
        files = [f for f in Path(f"/proc/{pid}/fd").iterdir() if int(f.name) > 2]
        links = [str(f.readlink()) for f in files]  # the standard ones may be anything
        assert sum("socket" in link for link in links) == 2  # the daemon and the centre


_PARENT = """
import sys, time
from edged.uplink import Uplink
uplink = Uplink("http://127.0.0.1:9", "d", None, 1, (1, 1), [("s", 1, "[]")])
uplink.start()
print(uplink.status()["pid"], flush=True)
time.sleep(60)
"""


def test_the_child_ends_when_the_daemon_is_killed():
    parent = subprocess.Popen([sys.executable, "-c", _PARENT], stdout=subprocess.PIPE)
    with parent:
        pid = int(parent.stdout.readline())
        time.sleep(0.3)
        assert Path(f"/proc/{pid}").exists()
        parent.kill()
    end = time.monotonic() + 5
    while _running(pid) and time.monotonic() < end:
        time.sleep(0.01)
    assert not _running(pid)


def _running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def test_offering_never_blocks_even_if_the_child_is_stopped(landing, spool):
    with collecting(landing) as collector, Daemon(collector.url) as daemon:
        refs = spool.add(range(1, 20))
        many = [
            PageRef(type(r.key)("power", 9, seq), r.file, r.offset, r.length)
            for seq in range(1, 30_000)
            for r in refs[:1]
        ]
        pid = daemon.uplink.status()["pid"]
        os.kill(pid, signal.SIGSTOP)
        begin = time.monotonic()
        daemon.uplink.offer(many)
        daemon.offer(refs)
        daemon.poll()
        assert time.monotonic() - begin < 5.0
        assert daemon.uplink.wants_write()
        os.kill(pid, signal.SIGCONT)
        daemon.drain()
        assert not daemon.uplink.wants_write()
    assert list(by_partition(landing)[DEVICE, "power", 0]) == list(range(1, 20))


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
        server.settimeout(10)
        with Daemon(f"http://127.0.0.1:{server.getsockname()[1]}") as daemon:
            peer, _ = server.accept()
            with peer:
                peer.recv(1 << 16)
                peer.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
            daemon.until(lambda: daemon.uplink.status()["state"] == "down")
            assert "BadStatusLine" in daemon.uplink.status()["last_error"]


def test_two_collectors_in_turn_and_one_dies(landing, spool):
    """What a load balancer does: any connection to any collector."""
    collectors = [Collector(landing, 0, "--segment-bytes", "20000") for _ in range(2)]
    rng = random.Random(6)
    seq, session = 1, 1
    for turn in range(8):
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
    from edged.sinks.base import PageKey

    refs, at = [], 0
    for (stream, partition, seq), page in spool.sent.items():
        refs.append(PageRef(PageKey(stream, partition, seq), str(spool.path), at, len(page)))
        at += len(page)
    return refs
