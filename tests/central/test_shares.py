"""One device does not fill the centre's disk for all others: it waits, the others go on."""

from __future__ import annotations

import os
import random
import time

import pytest

from edged.central import segments, shares
from edged.central.expire import expire
from edged.central.shares import Shares
from tests.central.support import Device, collecting, landed_pages, make_page
from tests.central.test_landing import open_landing, send

OTHER = "other"


def share_of(path, size):
    """The share that is `size` bytes of the disk at `path`."""
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
    monkeypatch.setattr(shares, "REFRESH_S", 0.0)
    until = time.monotonic() + 60
    while send(place, make_page(5)).problem is not None:
        assert time.monotonic() < until
    place.close()
    assert landed_pages(tmp_path)[-1] == make_page(5)


@pytest.mark.parametrize("seed", range(3))
def test_what_is_counted_is_what_the_rows_say_whoever_lands_and_deletes(tmp_path, seed):
    rng = random.Random(seed)
    size = len(make_page(1))
    one, two = (open_landing(tmp_path, segment_bytes=3 * size, device_share=0.9) for _ in range(2))
    seqs = dict.fromkeys(("d1", "d2", "d3"), 0)
    for _ in range(60):
        device = rng.choice(list(seqs))
        seqs[device] += 1
        send(rng.choice((one, two)), make_page(seqs[device], device=device), device=device)
        if rng.random() < 0.1:
            expire(tmp_path, 2**62, ["power"])
        if rng.random() < 0.3:
            for place in (one, two):
                place.shares._refresh()
                held = {device: place.shares.held(device) for device in naive(tmp_path)}
                assert held == naive(tmp_path)
    fresh = Shares(tmp_path, 0.9)
    assert {device: fresh.held(device) for device in naive(tmp_path)} == naive(tmp_path)
    one.close()
    two.close()


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
