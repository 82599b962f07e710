"""Producers, daemon, uplink, API and collector under a service manager, and the wait for recovery.

with Rig(directory) as rig:
    rig.start()
    ...                      # faults
    verdict = rig.settle()   # they have stopped: a new id passes, everything acknowledged lands
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass, field
from pathlib import Path

from edged.control.door import ask
from edged.errors import ConfigError
from tests.campaign import oracle
from tests.campaign.feed import Feed, Poster
from tests.campaign.oracle import Verdict
from tests.campaign.reported import lost_ids
from tests.campaign.services import Service, reserved_port

DEVICE = "edge-1"
NEW_ID_S = 10.0
"""Longest time from the end of all faults until an id that was sent after it has landed."""
DRAIN_S = 60.0
KILLED = -9
PROMISES = {"latency": "100ms", "memory": "64MiB", "durability": "exactly_once"}


def document(address: str, durability="exactly_once", **source) -> dict:
    """Streams a and b are copied and joined by id; stream c is copied."""
    columns = {"id": "int64", "key": "int32", "time": "timestamp", "check": "int64",
               "note": "string?"}  # fmt: skip
    tcp = {"type": "tcp", "listen": address, **source}
    times = {"time": "time", "idle_after": "60min"}
    pages = {"type": "pages", "partitions": 2, "partition_by": ["key"], "page": "16KiB"}
    return {
        "name": "campaign",
        "promises": {**PROMISES, "durability": durability},
        "streams": {
            "a": {"source": tcp, "columns": columns, **times},
            "b": {"source": tcp, "columns": columns, **times},
            "c": {"source": {"type": "http"}, "columns": columns, **times},
        },
        "operators": {
            "joined": {
                "type": "interval_join", "left": "a", "right": "b", "on": ["id"],
                "before": "1s", "after": "1s",
                "columns": {
                    "id": "left.id", "other": "right.id", "key": "left.key", "time": "left.time",
                    "check": "left.check", "note": "right.note",
                },
            }
        },
        "sinks": {
            "rows": {**pages, "input": "a", "stream": "rows"},
            "pairs": {**pages, "input": "joined", "stream": "pairs"},
            "posted": {**pages, "input": "c", "stream": "posted"},
        },
    }  # fmt: skip


@dataclass
class Outcome:
    """What a class of faults found."""

    runs: int = 0
    verdict: Verdict = field(default_factory=Verdict)
    problems: list[str] = field(default_factory=list)
    """Broken promises that no row shows: a late recovery, a process that died by itself."""
    new_id_s: float = 0.0
    """The slowest new id after the faults."""

    @property
    def failed(self) -> bool:
        """Whether a promise was broken."""
        return bool(self.verdict.violations or self.problems)


class Rig:
    """See the module.  `store` and `landing` may be mount points of another file system."""

    def __init__(self, directory: Path, *, store=None, landing=None, outcome=None, **source):
        self.directory, self.source = directory, source
        self.store, self.landing = store or directory / "store", landing or directory / "landing"
        self.door, self.socket = directory / "door", directory / "api.sock"
        self.logs = directory / "logs"
        self.logs.mkdir(parents=True)
        self.promises: dict = {}
        self._ports = [reserved_port(), reserved_port()]
        self.address, self.centre = (f"127.0.0.1:{port.getsockname()[1]}" for port in self._ports)
        self.feed_address, self.uplink_address = self.address, self.centre
        self.outcome = Outcome() if outcome is None else outcome
        self.services: dict[str, Service] = {}
        self.feed: Feed | None = None
        self.poster: Poster | None = None
        self.died_by_design: dict[str, set[int]] = {}

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, kind, problem, trace) -> None:
        for each in (self.feed, self.poster):
            if each is not None:
                self.outcome.problems += each.problems
                each.close()
        for name, service in reversed(self.services.items()):
            service.stop(5.0)
            fine = {KILLED, *self.died_by_design.get(name, ())}
            strange = [code for code in service.exits[:-1] if code not in fine]
            if strange:
                self.outcome.problems.append(f"{name} ended with {strange}")
        for port in self._ports:
            port.close()

    # Starting ----------------------------------------------------------------------------------

    def start(self, *options, producers=2, module="edged", watchdog_s=0.0, **feed) -> None:
        """Start everything but the API; returns when each producer has an acknowledgement."""
        self.collect()
        self.run(*options, module=module, watchdog_s=watchdog_s)
        self.feed = Feed(self.feed_address, producers, **feed)
        self.feed.start()
        self.until(lambda: len(self.feed.acked) == 2 * producers and min(self.feed.acked.values()))

    def service(self, name: str, *arguments, watchdog_s=0.0) -> Service:
        """Start a service; it is stopped with the rig."""
        self.services[name] = made = Service(name, arguments, self.logs, watchdog_s)
        return made

    def collect(self, *options) -> Service:
        """Start the collector."""
        made = self.service(
            "collector", "edged", "central", "collect", "--landing", str(self.landing),
            "--listen", self.centre, "--segment-bytes", str(256 << 10), "--json",
            "--device-share", "1", *options,
        )  # fmt: skip
        made.ready()
        return made

    def run(self, *options, module="edged", watchdog_s=0.0) -> Service:
        """Start the daemon."""
        path = self.directory / "job.json"
        job = document(self.address, **self.source)
        job["promises"] |= self.promises
        path.write_text(json.dumps(job))
        made = self.service(
            "daemon", module, "run", str(path), "--store", str(self.store), "--json",
            "--device", DEVICE, "--uplink", f"http://{self.uplink_address}", "--door",
            str(self.door), "--workers", "1", "--snapshot-bytes", str(1 << 20), *options,
            watchdog_s=watchdog_s,
        )  # fmt: skip
        made.ready(300)
        return made

    def serve(self) -> Service:
        """Start the API and a client that posts rows."""
        config = self.directory / "edged.toml"
        config.write_text(
            f'[store]\ndirectory = "{self.store}"\n[run]\ndoor = "{self.door}"\n'
            f'[metrics]\nlisten = ""\n[api]\nsocket = "{self.socket}"\ngroup = ""\n'
            f'tokens_file = "{self.directory / "tokens.json"}"\n'
        )
        made = self.service("api", "api", "--config", str(config), "--json")
        made.ready()
        self.poster = Poster(self.socket)
        self.poster.start()
        self.until(lambda: self.poster.total() > 1)
        return made

    # Waiting -----------------------------------------------------------------------------------

    @property
    def acked(self) -> dict[tuple[str, int], int]:
        """(stream, producer) -> last acknowledged batch."""
        return {**self.feed.acked, **(self.poster.acked if self.poster else {})}

    def total(self) -> int:
        """The number of acknowledged batches; it grows while the system works."""
        return self.feed.total() + (self.poster.total() if self.poster else 0)

    def status(self) -> dict:
        """The daemon's status, empty where it does not answer."""
        with contextlib.suppress(ConfigError, OSError):
            return ask(self.door, "status", timeout_s=3)
        return {}

    def until(self, done, seconds=120.0) -> float:
        """Wait until `done()`; the seconds that took, at most `seconds`."""
        began = time.monotonic()
        while not done() and time.monotonic() - began < seconds:
            time.sleep(0.02)
        return time.monotonic() - began

    def progress(self, batches=8, seconds=60.0) -> None:
        """Wait until more batches are acknowledged."""
        goal = self.total() + batches
        self.until(lambda: self.total() >= goal, seconds)

    def new_id(self, when: str = "at the end") -> None:
        """The faults have stopped: of each producer a new id lands within NEW_ID_S."""
        took = self.until(self._passed(), 3 * NEW_ID_S)
        self.outcome.new_id_s = max(self.outcome.new_id_s, took)
        if took > NEW_ID_S:
            state = self.status()
            self.outcome.problems.append(
                f"{when} a new id took {took:.1f} s: acknowledged {self.acked}, sent"
                f" {self.feed.sent}, uplink {state.get('uplink')}"
            )

    def lost(self) -> dict:
        """The ids that the store has reported lost, by stream of pages."""
        gaps = self.status().get("store", {}).get("gaps", {}).get("newest", [])
        return lost_ids(self.landing, self.acked, gaps) if gaps else {}

    def settle(self) -> Verdict:
        """The faults have stopped: measure the time of a new id, drain, and judge the landing.

        The verdict replaces that of an earlier call, since both are about the whole landing.
        """
        self.new_id()
        feeds = [f for f in (self.feed, self.poster) if f is not None]
        for each in feeds:
            each.pause()
        self.until(lambda: self.feed.complete(), DRAIN_S)
        self.until(lambda: not self._missing(), DRAIN_S)
        self.until(lambda: self.status().get("store", {}).get("backlog_pages") == 0, DRAIN_S)
        self.outcome.verdict = oracle.judge(self.landing, self.acked, self.lost())
        if self.outcome.verdict.violations:
            self.outcome.problems.append(f"acknowledged {self.acked}; status {self.status()}")
        for each in feeds:
            each.resume()
        return self.outcome.verdict

    def _missing(self) -> bool:
        time.sleep(0.2)
        return oracle.judge(self.landing, self.acked, self.lost()).missing > 0

    def _passed(self):
        """A condition: of each producer a batch has landed that is sent after this call."""
        goals = {p: self.feed.sent["a", p] + 1 for p in self.feed.numbers}

        def passed() -> bool:
            if any(self.feed.acked["a", p] < goal for p, goal in goals.items()):
                return False
            time.sleep(0.1)
            found = oracle.read(self.landing, "rows").ids
            newest = {p: found[found >> 48 == p].max(initial=0) for p in goals}
            return all(newest[p] >= oracle.ids(p, goal, goal)[0] for p, goal in goals.items())

        return passed
