"""A desired state that fails half-way leaves all as it was, whichever command it fails at."""

from __future__ import annotations

import pytest

from edged.centre_link.desired_state import Applier, parse
from edged.control.door import ask
from edged.errors import CommandError
from tests.beat.loop import batch
from tests.beat.support import Daemon, changed, copy_job
from tests.beat.test_changes import renamed

CHANGES = {"governor", "job.put", "job.drain", "job.delete", "job.resume"}
COMMANDS = 7
"""Of the state below: a policy, two jobs put, two drained, the same two deleted."""


class Breaking:
    """A way to the daemon on which the command of number `fails` is refused, those after it not."""

    def __init__(self, door, fails=-1):
        self.door, self.fails, self.asked = door, fails, []

    def __call__(self, cmd, **arguments):
        if cmd in CHANGES and (cmd != "governor" or arguments):
            self.asked.append(cmd)
            if len(self.asked) == self.fails + 1:
                raise CommandError("failed", "the wire broke")
        return ask(self.door, cmd, **arguments)


def test_whichever_command_fails_everything_is_as_it_was(tmp_path):
    with Daemon(tmp_path, copy_job(), "--board", "simulated:orin-nano") as daemon:

        def job(name, stream, **more):
            return changed(daemon.here(renamed(name, stream, f"{stream}_out")), **more)

        def state():
            jobs = {j["name"]: j for j in ask(daemon.door, "jobs")["jobs"]}
            kept = {n: (j["document"], j["state"], j["origin"]) for n, j in jobs.items()}
            return kept, ask(daemon.door, "governor")["policy"]

        fixed = {"name": "fixed", "settings": {"cpu_mhz": 729.6}}
        first = {"jobs": [job("a", "sa"), job("b", "sb"), job("c", "sc")], "policy": fixed}
        Applier(Breaking(daemon.door)).apply(parse(first))
        ask(daemon.door, "job.pause", name="c")
        with daemon.producer("sb") as producer:
            producer.send(batch([1, 2, 3]))
            producer.flush()
        before = state()
        slower = job("a", "sa", promises={"latency": "1s"})
        second = parse({"jobs": [slower, job("d", "sd")],
                        "policy": {"name": "hands_off", "settings": {}}})  # fmt: skip
        for fails in range(COMMANDS):
            way = Breaking(daemon.door, fails)
            with pytest.raises(CommandError, match="the wire broke"):
                Applier(way).apply(second)
            assert state() == before, way.asked
            if way.asked[fails] != "job.delete":
                assert daemon.stream("b", "sb")["rows"] == 3, "its state was kept"
        way = Breaking(daemon.door)
        Applier(way).apply(second)
        assert len(way.asked) == COMMANDS
        daemon.until(lambda status: set(status["jobs"]) == {copy_job()["name"], "a", "d"})
        assert state()[1] == "hands_off"
