"""Alerts of the centre and of clocks, on a separate plant: they take long to fire, and
other tests do not wait for them (see test_prometheus.py)."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from edged.client import Producer
from edged.errors import EdgedError
from edged.metrics.central import AGGREGATION
from edged.platform.processes import free_port
from tests.central.support import Device, make_page
from tests.metrics.plant import SENT, listening, rows

pytestmark = pytest.mark.xdist_group("prometheus-centre")


@pytest.fixture(scope="module", autouse=True)
def spark(plant):
    """It begins while the others are tested."""
    plant.aggregate()


def test_a_landing_on_a_slow_disk(plant, fires):
    collector, metrics = free_port(), free_port()
    plant.part("slow", "tests.metrics.odd", "0", "0.6", "edged", "central", "collect",
               "--landing", str(plant.path / "slow"), "--listen", f"127.0.0.1:{collector}",
               "--metrics", f"127.0.0.1:{metrics}", "--json").ready()  # fmt: skip
    plant.scrape("edged-collector", metrics)
    plant.until(lambda: plant.query(f'up{{instance="127.0.0.1:{metrics}"}} == 1'))
    with Device(SimpleNamespace(url=f"http://127.0.0.1:{collector}"), "other") as device:
        device.register()
        assert device.send(make_page(1, device="other")).status_code == 200  # two syncs
    fires("EdgedCollectorSlow")
    plant.parts.pop("slow").stop()


def odd_daemon(plant, name, job, ahead_s, sync_s):
    """A daemon whose clock is ahead and whose disk is slow; Prometheus scrapes it."""
    (place := plant.path / name).mkdir()
    (place / "job.json").write_text(json.dumps(job))
    door, metrics = place / "store" / "door", free_port()
    config = place / "edged.toml"
    config.write_text(
        f'[run]\ndoor = "{door}"\n[store]\ndirectory = "{place / "store"}"\n'
        f'[api]\nsocket = "{place / "api.sock"}"\ngroup = ""\n'
        f'[metrics]\nlisten = "127.0.0.1:{metrics}"\n'
    )
    plant.part(name, "tests.metrics.odd", str(ahead_s), str(sync_s), "edged", "run",
               str(place / "job.json"), "--store", str(place / "store"), "--device", name,
               "--workers", "1", "--board", "none", "--json")  # fmt: skip
    plant.part(f"{name}-api", "api", "--config", str(config), "--json").ready()
    plant.parts[name].ready(300)
    plant.scrape("edged", metrics, device=name)


def test_a_daemon_whose_clock_is_a_minute_ahead(plant, fires):
    odd_daemon(plant, "ahead", listening(free_port()), 60, 0)
    fires("EdgedClockSkewed", device="ahead")


def test_a_daemon_whose_disk_is_too_slow_for_its_input(plant, fires):
    port, enough = free_port(), threading.Event()
    odd_daemon(plant, "slow-disk", listening(port, latency="100ms"), 0, 0.2)

    def send():
        address, most = f"127.0.0.1:{port}", 64 << 20
        with (
            contextlib.suppress(EdgedError, TimeoutError),
            Producer(address, "heard", SENT, producer="eager", unacked_bytes_max=most) as producer,
        ):
            while not enough.is_set():
                producer.send(rows(1000))

    sending = threading.Thread(target=send)
    sending.start()
    try:
        fires("EdgedSaturated", device="slow-disk")
    finally:
        enough.set()
        plant.parts["slow-disk"].kill()
        sending.join()


HOT = b"""\
edged_up 1
edged_temperature_celsius{zone="cpu-thermal",simulated="false"} 93
edged_temperature_trip_celsius{zone="cpu-thermal",trip="passive",simulated="false"} 95
edged_throttled{cause="under_voltage",simulated="false"} 1
"""
"""A board that no test has: hot, with a weak supply."""
HELD = b'edged_heat_held_seconds_total{simulated="false"} %d\n'
"""Its temperature limit holds races: more with each scrape."""


class Exposition(BaseHTTPRequestHandler):
    """Answers every request with HOT, and a counter that grows."""

    scrapes = itertools.count()

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(HOT + HELD % next(self.scrapes))

    def log_message(self, *_):
        pass


def test_a_board_that_is_hot_and_throttled(plant, fires):
    with ThreadingHTTPServer(("127.0.0.1", 0), Exposition) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        plant.scrape("edged", server.server_port, device="hot")
        fires("EdgedHot", device="hot", zone="cpu-thermal")
        fires("EdgedThrottled", device="hot", cause="under_voltage")
        fires("EdgedHeldByHeat", device="hot")
        server.shutdown()


def test_an_aggregation_that_takes_long_to_come_back_and_one_that_is_gone(plant, fires):
    plant.scrape("edged-aggregate", plant.tables)
    plant.until(lambda: plant.query('edged_aggregate_batches_total{result="ok"} > 0'))
    names = [f'{{__name__=~"{name}(_count)?"}}' for name in AGGREGATION]  # or of a histogram
    plant.until(lambda: all(plant.query(name) for name in names))
    # a minute between batches, and pages land all the time
    fires("EdgedAggregationStalled")
    plant.parts["aggregate"].kill()
    fires("EdgedAggregationFailing")
