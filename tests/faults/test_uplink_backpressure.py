"""The centre is away and the store is small: edged stops taking in, and loses nothing."""

import time

import psutil
import pytest

from edged.errors import ConfigError
from tests.system.support import System, assert_exactly_once, law_job, until

MEMORY, STORE_BYTES, BATCHES = "4MiB", 12 << 20, 200
RSS_GROWTH_BYTES_MAX = 16 << 20


@pytest.fixture
def full(tmp_path):
    """A system whose collector was killed and whose store has filled up since."""
    with System(tmp_path) as system:
        collector = system.collect()
        job = law_job(system.address, memory=MEMORY)
        job["sinks"]["copy"] = {"type": "pages", "input": "a", "stream": "copy", "page": "64KiB"}
        system.run(job, "--store-max", str(STORE_BYTES))
        system.produce(
            of=1, batch=4000, period_s=0.01, batches_max=BATCHES, unacked_bytes_max=1 << 20
        )
        collector.kill()
        until(lambda: stands_still(system), 120, "backpressure", system.parts["producers"])
        yield system


def stands_still(system, seconds=3.0):
    before = system.acked()
    time.sleep(seconds)
    return system.status()["store"]["full"] and system.acked() == before


def disk_bytes(store):
    return sum(f.stat().st_blocks * 512 for f in store.rglob("*") if f.is_file())


@pytest.mark.whole
def test_a_full_store_stops_the_producers_and_everything_drains_when_the_centre_is_back(full):
    acked = full.acked()
    assert 0 < max(acked.values()) < BATCHES, "stopped before the end"
    daemon = psutil.Process(full.parts["daemon"].process.pid)
    rss = daemon.memory_info().rss
    assert stands_still(full, 4.0)
    assert daemon.memory_info().rss - rss <= RSS_GROWTH_BYTES_MAX
    assert disk_bytes(full.store) <= STORE_BYTES * 1.25
    status = full.status()
    assert status["store"]["backlog_pages"] > 0 and status["uplink"]["state"] == "down"
    full.parts["collector"].restart()
    batches = full.end_streams_by_themselves()
    assert set(batches.values()) == {BATCHES}
    full.drain()
    assert_exactly_once(full.landing, full.config, batches, copy="SELECT * FROM a")


@pytest.mark.whole
def test_a_daemon_with_a_full_store_obeys_and_goes_on_after_a_restart(full):
    daemon = full.parts["daemon"]
    with pytest.raises(ConfigError, match="full"):
        full.replace_job(law_job(full.address, memory=MEMORY))
    daemon.process.terminate()
    assert daemon.process.wait(120) == 0, "it does not wait for the centre"
    full.parts["collector"].restart()
    daemon.restart()
    batches = full.end_streams_by_themselves()
    full.drain()
    assert_exactly_once(full.landing, full.config, batches, copy="SELECT * FROM a")
