"""`edged up`: what it starts, what becomes of a process that dies, and how it ends."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edged.cli._local_stack import StackLayout
from edged.control.door import ask
from edged.errors import ConfigError
from edged.platform.processes import ChildProcess
from edged.rest import Client

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.toml"


def up(directory, job=QUICKSTART, **options):
    words = [sys.executable, "-m", "edged", "up", str(job), "--directory", str(directory)]
    return subprocess.run(
        [*words, "--board", "none"], capture_output=True, text=True, timeout=300, check=False,
        **options,
    )  # fmt: skip


def event(part, key):
    """The value of the next event with `key`."""
    while True:
        found = part.events.get(timeout=120)
        if key in found:
            return found[key]


def test_a_killed_daemon_is_restarted_and_an_interrupt_ends_all(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the job writes into out/
    place = tmp_path / "up"
    command = ("edged", "up", str(QUICKSTART), "--directory", str(place), "--board", "none")
    part = ChildProcess("up", (*command, "--json"), tmp_path)
    try:
        facts = part.ready(300)
        with Client(facts["api"]) as client:
            assert [job["name"] for job in client.jobs()["items"]] == ["quickstart"]
        os.kill(ask(place / "store" / "door", "status")["pid"], signal.SIGKILL)
        assert event(part, "restarted") == "daemon"
        assert ask(place / "store" / "door", "status")["state"] == "running"

        second = up(place)
        assert second.returncode == 73 and "another `edged up` runs there" in second.stderr

        part.process.send_signal(signal.SIGINT)
        assert event(part, "stopping")
        assert part.process.wait(120) == 0
    finally:
        part.stop()
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            assert str(place).encode() not in line.read_bytes()


def test_a_wrong_job_is_refused_before_anything_starts(tmp_path):
    job = tmp_path / "job.json"
    job.write_text(json.dumps({"name": "x"}))
    done = up(tmp_path / "up", job)
    assert done.returncode == 65 and "edged: " in done.stderr
    assert not (tmp_path / "up").exists()


def test_the_exit_code_is_that_of_the_process_that_cannot_start(tmp_path):
    (tmp_path / "store").write_text("a file in the place of the store's directory")
    done = up(tmp_path)
    assert done.returncode in (75, 78), done.stderr
    assert "daemon ended with" in done.stderr


def test_a_directory_too_deep_for_sockets_is_refused():
    with pytest.raises(ConfigError, match="shorter --directory"):
        StackLayout(Path("/" + "x" * 100))
