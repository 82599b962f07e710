"""`edged run` on a board's tree, and what happens to that: for tests that break things under it.

The daemon is a process of its own, with job, heart, meters, journal and door.  It is forked from
one that has imported everything (half of a start's CPU time is imports), and has laid down root's
rights, so that modes count for it.
"""

from __future__ import annotations

import functools
import grp
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import edged.daemon.daemon
import edged.energy.status
import edged.sources.generator  # noqa: F401  (what the forked processes need)
from api.metrics import exposition_of
from edged.cli import main
from edged.control.door import ask
from governors.sysfs import Sysfs
from tests.governors.faults import NOBODY
from tests.governors.helping import connected, poll
from tests.governors.owner import heed_modes
from tests.governors.owning import ROOM, knobs_of, limits
from tests.governors.test_faults import SLOW, Sensor, sensors
from tests.governors.trees import plant

DEADLINE_S = 90
"""Six daemons start at once, on CI's machine too."""
STEP_S = 0.4
JOB = {
    "name": "generated",
    "streams": {
        "r": {
            "source": {"type": "generator", "rate": 100, "key": "key"},
            "columns": {"key": "int64", "time": "timestamp"},
            "time": "time",
        }
    },
    "sinks": {"rows": {"type": "pages", "input": "r", "page": "4KiB"}},
    "promises": {"latency": "200ms"},
}
LOWEST, HIGHEST = 1, 10**6
"""MHz that become the lowest and the highest allowed."""
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload([__name__])


def run(log: Path, words: list[str]) -> None:
    """In the forked process: the command."""
    with log.open("ab") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    heed_modes()
    sys.argv = ["edged", "run", *words]
    main()


