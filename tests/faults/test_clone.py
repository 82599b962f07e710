"""Two daemons on one store, and on copies of one store: one goes on, the other ends with a reason.

The collector's rule is deterministic: within an epoch the larger session counter holds the floor,
and of two with the same counter the first to reach the collector.
"""

import contextlib
import shutil

import pytest

from edged.control.door import ask
from edged.errors import ConfigError
from edged.platform.processes import ChildProcess
from edged.uplink import telemetry
from tests.central.support import by_partition
from tests.system.support import System, assert_exactly_once, law_job, until


@pytest.fixture
def system(tmp_path):
    with System(tmp_path) as made:
        made.collect()
        yield made


@pytest.fixture
def copied(system):
    """A daemon that was killed with pages to send, and a copy of its store."""
    daemon = system.run(law_job(system.address))
    system.produce(of=1)
    system.parts["collector"].kill()
    until(lambda: system.status()["store"]["backlog_pages"] > 3, 120, "pages wait", daemon)
    daemon.kill()
    shutil.copytree(system.store, system.directory / "copy")
    system.parts["collector"].restart()
    return system


def original(system):
    """The daemon started again, when the centre has acknowledged pages of this start."""
    system.parts["daemon"].restart()
    until(lambda: has_sent(system.door), 120, "the original sends", system.parts["daemon"])


def clone(system):
    """A daemon on the copy, without producers."""
    job = law_job("127.0.0.1:0")
    return system.run(job, name="clone", store=system.directory / "copy", door=door_of(system))


def door_of(system):
    return system.directory / "clone-door"


def uplink(door):
    with contextlib.suppress(ConfigError):
        return ask(door, "status")["uplink"]
    return {"state": None, "acked_pages": 0}


def has_sent(door):
    return uplink(door).get("acked_pages", 0) > 0


def fenced(door):
    return uplink(door)["state"] == "fenced"


def test_a_second_daemon_on_a_store_in_use_exits_73_and_names_the_first(system):
    first = system.run(law_job(system.address))
    system.produce(of=1)
    job = system.directory / "daemon.json"
    second = ChildProcess(
        "second", ["edged", "run", str(job), "--store", str(system.store)], system.logs
    )
    assert second.process.wait(120) == 73
    said = second.log.read_text()
    assert f"process {first.process.pid} is using this store" in said
    batches = system.end_streams()
    system.drain()
    assert_exactly_once(system.landing, system.config, batches)


@pytest.mark.whole
def test_of_two_with_the_same_session_the_first_to_reach_the_centre_goes_on(copied):
    original(copied)
    clone(copied)
    until(lambda: fenced(door_of(copied)), 120, "the clone is fenced")
    assert "copies of one store" in uplink(door_of(copied))["last_error"]
    batches = copied.end_streams()
    copied.drain()
    assert not fenced(copied.door)
    assert_exactly_once(copied.landing, copied.config, batches)
    assert "edge-1: fenced" in copied.parts["collector"].log.read_text()


def test_a_clone_that_is_older_than_the_original_is_fenced_from_its_first_page(copied):
    original(copied)
    copied.parts["daemon"].kill()
    original(copied)
    clone(copied)
    until(lambda: fenced(door_of(copied)), 120, "the clone is fenced")
    assert not has_sent(door_of(copied))
    batches = copied.end_streams()
    copied.drain()
    assert_exactly_once(copied.landing, copied.config, batches)


@pytest.mark.whole
def test_a_clone_with_the_larger_session_takes_the_floor_and_the_original_stops(copied):
    original(copied)
    twin = clone(copied)
    until(lambda: fenced(door_of(copied)), 120, "the clone is fenced at first")
    twin.kill()
    twin.restart()
    until(lambda: fenced(copied.door), 120, "the original is fenced")
    landed = results(copied.landing)
    for pages in landed.values():
        assert sorted(pages) == list(range(1, len(pages) + 1))
    before = copied.acked()
    until(lambda: copied.acked() != before, 120, "the original keeps taking in", *[twin])
    assert copied.status()["store"]["backlog_pages"] > 0
    assert results(copied.landing) == landed, "nothing of the original lands any more"


def results(landing):
    """The pages of jobs; telemetry reports have their own numbering."""
    return {k: v for k, v in by_partition(landing).items() if k[1] != telemetry.STREAM}
