"""The uplink's process dies while nothing else happens: what is left to send goes all the same."""

import os
import signal
import time

import psutil

from edged.central.segments import positions
from tests.system.support import System, assert_exactly_once, law_job, until


def test_an_idle_daemon_hears_that_its_uplink_has_died_and_its_last_pages_land(tmp_path):
    with System(tmp_path) as system:
        collector = system.collect()
        collector.kill()
        daemon = system.run(law_job(system.address))
        system.produce(of=1, batches_max=20)
        batches = system.end_streams_by_themselves()
        until(lambda: system.status()["jobs"]["law"]["ended"], 60, "the end", daemon)
        status = system.status()
        time.sleep(max(0.0, 6.0 - status["uptime_s"]))  # younger ones wait for the next beat
        pages = status["store"]["backlog_pages"]
        assert pages > 0
        os.kill(status["uplink"]["pid"], signal.SIGKILL)
        collector.restart()
        until(lambda: sum(positions(system.landing).values()) == pages, 60, "all landed", daemon)
        assert [c.pid for c in psutil.Process(daemon.process.pid).children()] != [
            status["uplink"]["pid"]
        ]
        system.drain()
        assert_exactly_once(system.landing, system.config, batches)