class Whole:
    """One board and the daemons on it."""

    def __init__(self, board: str) -> None:
        self.board = board
        self.home = Path(tempfile.mkdtemp(prefix="edged-whole-"))
        self.home.chmod(0o755)
        self.root = self.home / "board"
        self.sysfs: Sysfs = plant(self.root, board)
        self.knobs, self.before = knobs_of(self.sysfs), limits(self.sysfs)
        self.knob = self.knobs[0]
        self.pinned = {
            path: self.before[knob.min_path]
            for knob in self.knobs
            for path in (knob.min_path, knob.max_path)
        }
        self.sensors: list[Sensor] = sensors(self.root)
        self.still, self.tick = False, 0
        self.works, self.busy_s = False, 0.0
        self.place("/proc").mkdir(exist_ok=True)
        self.account(0.0)
        (self.home / "job.json").write_text(json.dumps(JOB))
        self.process = None
        self.helper: Helper | None = None

    def place(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    @property
    def files(self) -> list[Path]:
        """What faults happen to: one limit, and every sensor."""
        return [self.place(self.knob.max_path).resolve(), *(s.place for s in self.sensors)]

    def limits(self) -> dict[str, str]:
        """What every limit is.  In a tree, a file that is being written to is empty for a moment;
        a board whose files are looked for just then would have a clock less."""
        return {path: self.sysfs.read(path) for path in self.before if self.sysfs.exists(path)}

    # the daemon --------------------------------------------------------------------------------

    def start(self, name: str = "first") -> multiprocessing.Process:
        """`edged run` with a store of that name, holding all clocks at their lowest."""
        store = self.home / name
        words = [self.home / "job.json", "--store", store, "--board", self.root, "--workers", 1]
        words += ["--policy", "fixed", "--governor", f"cpu_mhz={LOWEST}"]
        words += ["--helper", self.home / "governor.sock"]
        if any(knob.kind == "gpu" for knob in self.knobs):
            words += ["--governor", f"gpu_mhz={LOWEST}"]
        log = self.home / f"{name}.log"
        process = FORKED.Process(target=run, args=(log, [*map(str, words)]), daemon=True)
        process.start()
        wait(lambda: answers(store / "door"), functools.partial(self._alive, process))
        return process

    def _alive(self, process: multiprocessing.Process) -> str:
        log = "".join(path.read_text(errors="replace") for path in self.home.glob("*.log"))
        assert process.is_alive(), f"{self.board}: the daemon has ended:\n{log}"
        return self.board

    def run(self) -> None:
        """A daemon that has pinned everything; started where there is none."""
        if self.process is None:
            self.process = self.start()

    def ask(self, command: str, name: str = "first", **arguments: object) -> dict:
        return ask(self.home / name / "door", command, **arguments)

    def stop(self, how: signal.Signals) -> int:
        process, self.process = self.process, None
        os.kill(process.pid, how)
        process.join(DEADLINE_S)
        return process.exitcode

    def hold(self, mhz: float) -> None:
        """From the next beat on, all clocks there."""
        kinds = {knob.kind for knob in self.knobs}
        settings = {f"{kind}_mhz": mhz for kind in kinds}
        self.ask("governor", policy="fixed", settings=settings, keep=False)

    # what it tells -----------------------------------------------------------------------------

    def until(self, condition) -> dict:
        """The status's energy, as soon as that is so; sensors are renewed meanwhile."""

        def look():
            if not self.still:
                self.tick += 1
                for sensor in self.sensors:
                    sensor.renew(self.tick)
            told = self.ask("status")["energy"]
            return told if condition(told) else None

        return wait(look, lambda: (self._alive(self.process), self.ask("status")["energy"]))

    def beat(self) -> dict:
        """Two beats later, so that one has begun and ended since."""
        beats = self.ask("status")["beats"]
        return self.until(lambda _: self.ask("status")["beats"] >= beats + 2)

    def healthy(self) -> dict:
        """Everything is owned and pinned, and every rail tells and counts."""
        self.run()
        names = {knob.name for knob in self.knobs}
        first = self.until(
            lambda told: set(told["owned"]) == names and self.limits() == self.pinned
        )
        joules = {rail["rail"]: rail["joules"] for rail in first["rails"]}
        return self.until(
            lambda told: all(
                rail["problem"] == "" and rail["joules"] > joules[rail["rail"]]
                for rail in self.live(told)
            )
        )

    def live(self, told: dict) -> list[dict]:
        """Rails that are connected, and move within seconds."""
        return [r for r in told["rails"] if "NC" not in r["rail"] and r["meter"] != SLOW]

    def metric(self, name: str) -> dict[str, float]:
        """A metric by rail, as Prometheus would scrape it."""
        text = exposition_of(self.ask("status")).encode()[0].decode()
        lines = [line for line in text.splitlines() if line.startswith(name + "{")]
        return {
            line.partition('rail="')[2].partition('"')[0]: float(line.rpartition(" ")[2])
            for line in lines
        }

    def events(self, kind: str) -> list[dict]:
        page = self.ask("events", limit=1000)
        return [event for event in page["events"] if event["kind"] == kind]

    # what happens ------------------------------------------------------------------------------

    def account(self, seconds: float) -> None:
        """So much later /proc/stat says how busy the cores were since: all of them, or none."""
        cores = len([*self.place("/sys/devices/system/cpu").glob("cpu[0-9]*")])
        self.busy_s += self.works * cores * seconds
        stat, ticks = self.place("/proc/stat"), round(self.busy_s * os.sysconf("SC_CLK_TCK"))
        fresh = self.home / "fresh-stat"  # outside of the board's tree, which is compared at times
        fresh.write_text(f"cpu  {ticks} 0 0 0 0 0 0 0 0 0\n")
        fresh.replace(stat)

    def guard(self) -> None:
        """From now on limits are root's, and the helper writes them."""
        if self.helper is None:
            for knob in self.knobs:
                for path in knob.files().values():
                    self.place(path).chmod(0o444)
            self.helper = Helper(self.home)

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.join()
        if self.helper is not None:
            self.helper.stop(signal.SIGKILL)
        shutil.rmtree(self.home)


class Helper:
    """The root helper as a process."""

    def __init__(self, home: Path) -> None:
        self.home, self.socket = home, home / "governor.sock"
        self.group = ["--group", grp.getgrgid(NOBODY).gr_name] if os.geteuid() == 0 else []
        self.start()

    def start(self) -> None:
        words = ["--socket", self.socket, "--root", self.home / "board", *self.group]
        with (self.home / "helper.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "governors.helper", *words], cwd=ROOM, stderr=log
            )
        poll(self.listens)

    def listens(self) -> bool:
        try:
            connected(self.socket).close()
        except OSError:
            return False
        return True

    def stop(self, how: signal.Signals) -> None:
        self.process.send_signal(how)
        self.process.wait(DEADLINE_S)


def answers(door: Path) -> bool:
    """Whether a daemon serves that door."""
    try:
        return bool(ask(door, "governor"))
    except Exception:
        return False


def wait(condition, context):
    """What `condition` gives when it holds; `context` says whether it still can, and what is."""
    deadline = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        told = context()
        assert time.monotonic() < deadline, told
        time.sleep(STEP_S)
    return found
