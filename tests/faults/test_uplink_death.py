"""The uplink's process dies while the daemon is idle: the pages that are left are still sent."""

import contextlib
import os
import signal

import psutil

from edged.central.segments import positions
from tests.system.support import System, assert_exactly_once, law_job, until


def test_an_idle_daemon_restarts_a_dead_uplink_and_its_last_pages_land(tmp_path):
    with System(tmp_path) as system:
        collector = system.collect()
        collector.kill()
        daemon = system.run(law_job(system.address))
        system.produce(of=1, batches_max=20)
        batches = system.end_streams_by_themselves()
        until(lambda: system.status()["jobs"]["law"]["ended"], 120, "the end", daemon)
        status = system.status()
        pages = status["store"]["backlog_pages"]
        assert pages > 0
        os.kill(status["uplink"]["pid"], signal.SIGKILL)
        collector.restart()
        until(lambda: sum(positions(system.landing).values()) == pages, 120, "all landed", daemon)
        assert [c.pid for c in psutil.Process(daemon.process.pid).children()] != [
            status["uplink"]["pid"]
        ]
        system.drain()
        assert_exactly_once(system.landing, system.config, batches)


def test_an_idle_daemon_restarts_uplinks_that_die_young_and_their_pages_land(tmp_path):
    with System(tmp_path) as system:
        collector = system.collect()
        collector.kill()
        daemon = system.run(law_job(system.address))
        system.produce(of=1, batches_max=20)
        batches = system.end_streams_by_themselves()
        until(lambda: system.status()["jobs"]["law"]["ended"], 120, "the end", daemon)
        pages = system.status()["store"]["backlog_pages"]
        beat = system.status()["beat"]
        parent = psutil.Process(daemon.process.pid)
        killed = set()
        while len(killed) < 4:
            until(lambda: _uplinks(parent) - killed, 120, "another uplink", daemon)
            for pid in _uplinks(parent) - killed:
                os.kill(pid, signal.SIGKILL)  # no request and no beat follows
                killed.add(pid)
        collector.restart()
        until(lambda: sum(positions(system.landing).values()) == pages, 120, "all landed", daemon)
        status = system.status()
        assert status["beat"] == beat and status["uplink"]["starts"] >= 5
        system.drain()
        assert_exactly_once(system.landing, system.config, batches)


def test_a_job_with_new_schemas_keeps_the_uplink_and_does_not_wait_for_a_hanging_one(tmp_path):
    with System(tmp_path) as system:
        system.collect()
        system.run(law_job(system.address))
        pid = system.status()["uplink"]["pid"]
        job = law_job(system.address)
        job["sinks"]["copy"] = {"type": "pages", "input": "a", "stream": "copy", "page": "64KiB"}
        os.kill(pid, signal.SIGSTOP)
        system.replace_job(job)
        assert psutil.Process(pid).status() == psutil.STATUS_STOPPED
        os.kill(pid, signal.SIGCONT)
        path = system.landing / "schemas" / "copy@1.json"
        until(path.exists, 120, "the schema", system.parts["daemon"])
        assert system.status()["uplink"]["pid"] == pid


def _uplinks(parent):
    """Process ids of the uplink's running children."""
    found = set()
    for child in parent.children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.status() != psutil.STATUS_ZOMBIE and "edged.uplink" in child.cmdline():
                found.add(child.pid)
    return found
