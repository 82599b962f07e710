"""The child that judges a desired state, as the heart's thread sees it."""

from __future__ import annotations

import json
import sys
import time

from edged.centre_link.desired_state import RECEIVED
from edged.centre_link.follower import DesiredStateFollower
from edged.events.log import Events, LineLog
from edged.platform.clock import SystemClock
from edged.platform.event_loop import EventLoop

CHILD = """\
#!/bin/sh
printf '{"version": 7, "app'
while [ ! -e %(go)s ]; do sleep 0.02; done
printf 'lied": 7}'
"""


def test_the_event_loop_does_not_wait_for_a_child_that_writes_and_exits_slowly(
    tmp_path, monkeypatch
):
    child, go = tmp_path / "child", tmp_path / "go"
    child.write_text(CHILD % {"go": go})
    child.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(child))
    (tmp_path / RECEIVED).write_text(json.dumps({"version": 7, "document": {}}))
    clock = SystemClock()
    event_loop, ended = EventLoop(clock), []
    follower = DesiredStateFollower(
        tmp_path,
        tmp_path / "door",
        event_loop,
        Events(clock, LineLog(lambda *_: None)),
        lambda: ended.append(follower.outcome()),
    )
    follower.follow()
    event_loop.until_input(clock.monotonic_us() + 60_000_000)  # its first words
    event_loop.until_input(clock.monotonic_us())
    assert not ended, "it has not ended, and was not waited for"
    go.touch()
    deadline = time.monotonic() + 180
    while not ended:
        assert time.monotonic() < deadline
        event_loop.until_input(clock.monotonic_us() + 1_000_000)
    assert ended == [{"version": 7, "applied": 7, "problem": ""}]
    follower.close()
    event_loop.close()


def test_a_child_that_cannot_be_made_is_the_problem_of_that_version_and_of_no_other(
    tmp_path, monkeypatch
):
    child = tmp_path / "child"
    monkeypatch.setattr(sys, "executable", str(child))
    clock = SystemClock()
    event_loop, ended = EventLoop(clock), []
    follower = DesiredStateFollower(
        tmp_path,
        tmp_path / "door",
        event_loop,
        Events(clock, LineLog(lambda *_: None)),
        lambda: ended.append(follower.outcome()),
    )
    follower.follow({"version": 7})
    problem = ended[0].pop("problem")
    assert ended == [{"version": 7, "applied": 0}] and "No such file" in problem
    child.write_text('#!/bin/sh\nprintf \'{"version": 8, "applied": 8, "problem": ""}\'')
    child.chmod(0o755)
    follower.follow({"version": 8})
    deadline = time.monotonic() + 180
    while len(ended) < 2:
        assert time.monotonic() < deadline
        event_loop.until_input(clock.monotonic_us() + 1_000_000)
    assert ended[1] == {"version": 8, "applied": 8, "problem": ""}
    follower.close()
    event_loop.close()
