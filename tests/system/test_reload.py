"""Reloads of a running daemon: refused ones change nothing, applied ones lose nothing."""

import signal
import socket
import time

import pytest

from edged.control.door import ask
from edged.errors import CommandError, ConfigError
from edged.platform.processes import ChildProcess, free_port

JOB = """\
name = "{name}"
[promises]
latency = "{latency_ms}ms"
[streams.{name}_s]
source = {{ type = "tcp", listen = "127.0.0.1:{port}" }}
columns = {{ time = "timestamp", v = "int64" }}
time = "time"
[sinks.{name}_out]
type = "pages"
input = "{name}_s"
"""


class Configured(ChildProcess):
    """`edged run --config`, in a directory of its own."""

    def __init__(self, path):
        self.path, self.port = path, free_port()
        self.jobs = path / "jobs.d"
        self.jobs.mkdir()
        self.door = path / "store" / "door"
        self.configure("")
        words = ["edged", "run", "--config", str(path / "edged.toml"), "--json"]
        super().__init__("daemon", words, path)

    def __enter__(self):
        self.ready(300)
        return self

    def __exit__(self, *_):
        self.stop()

    def configure(self, more):
        text = '[store]\ndirectory = "store"\n[run]\njobs = ["jobs.d/*.toml"]\nworkers = 1\n'
        board = '[energy]\nboard = "simulated:orin-nano"\n'
        (self.path / "edged.toml").write_text(text + (more or board))

    def job(self, name, latency_ms=50):
        text = JOB.format(name=name, port=self.port, latency_ms=latency_ms)
        (self.jobs / f"{name}.toml").write_text(text)

    def jobs_now(self):
        return {job["name"]: job for job in ask(self.door, "jobs")["jobs"]}

    def kinds(self):
        return [event["kind"] for event in ask(self.door, "events", limit=1000)["events"]]

    def until(self, condition, seconds=120):
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline
            self.check()
            time.sleep(0.05)


POLICY = """\
[energy]
board = "simulated:orin-nano"
policy = "power_cap"
settings = {watts = 5.0}
max_celsius = 99
"""


def test_a_reload_is_refused_whole_or_applied_whole(tmp_path):
    with Configured(tmp_path) as daemon:
        assert daemon.jobs_now() == {}, "a daemon may begin without a job"
        daemon.job("a")
        assert ask(daemon.door, "reload") == {"applied": ["job a"], "later": []}
        assert daemon.jobs_now()["a"]["origin"] == f"file:{tmp_path}/jobs.d/a.toml"

        # one job is right, the other and a key are wrong: nothing at all happens
        daemon.job("a", latency_ms=70)
        (daemon.jobs / "b.toml").write_text('name = "b"\n')
        ask(daemon.door, "governor", policy="race_to_idle", settings={})
        daemon.configure(POLICY + "[log]\nlevle = 5\n")
        with pytest.raises(ConfigError, match=r"did you mean log\.level"):
            ask(daemon.door, "reload")
        daemon.configure(POLICY)
        with pytest.raises(ConfigError, match=r"b\.toml: streams: is missing"):
            ask(daemon.door, "reload")
        assert daemon.jobs_now()["a"]["version"] == 1
        assert ask(daemon.door, "governor")["policy"] == "race_to_idle"
        assert (daemon.path / "store/policy.json").exists(), "what a command chose is kept"
        values = {row["key"]: row for row in ask(daemon.door, "config")["values"]}
        assert values["energy.policy"]["origin"] == "default"

        # by a signal, now that all is right
        (daemon.jobs / "b.toml").unlink()
        daemon.job("c")
        daemon.configure(POLICY + "[log]\nlevel = 'warning'\n[device]\nname = 'other'\n")
        daemon.process.send_signal(signal.SIGHUP)
        daemon.until(lambda: daemon.kinds().count("config.reloaded") == 2)
        assert {n: j["version"] for n, j in daemon.jobs_now().items()} == {"a": 2, "c": 1}
        governor = ask(daemon.door, "governor")
        assert (governor["policy"], governor["own"]["origin"]) == ("power_cap", "configuration")
        assert ask(daemon.door, "status")["energy"]["heat"]["max_celsius"] == 99.0
        daemon.until(lambda: not (daemon.path / "store/policy.json").exists())
        assert ask(daemon.door, "log")["level"] == "warning"
        daemon.configure(POLICY + "[device]\nname = 'third'\n")
        assert ask(daemon.door, "reload") == {"applied": ["log.level"], "later": ["device.name"]}

        # a job whose file is gone is drained and goes
        (daemon.jobs / "a.toml").unlink()
        assert ask(daemon.door, "reload") == {"applied": ["job a"], "later": []}
        daemon.until(lambda: set(daemon.jobs_now()) == {"c"})
        assert daemon.kinds().count("config.refused") == 2

        conflicts_change_nothing(daemon)
        a_taken_port_changes_nothing(daemon)


