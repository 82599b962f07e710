"""Killed collectors, alone and beside others on a landing, lose and repeat nothing."""

import random
import signal
import threading
import time

import httpx
import pytest

from tests.central import seal_kills
from tests.central.support import (
    DEVICE,
    SCHEMA,
    Collector,
    Device,
    by_partition,
    landed_pages,
    make_page,
)
from tests.whole import count

KILLS, KILLS_BESIDE = count((6, 3), (20, 8))


def until(done):
    """Wait for a condition, at most two minutes."""
    end = time.monotonic() + 120
    while not done():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_killed_at_random_moments_it_loses_and_repeats_nothing(tmp_path):
    """Devices send and resend until acked, while the collector is killed."""
    rng = random.Random(20)
    collector = Collector(tmp_path, 0, "--segment-bytes", "20000")
    port = collector.port
    with Device(collector) as device:
        device.register()
    acked, stop = [0] * 3, threading.Event()

    def run(number):
        name, rng = f"d{number}", random.Random(number)
        headers = {"X-Edged-Device": name, "X-Edged-Epoch": "5", "X-Edged-Session": "1:1"}
        with httpx.Client(base_url=collector.url, headers=headers, timeout=120) as http:
            while not stop.is_set():
                first = max(1, acked[number] + 1 - rng.randrange(3))
                last = acked[number] + 1 + rng.randrange(6)
                body = b"".join(make_page(s, device=name, epoch=5) for s in range(first, last + 1))
                try:
                    reply = http.post("/v1/pages", content=body)
                except httpx.TransportError:
                    time.sleep(0.005)
                    continue
                assert reply.status_code == 200, reply.text
                [[_, _, high]] = reply.json()["acked"]
                assert high >= last  # more where an ack was lost
                acked[number] = high

    threads = [threading.Thread(target=run, args=(i,)) for i in range(3)]
    for t in threads:
        t.start()
    for kill in range(KILLS):
        if kill % 4 == 0:  # however slow the machine is, some lives acknowledge pages
            before = list(acked)
            until(lambda before=before: acked != before)
        time.sleep(rng.uniform(0, 0.15))
        collector.kill()
        collector = Collector(tmp_path, port, "--segment-bytes", "20000")
    until(lambda: min(acked) > 20)
    stop.set()
    for t in threads:
        t.join()
    assert collector.stop() == 0
    found = by_partition(tmp_path)
    for number, last in enumerate(acked):
        pages = found[f"d{number}", "power", 0]
        assert list(pages) == list(range(1, len(pages) + 1)) and len(pages) >= last
        assert all(pages[s] == make_page(s, device=f"d{number}", epoch=5) for s in pages)


@pytest.mark.whole
def test_two_collectors_share_a_landing_while_one_is_killed(tmp_path):
    """A device goes back and forth between two collectors, one of which keeps being killed."""
    rng = random.Random(2)
    steady, shaky = (Collector(tmp_path, 0, "--segment-bytes", "5000") for _ in range(2))
    with Device(steady) as a:
        a.register()
        acked = 0
        for _ in range(KILLS_BESIDE):
            with Device(shaky) as b:
                end = time.monotonic() + rng.uniform(0.02, 0.1)
                killer = threading.Timer(rng.uniform(0.02, 0.1), shaky.process.send_signal, [9])
                killer.start()
                before = acked
                while acked == before or time.monotonic() < end or killer.is_alive():
                    device = rng.choice((a, b))
                    pages = [make_page(s) for s in range(max(1, acked - 1), acked + 4)]
                    try:
                        reply = device.send(*pages)
                    except httpx.TransportError:
                        continue
                    assert reply.status_code == 200, reply.text
                    assert reply.json()["acked"] == [["power", 0, acked + 3]]
                    acked += 3
                killer.join()
            shaky.process.wait()
            shaky.kill()
            shaky = Collector(tmp_path, 0, "--segment-bytes", "5000")
    assert steady.stop() == shaky.stop() == 0
    assert by_partition(tmp_path)[DEVICE, "power", 0] == {
        s: make_page(s) for s in range(1, len(landed_pages(tmp_path)) + 1)
    }
    assert acked <= len(landed_pages(tmp_path)) <= acked + 3


def test_a_killed_collector_is_started_again_while_the_other_took_over(tmp_path):
    """Stopped between fdatasync and rows by a debugger's hand would be rare; so take the disk's
    state at that moment instead: pages written and no row."""
    first = Collector(tmp_path)
    with Device(first) as device:
        device.register()
        device.send(make_page(1))
    first.process.send_signal(signal.SIGKILL)
    first.kill()
    with (tmp_path / "segments" / "seg-c0-00000001.pages").open("ab") as file:
        file.write(make_page(2) + make_page(3) + make_page(4)[:100])
    holder = Collector(tmp_path)  # takes c0: recovers 2 and 3, cuts the half page
    assert landed_pages(tmp_path) == [make_page(1), make_page(2), make_page(3)]
    with Device(holder) as device:
        assert device.send(make_page(3), make_page(4)).json()["acked"] == [["power", 0, 4]]
    assert holder.stop() == 0
    assert "2 durable pages were made visible" in holder.log
    assert by_partition(tmp_path)[DEVICE, "power", 0] == {s: make_page(s) for s in range(1, 5)}


def test_schemas_survive_and_agree_between_collectors(tmp_path):
    one, two = Collector(tmp_path), Collector(tmp_path)
    with Device(one) as a, Device(two) as b:
        assert a.register().status_code == b.register().status_code == 204
        assert b.register(text='[{"name":"x","type":"bool"}]').status_code == 409
    assert one.stop() == two.stop() == 0
    assert (tmp_path / "schemas" / "power@1.json").read_text() == SCHEMA


def test_killed_within_the_steps_of_a_seal_it_loses_and_repeats_nothing(tmp_path):
    """`python -m tests.central.seal_kills` is the whole campaign."""
    kills = count(2, 30)
    assert seal_kills.run(tmp_path / "landing", kills, seed=7)["killed_in_a_seal"] >= kills
