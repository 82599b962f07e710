"""A daemon and an API as processes, and asking them over their sockets."""

from __future__ import annotations

import json
import re
import time
from contextlib import contextmanager, suppress

import httpx

from edged.http.api_tokens import TokenFile
from edged.platform.processes import ChildProcess, free_port

NOW_US = time.time_ns() // 1000
HOUR_US = 3_600_000_000
READINGS = {
    "name": "readings",
    "promises": {"latency": "50ms"},
    "streams": {
        "power": {
            "source": {"type": "http"},
            "columns": {"id": "int64", "time": "timestamp", "kw": "float64?", "text": "string?"},
            "time": "time",
            "late": "dead_letter",
            "max_ahead": "36500d",
        }
    },
    "operators": {"big": {"type": "filter", "input": "power", "where": "kw > 100"}},
    "sinks": {
        "all": {"type": "pages", "input": "power", "page": "4KiB"},
        "late": {"type": "pages", "input": "power.late", "page": "4KiB"},
        "bigs": {"type": "pages", "input": "big", "page": "4KiB"},
    },
}


_SMALL = """
name = "{0}"
[streams.{0}]
source = {{ type = "http" }}
columns = {{ id = "int64", time = "timestamp" }}
time = "time"
[sinks.{0}s]
type = "pages"
input = "{0}"
"""


def small_toml(name="extra"):
    """The smallest job document, with a stream of its name."""
    return _SMALL.format(name)


def small(name="extra"):
    """The same as it is sent."""
    source = {"type": "http"}
    columns = {"id": "int64", "time": "timestamp"}
    return {
        "name": name,
        "streams": {name: {"source": source, "columns": columns, "time": "time"}},
        "sinks": {f"{name}s": {"type": "pages", "input": name}},
    }


class Daemon(ChildProcess):
    """`edged run` of one job on a simulated board; `store` and `door` are where it says."""

    def __init__(self, path, document=READINGS, *arguments):
        self.path, self.store = path, path / "store"
        self.door = self.store / "door"
        file = path / "job.json"
        file.write_text(json.dumps(document))
        words = ["edged", "run", str(file), "--store", str(self.store), "--json", "--workers", "1"]
        words += ["--device", "dev", "--board", "simulated:orin-nano", *arguments]
        super().__init__("daemon", words, path)

    def __enter__(self):
        self.ready(300)
        return self

    def __exit__(self, *_):
        self.stop()


class Api(ChildProcess):
    """`edged-api` on a unix socket and, with `tcp`, on a port of loopback."""

    def __init__(self, path, door=None, tcp=False, **settings):
        self.path, self.socket = path, path / "api.sock"
        self.tokens = TokenFile(path / "tokens.json")
        self.port = free_port() if tcp else None
        section = {"socket": str(self.socket), "group": "", "tokens_file": str(self.tokens.path)}
        if tcp:
            section["listen"] = f"127.0.0.1:{self.port}"
        section |= settings
        self.config = path / "edged.toml"
        lines = [f"{key} = {json.dumps(value)}" for key, value in section.items()]
        where = json.dumps(str(door or path / "store" / "door"))
        self.config.write_text(
            f'[store]\ndirectory = "{path / "store"}"\n[run]\ndoor = {where}\n'
            '[metrics]\nlisten = ""\n[api]\n' + "\n".join(lines)
        )
        super().__init__("api", ["api", "--config", str(self.config), "--json"], path)

    def __enter__(self):
        self.ready(300)
        return self

    def __exit__(self, *_):
        self.stop()

    def client(self, token=None, **options):
        """An httpx client of the unix socket."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        # verify: 22 ms of CPU for the system's certificates, which no test uses
        transport = httpx.HTTPTransport(uds=str(self.socket), verify=False)
        options = {"base_url": "http://localhost", "timeout": 60, **options}
        hooks = {"response": [_check_problem]}
        return httpx.Client(transport=transport, headers=headers, event_hooks=hooks, **options)

    def over_tcp(self, token=None):
        """An httpx client of the TCP port."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}",
            headers=headers,
            timeout=60,
            trust_env=False,
            verify=False,
            event_hooks={"response": [_check_problem]},
        )

    def token(self, *scopes, expires_us=None):
        """A fresh token with these scopes."""
        return self.tokens.create("-".join(scopes), scopes, NOW_US, expires_us)[1]


def check_texts(problem):
    """No text of a refusal refers to `errors`, or counts them, where there are none."""
    texts = f"{problem['detail']} {problem['do']}"
    if "`errors`" in texts:
        assert problem["errors"], problem
    for count in re.findall(r"\b(one|\d+) faults?\b", texts):
        assert len(problem["errors"]) == (1 if count == "one" else int(count)), problem


def _check_problem(answer):
    """Every refusal that a test of the API gets is held to `check_texts`."""
    is_problem = answer.headers.get("content-type") == "application/problem+json"
    if is_problem and (body := answer.read()):  # HEAD has none
        check_texts(json.loads(body))


def until(condition, seconds=180.0, step_s=0.05):
    """Wait until `condition()` is true; returns what it gave."""
    deadline = time.monotonic() + seconds
    while True:
        with suppress(httpx.TransportError):
            if found := condition():
                return found
        assert time.monotonic() < deadline, condition
        time.sleep(step_s)


@contextmanager
def both(path, document=READINGS, trace=None, words=(), **settings):
    """A daemon and its API."""
    if trace is not None:
        words = [*words, "--trace", str(trace)]
    with Daemon(path, document, *words) as daemon, Api(path, daemon.door, **settings) as api:
        yield daemon, api