def conflicts_change_nothing(daemon):
    # a job of another name that ships the same stream cannot stand beside it: nothing happens
    text = (daemon.jobs / "c.toml").read_text()
    (daemon.jobs / "c.toml").write_text(text.replace('name = "c"', 'name = "d"'))
    daemon.configure("")
    with pytest.raises(ConfigError, match="job d already makes pages of c_out"):
        ask(daemon.door, "reload")
    assert set(daemon.jobs_now()) == {"c"}
    assert ask(daemon.door, "governor")["policy"] == "power_cap"

    # nor can two that swap their streams, one after the other: nothing happens
    daemon.job("c"), daemon.job("d")
    daemon.configure(POLICY)
    ask(daemon.door, "reload")
    jobs = {name: job["version"] for name, job in daemon.jobs_now().items()}
    for name, other in ("cd", "dc"):
        text = JOB.format(name=other, port=daemon.port, latency_ms=50)
        (daemon.jobs / f"{name}.toml").write_text(text.replace(f'"{other}"\n[p', f'"{name}"\n[p'))
    daemon.configure("[log]\nlevel = 'error'\n" + POLICY)
    with pytest.raises(ConfigError, match=r"already makes pages of ._out"):
        ask(daemon.door, "reload")
    assert {n: j["version"] for n, j in daemon.jobs_now().items()} == jobs
    assert ask(daemon.door, "log")["level"] == "info"


def a_taken_port_changes_nothing(daemon):
    # a port that is taken is found out only by taking it: the policy is as it was, too
    jobs = {name: job["version"] for name, job in daemon.jobs_now().items()}
    daemon.job("c"), daemon.job("d")
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()
        text = JOB.format(name="e", port=squatter.getsockname()[1], latency_ms=50)
        (daemon.jobs / "e.toml").write_text(text)
        with pytest.raises(CommandError, match="cannot listen"):
            ask(daemon.door, "reload")
    assert {n: j["version"] for n, j in daemon.jobs_now().items()} == jobs
    assert ask(daemon.door, "log")["level"] == "info"


def test_jobs_that_swap_their_streams_are_refused_and_those_that_hand_them_on_are_not(tmp_path):
    """One listener knows its streams by name, and jobs change one after the other."""
    with Configured(tmp_path) as daemon:

        def streams(**names):
            for job, stream in names.items():
                text = JOB.format(name=job, port=daemon.port, latency_ms=50)
                text = text.replace(f"{job}_s]", f"{stream}]").replace(f'"{job}_s"', f'"{stream}"')
                (daemon.jobs / f"{job}.toml").write_text(text)

        def now():
            return {n: list(job["document"]["streams"]) for n, job in daemon.jobs_now().items()}

        streams(a="one", b="two")
        ask(daemon.door, "reload")
        streams(a="two", b="one")
        with pytest.raises(ConfigError, match=r"both have a stream \w+ on tcp:.*exchange names"):
            ask(daemon.door, "reload")
        assert now() == {"a": ["one"], "b": ["two"]}
        assert {job["version"] for job in daemon.jobs_now().values()} == {1}

        streams(a="two", b="three")  # a comes first by name, and can only after b
        assert ask(daemon.door, "reload")["applied"] == ["job b", "job a"]
        assert now() == {"a": ["two"], "b": ["three"]}
