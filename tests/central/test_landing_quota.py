"""The landing quota: one device cannot fill the centre's disk for the others."""

from __future__ import annotations

import os
import pickle
import random
import threading
import time
from contextlib import closing

import pytest

from edged.central import landing_quota, segments
from edged.central.expire import expire
from edged.central.landing_quota import LandingQuota
from tests.central.support import DEVICE, Device, collecting, landed_pages, make_page
from tests.central.test_landing import delivery, open_landing, send

OTHER = "other"


def share_of(path, size):
    """The share that equals `size` bytes of the disk at `path`."""
    disk = os.statvfs(path)
    return size / (disk.f_blocks * disk.f_frsize)


def naive(landing):
    """Bytes by device's hash, row by row."""
    found: dict[int, int] = {}
    for name in segments.list_segments(landing):
        for row in segments.read_rows(landing, name):
            device = int(row["device_hash"])
            found[device] = found.get(device, 0) + int(row["length"])
    return found


def counted(of):
    """Wait until the running count is over."""
    if of._refreshing is not None:
        of._refreshing.join()


class Slow:
    """Blocks the reading of rows until it is released; counts the calls."""

    def __init__(self, monkeypatch):
        self.may, self.asked, self._read = threading.Event(), 0, segments.read_rows
        monkeypatch.setattr(landing_quota.segments, "read_rows", self)

    def __call__(self, *args):
        self.asked += 1
        assert self.may.wait(120)
        return self._read(*args)


def test_a_start_waits_for_no_count_and_refuses_by_what_was_counted_before(tmp_path, monkeypatch):
    size = len(make_page(1))
    with closing(open_landing(tmp_path, segment_bytes=2 * size)) as place:
        for n in range(1, 5):
            send(place, make_page(n))
        send(place, make_page(1, device=OTHER), device=OTHER)
    share = share_of(tmp_path, 4.5 * size)
    LandingQuota(tmp_path, share).close()
    device, other = (segments.device_hash(name) for name in (DEVICE, OTHER))
    slow = Slow(monkeypatch)
    again = LandingQuota(tmp_path, share)  # would hang if it read rows
    assert again.would_exceed(device, size) and not again.would_exceed(other, size)
    again.add({other: 4 * size})
    assert again.would_exceed(other, size), "landed here since"
    slow.may.set()
    counted(again)
    assert {d: again.held(d) for d in (device, other)} == {device: 4 * size, other: 5 * size}
    again.close()
    assert slow.asked == 3, "segments"


def test_a_count_that_goes_on_keeps_no_end_waiting_and_loses_nothing(tmp_path, monkeypatch):
    size = len(make_page(1))
    with closing(open_landing(tmp_path, segment_bytes=2 * size)) as place:
        for n in range(1, 8):
            send(place, make_page(n))
    LandingQuota(tmp_path, 0.9).close()
    slow = Slow(monkeypatch)
    again = LandingQuota(tmp_path, 0.9)
    threading.Timer(0.1, slow.may.set).start()
    again.close()
    assert slow.asked <= 1, "the end is looked for at each segment"
    after = LandingQuota(tmp_path, 0.9)
    assert after.held(segments.device_hash(DEVICE)) == 7 * size
    after.close()


def test_deliveries_of_one_commit_exceed_no_share_together(tmp_path):
    size = len(make_page(1))
    with closing(open_landing(tmp_path, device_share=share_of(tmp_path, 3.5 * size))) as place:
        deliveries = [delivery(make_page(seq)) for seq in range(1, 6)]
        outcomes = place.commit(deliveries)
    assert [len(o.landed) for o in outcomes] == [1, 1, 1, 0, 0]
    assert [o.problem and o.problem.problem for o in outcomes] == [None] * 3 + ["quota"] * 2
    assert len(landed_pages(tmp_path)) == 3


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x93NUMPY", pickle.dumps([1]), None])
def test_without_what_was_counted_before_the_first_count_is_waited_for(tmp_path, content):
    size = len(make_page(1))
    with closing(open_landing(tmp_path)) as place:
        send(place, make_page(1))
    LandingQuota(tmp_path, 0.9).close()
    written = (tmp_path / "shares").read_bytes()
    if content is None:
        (tmp_path / "shares").unlink()
    else:
        (tmp_path / "shares").write_bytes(content)
    again = LandingQuota(tmp_path, 0.9)
    assert again.held(segments.device_hash(DEVICE)) == size and again._refreshing is None
    again.close()
    assert (tmp_path / "shares").read_bytes() == written


