"""A forked command is the process that a started one is, as far as tests can see."""

import json
import os
import resource
import signal
import subprocess
import sys

import pytest

from edged.platform.processes import ChildProcess
from tests import forked

STATE = """
import json, os, resource, signal, sys
found = {
    "arguments": sys.argv[1:], "directory": os.getcwd(), "import from": sys.path[0],
    "environment": dict(os.environ), "parent": os.getppid(), "session": os.getsid(0) == os.getpid(),
    "descriptors": sorted(int(n) for n in os.listdir("/proc/self/fd"))[:-1],
    "cpus": sorted(os.sched_getaffinity(0)), "interrupt": str(signal.getsignal(signal.SIGINT)),
    "pipe": str(signal.getsignal(signal.SIGPIPE)),
    "open files": resource.getrlimit(resource.RLIMIT_NOFILE),
    "streams": [(s.encoding, s.errors, s.line_buffering, s.write_through, s.fileno())
                for s in (sys.stdin, sys.stdout, sys.stderr)],
    "main": sys.modules["__main__"].__file__, "input": sys.stdin.read(),
}
print(json.dumps(found))
"""


@pytest.fixture
def state(tmp_path, monkeypatch):
    """A module `edged_state` that prints what a process is; it may be forked."""
    (tmp_path / "edged_state.py").write_text(STATE)
    monkeypatch.setattr(forked, "MODULES", (*forked.MODULES, "edged_state"))
    return [sys.executable, "-m", "edged_state", "a", "é b"]


def test_it_sees_what_a_started_one_sees(tmp_path, state):
    ours, theirs = os.pipe()
    os.write(theirs, b"x")
    seen = []
    for popen in (forked.Popen, forked.STARTED):
        with popen(
            state, cwd=tmp_path, env={**os.environ, "EDGED_GIVEN": "1"}, pass_fds=[ours],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        ) as process:  # fmt: skip
            seen.append(json.loads(process.communicate(b"put in")[0]))
        assert process.returncode == 0
    os.close(ours)
    os.close(theirs)
    assert seen[0] == seen[1]
    assert seen[0]["parent"] == os.getpid()


def test_limits_and_cores_of_the_moment_are_its_own(tmp_path, state):
    cores, (soft, hard) = os.sched_getaffinity(0), resource.getrlimit(resource.RLIMIT_NOFILE)
    os.sched_setaffinity(0, {min(cores)})
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    try:
        done = forked.Popen(state, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        found = json.loads(done.communicate()[0])
    finally:
        os.sched_setaffinity(0, cores)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found["cpus"] == [min(cores)]
    assert found["open files"] == [soft - 1, hard]


ENDS = {
    "import sys; sys.exit(3)": 3,
    "import sys; sys.exit('a reason')": 1,
    "raise ValueError('no')": 1,
    "import os, signal; os.kill(os.getpid(), signal.SIGINT)": -signal.SIGINT,
    "import os, signal; os.kill(os.getpid(), signal.SIGTERM)": -signal.SIGTERM,
    "import atexit; atexit.register(print, 'at the end')": 0,
    "import threading; threading.Timer(0.1, print, ['late']).start()": 0,
}


@pytest.mark.parametrize("text, status", ENDS.items())
def test_it_ends_as_a_started_one_ends(tmp_path, state, text, status):
    (tmp_path / "edged_state.py").write_text(text)
    ended = []
    for popen in (forked.Popen, forked.STARTED):
        with popen(state, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            out, err = process.communicate()
        ended.append((process.returncode, out, err.splitlines()[-1:]))
    assert ended[0] == ended[1]
    assert ended[0][0] == status


def test_another_version_of_the_packages_is_started(tmp_path, monkeypatch):
    """PYTHONPATH may add modules, and plug-ins, but replace nothing that is imported."""
    monkeypatch.setattr(forked, "server", pytest.fail)
    (tmp_path / "edged").mkdir()
    (tmp_path / "edged" / "__init__.py").write_text("")
    (tmp_path / "edged" / "__main__.py").write_text("print('another')")
    words = [sys.executable, "-m", "edged"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    started = forked.Popen(words, stdout=subprocess.PIPE, cwd=tmp_path, env=environment)
    assert started.communicate()[0] == b"another\n"


@pytest.mark.parametrize(
    "words, more",
    [
        ([sys.executable, "-c", "pass"], {}),
        ([sys.executable, "-X", "dev", "-m", "edged", "--version"], {}),
        ([sys.executable, "-m", "tests.fork_server_that_is_not_there"], {}),
        ([sys.executable, "-m", "edged", "--version"], {"preexec_fn": int}),
        ([sys.executable, "-m", "edged", "--version"], {"env": {"PYTHONHASHSEED": "1"}}),
        ("true", {"shell": True}),
    ],
)
def test_what_a_fork_cannot_show_is_started(words, more, monkeypatch):
    monkeypatch.setattr(forked, "server", pytest.fail)
    with forked.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **more) as done:
        done.wait()


def test_children_of_tests_are_forked_and_waited_for(tmp_path):
    child = ChildProcess("version", ["edged", "--version"], tmp_path)
    assert child.process.wait(120) == 0
    assert isinstance(child.process, forked.Popen)
