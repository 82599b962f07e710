"""The uplink's real child against real collectors: in order, once, and problems are reported."""

import os
import signal
import time

from edged.central.tokens import token_line
from edged.store.page_index import PageRef
from tests.central.support import (
    DEVICE,
    SCHEMA,
    Collector,
    Device,
    by_partition,
    collecting,
    make_page,
)
from tests.uplink.support import SCHEMAS, Daemon, Spool, check_landed


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


def test_a_daemon_that_starts_again_takes_up_where_it_was(landing, spool):
    with collecting(landing) as collector:
        refs = spool.add(range(1, 100))
        with Daemon(collector.url, request_bytes=1000) as first:
            first.offer(refs)
            first.until(lambda: first.acks)
        with Daemon(collector.url, session=(2, 1)) as second:
            second.offer(refs)  # the first never stored its acks
            second.drain()
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


def test_a_page_that_has_moved_is_found_at_its_new_place(landing, spool, tmp_path):
    with collecting(landing) as collector, Daemon(collector.url) as daemon:
        refs = spool.add(range(1, 4))
        other = Spool(tmp_path / "other")
        moved = other.add(range(1, 4))
        other.close()
        spool.path.write_bytes(make_page(99) * 3)  # the old file has been reused
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


def test_a_refused_token_is_reported_and_tried_again(landing, spool, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text(token_line(DEVICE, "right"))
    with (
        collecting(landing, "--tokens", str(tokens)) as collector,
        Daemon(collector.url, token="new") as daemon,
    ):
        daemon.offer(spool.add(range(1, 5)))
        daemon.until(lambda: daemon.uplink.status()["state"] == "unauthorized")
        with tokens.open("a") as file:
            file.write("\n" + token_line(DEVICE, "new"))
        daemon.uplink.retry()
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