def test_a_landing_that_cannot_be_read_for_a_moment_is_counted_the_next_time(
    tmp_path, monkeypatch, caplog
):
    size = len(make_page(1))
    with closing(open_landing(tmp_path, segment_bytes=size)) as place:
        send(place, make_page(1)), send(place, make_page(2))
    read, broken = segments.read_rows, []

    def once(*args):
        if len(broken) == 1:
            broken.append(2)
            raise OSError(5, "input/output error")
        broken.append(1)
        return read(*args)

    monkeypatch.setattr(landing_quota.segments, "read_rows", once)
    of = LandingQuota(tmp_path, 0.9)
    assert "the quota count failed" in caplog.text
    of._refresh()
    assert of.held(segments.device_hash(DEVICE)) == 2 * size
    of.close()


def test_a_device_waits_at_its_share_and_goes_on_when_pages_are_deleted(tmp_path, monkeypatch):
    size = len(make_page(1))
    share = share_of(tmp_path, 4.5 * size)
    place = open_landing(tmp_path, segment_bytes=2 * size, device_share=share)
    assert send(place, *[make_page(n) for n in (1, 2, 3, 4)]).problem is None
    refused = send(place, make_page(5)).problem
    assert refused.problem == "quota" and "edged central expire" in refused.detail
    assert f"{4 * size} bytes" in refused.detail
    assert place.largest_share() == pytest.approx(4 / 4.5, rel=0.01)
    assert send(place, make_page(1, device=OTHER), device=OTHER).problem is None
    assert send(place).problem is None, "a request without pages is nothing to refuse"
    assert expire(tmp_path, 2**62, ["power"]).segments
    monkeypatch.setattr(landing_quota, "REFRESH_S", 0.0)
    until = time.monotonic() + 120
    while send(place, make_page(5)).problem is not None:
        assert time.monotonic() < until
    place.close()
    assert landed_pages(tmp_path)[-1] == make_page(5)


@pytest.mark.parametrize("seed", range(3))
def test_what_is_counted_is_what_the_rows_say_whoever_lands_and_deletes(tmp_path, seed):
    rng = random.Random(seed)
    size = len(make_page(1))
    one, two = (open_landing(tmp_path, segment_bytes=3 * size, device_share=0.9) for _ in range(2))
    for place in (one, two):
        counted(place.quota)
    seqs = dict.fromkeys(("d1", "d2", "d3"), 0)
    for _ in range(60):
        device = rng.choice(list(seqs))
        seqs[device] += 1
        send(rng.choice((one, two)), make_page(seqs[device], device=device), device=device)
        if rng.random() < 0.1:
            expire(tmp_path, 2**62, ["power"])
        if rng.random() < 0.3:
            for place in (one, two):
                place.quota._refresh()
                held = {device: place.quota.held(device) for device in naive(tmp_path)}
                assert held == naive(tmp_path)
    one.close()
    two.close()
    fresh = LandingQuota(tmp_path, 0.9)
    counted(fresh)
    assert {device: fresh.held(device) for device in naive(tmp_path)} == naive(tmp_path)


def test_a_real_collector_tells_a_device_to_wait_and_others_not(tmp_path):
    (tmp_path / "landing").mkdir()
    share = share_of(tmp_path / "landing", 2.5 * len(make_page(1)))
    options = ("--device-share", repr(share), "--metrics", "127.0.0.1:0")
    with collecting(tmp_path / "landing", *options) as collector:
        with Device(collector) as device:
            device.register()
            assert device.send(make_page(1), make_page(2)).status_code == 200
            reply = device.send(make_page(3))
            assert (reply.status_code, reply.json()["problem"]) == (507, "quota")
            assert reply.json()["acked"] == []
            metrics = device.http.get(f"http://{collector.metrics}/metrics").text
            assert 'edged_collector_page_problems_total{problem="quota"} 1.0' in metrics
            assert "edged_collector_device_share_ratio 0.8" in metrics
            assert device.http.get("/v1/stats").json()["quota"] == 1
        with Device(collector, OTHER) as device:
            assert device.send(make_page(1, device=OTHER)).status_code == 200
    assert len(landed_pages(tmp_path / "landing")) == 3
