"""Boards × faults: every fault on every board, each with real processes on the board's tree.

A daemon's energy side (`owner`: limits, journal, meters) runs as a user without rights, whose the
limits are, as udev or tmpfiles would make them; or root's, and it writes through the real helper.
The fault happens to the files under it, to it, or to the helper.  No fault ends a
process that was not killed, affects another knob, or makes a rail report a zero that was not read.
At the end all limits have their original values.

TABLE x FAULTS is complete. A cell that a board cannot have is in LACKS with the reason, and a test
checks the reason.
"""

import contextlib
import grp
import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from edged.cli.governor import command
from governors import helper as helpers
from governors.sysfs import Sysfs
from tests.governors.faults import NOBODY, coming_and_going
from tests.governors.helping import Running, ask, connected, snapshot
from tests.governors.owning import end, knobs_of, limits, start
from tests.governors.trees import plant
from tests.whole import count

TABLE = (
    "orin-nano-r36", "orin-nx-r35", "agx-orin-r35", "xavier-nx-r35", "jetson-nano-r32", "thor-r38",
    "raspberry-pi-5", "x86-intel-pstate", "x86-amd-pstate", "x86-acpi-cpufreq",
)  # fmt: skip
SLICE = ("orin-nano-r36", "agx-orin-r35", "jetson-nano-r32", "raspberry-pi-5", "x86-intel-pstate")
"""A board of each kind of meter and of clock."""
NO_GPU = "has no GPU whose clock can be set"
NO_METER = "has no sensor"
LACKS = {
    **{("a suspended GPU", board): NO_GPU for board in TABLE if board[:3] in ("ras", "x86")},
    **{("a meter that freezes", b): NO_METER for b in ("raspberry-pi-5", "x86-acpi-cpufreq")},
}
FREEZES = {
    "orin-nano-r36": {"ina3221/VDD_IN", "ina3221/VDD_CPU_GPU_CV"},
    "orin-nx-r35": {"ina3221/VDD_IN", "ina3221/VDD_CPU_GPU_CV"},
    "agx-orin-r35": {"ina3221/VDD_CPU_CV"},
    "xavier-nx-r35": {"ina3221/VDD_IN", "ina3221/VDD_CPU_GPU_CV"},
    "jetson-nano-r32": {"ina3221/POM_5V_IN", "ina3221/POM_5V_CPU"},
    "thor-r38": {"ina238/VIN", "ina3221/VDD_CPU_SOC_MSS"},
    "x86-intel-pstate": {"rapl/package-0", "rapl/psys"},
    "x86-amd-pstate": {"rapl/package-0"},
}
"""What stands still on no living board: rails that feed cores or all, packages."""
SLOW = "battery"
"""Its gauge stands still for minutes."""
HIGH = 10**12
STEP_US = 1_500_000
"""Every meter but the battery is due by then."""
STEPS = {"curr": 8, "ui_i": 8, "ener": 15_000_000, "powe": 50_000}
"""What a sensor's file moves by, by how its name begins: mA, µJ (10 W), µW."""


def give(place):
    """To the user that the daemon runs as, links and all."""
    if os.geteuid() == 0:
        for path in (place, *place.rglob("*")):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


class Sensor:
    """A file that a chip renews."""

    def __init__(self, place):
        self.place = place
        *self.words, number = place.read_text().split()
        self.base, self.step = int(number), STEPS[place.name[:4]]

    def renew(self, tick):
        """A counter runs, a power trembles."""
        up = tick if self.place.name == "energy_uj" else tick % 3
        if self.base:  # what is not connected tells nothing
            self.place.write_text(" ".join([*self.words, str(self.base + up * self.step)]) + "\n")


def sensors(root):
    """Every file from which a meter gets watts or joules, but a battery's."""
    names = ("curr?_input", "ui_input_?", "energy_uj", "power1_input")
    found = [place for name in names for place in (root / "sys/devices").rglob(name)]
    return [Sensor(place) for place in sorted(found)]


class Rig:
    """One board's tree, and the process that owns it."""

    def __init__(self, board):
        self.board, self.broken = board, False
        self.home = Path(tempfile.mkdtemp(prefix="edged-faults-"))
        self.home.chmod(0o755)
        self.root, self.journal = self.home / "board", self.home / "state/limits.journal"
        plant(self.root, board)
        self.journal.parent.mkdir()
        give(self.home)
        self.sysfs = Sysfs(self.root)
        self.knobs, self.before = knobs_of(self.sysfs), limits(self.sysfs)
        self.knob = self.knobs[0]
        self.sensors, self.still = sensors(self.root), False
        self.process, self.tick, self.more = None, 0, ["--nobody"]

    def place(self, path):
        return self.root / path.lstrip("/")

    @property
    def files(self):
        """What faults happen to: one limit, and every sensor."""
        return [self.place(self.knob.max_path).resolve(), *(s.place for s in self.sensors)]

    def run(self):
        """The owner, which has pinned everything; started where there is none."""
        if self.process is None:
            self.process, said = start(self, *self.more)
            assert said["pinned"].keys() == {knob.name for knob in self.knobs}, said
            return said
        return {}

    def beat(self, hz=HIGH, busy=-1, renew=True):
        """One beat; what the owner says."""
        self.run()
        self.tick += 1
        if renew and not self.still:
            for sensor in self.sensors:
                sensor.renew(self.tick)
        self.process.stdin.write(f"{hz} {self.tick * STEP_US} {busy}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def healthy(self):
        """Everything is pinned, and every rail tells and counts."""
        self.beat()
        first, last = self.beat(0), self.beat()
        assert last["problems"] == {}
        assert last["pinned"].keys() == {knob.name for knob in self.knobs}
        for name, (joules, _, problem) in last["rails"].items():
            live = "NC" not in name and not name.startswith(SLOW)
            assert problem == "" or not live, (name, problem)
            assert joules > first["rails"][name][0] or not live, name
        return last

    def refused(self, kind):
        """The knob has a problem of that kind, all others were pinned; no rail tells anything."""
        before = self.beat(renew=False)
        said = self.beat(0, renew=False)
        assert said["problems"] == {self.knob.name: kind}
        assert said["pinned"].keys() == {knob.name for knob in self.knobs} - {self.knob.name}
        for name, (joules, gap_us, problem) in said["rails"].items():
            if name.startswith(SLOW):
                continue
            assert problem, name
            assert joules == before["rails"][name][0], "nothing is made up"
            counts = name.startswith("rapl")  # a counter tells afterwards what was missed
            assert counts or gap_us > before["rails"][name][1], name

    def stop(self, how=None):
        """End the owner: by the end of its input, or a signal."""
        if self.process is not None:
            process, self.process = self.process, None
            if how is not None:
                process.send_signal(how)
            end(process)
            return process.returncode
        return None

    def close(self):
        with contextlib.suppress(OSError):
            self.stop(signal.SIGKILL)
        shutil.rmtree(self.home)


class Guarded(Rig):
    """The same where the files are root's, and the helper writes them."""

    def __init__(self, board):
        super().__init__(board)
        shutil.rmtree(self.root)
        group = ["--group", grp.getgrgid(NOBODY).gr_name] if os.geteuid() == 0 else []
        self.helper = Running(self.home, board, *group)
        if group:
            os.chown(self.helper.socket, 0, NOBODY)
        self.sysfs, self.before = Sysfs(self.root), limits(Sysfs(self.root))
        self.more += ["--helper", self.helper.socket]

    def close(self):
        if self.helper.process.poll() is None:
            self.helper.stop()
        super().close()


def missing_files(rig):
    places = [*rig.files, *(rig.root / "sys/devices").rglob("in_power?_input")]  # iio's second way
    for place in places:
        place.rename(place.with_name(f"{place.name}.away"))
    rig.refused("ActuatorError")
    for place in places:
        place.with_name(f"{place.name}.away").rename(place)


def garbled_files(rig):
    kept = [place.read_bytes() for place in rig.files]
    for place in rig.files:
        place.write_bytes(b"\xff\x00 <unknown>")
    rig.refused("ActuatorError")
    for place, content in zip(rig.files, kept, strict=True):
        place.write_bytes(content)


def no_right(rig):
    """The limit may be read and not written, the sensors not even read."""
    before = [place.stat() for place in rig.files]
    for place in rig.files:
        if os.geteuid() == 0:
            os.chown(place, 0, 0)
        place.chmod(0o444 if place == rig.files[0] else 0)
    rig.refused("NotPermitted")
    for place, stat in zip(rig.files, before, strict=True):
        os.chown(place, stat.st_uid, stat.st_gid)
        place.chmod(stat.st_mode & 0o777)


def gone_in_flight(rig):
    """The limits' directory and a sensor come and go while the owner reads and writes them."""
    moved = [rig.place(rig.knob.min_path).resolve().parent, *(s.place for s in rig.sensors[:1])]
    with coming_and_going(moved):
        said = [rig.beat(HIGH * (n % 2), renew=False) for n in range(20)]
    for one in said:
        assert one["problems"].keys() <= {rig.knob.name}
        assert set(one["problems"].values()) <= {"ActuatorError"}
        assert len(one["pinned"]) + len(one["problems"]) == len(rig.knobs)


def hotplugged_core(rig):
    """A policy whose cores are offline has no directory."""
    at = rig.place(rig.knob.min_path).resolve().parent
    at.rename(at.with_name("offline"))
    said = rig.beat(0)
    assert said["changes"] == [[rig.knob.name, "gone"]]
    assert said["problems"] == {rig.knob.name: "ActuatorError"}
    assert len(said["pinned"]) == len(rig.knobs) - 1
    at.with_name("offline").rename(at)
    assert rig.beat()["changes"] == [[rig.knob.name, "back"]]


def suspended_gpu(rig):
    """Its clock reads 0; its limits can be set all the same, and it is not woken for that."""
    gpus = [knob for knob in rig.knobs if knob.kind == "gpu"]
    assert gpus or (rig.board[:3] in ("ras", "x86"))
    power = [p for p in (rig.root / "sys/devices").rglob("power/*") if p.is_file()]
    before = [place.read_text() for place in power]
    for gpu in gpus:
        place = rig.place(gpu.current_path)
        kept = place.read_text()
        place.write_text("0\n")
        assert gpu.name in rig.beat(0)["pinned"]
        assert gpu.name in rig.beat()["pinned"]
        place.write_text(kept)
    assert [place.read_text() for place in power] == before


def frozen_meter(rig):
    """Eight readings of one value while cores come and go; from there on it is a gap."""
    cores = len(list((rig.root / "sys/devices/system/cpu").glob("cpu[0-9]*")))
    rig.still = True
    for n in range(10):
        rig.beat(busy=cores * (n % 2))
    first, last = rig.beat(busy=0), rig.beat(busy=cores)
    frozen = {name for name, (_, _, problem) in last["rails"].items() if "frozen" in problem}
    assert frozen == FREEZES.get(rig.board, set())
    for name in frozen:
        (joules_then, gap_then, _), (joules, gap_us, _) = (x["rails"][name] for x in (first, last))
        assert joules == joules_then and gap_us == gap_then + STEP_US, name
    rig.still = False
    rig.beat()


def killed_then_started(rig):
    """`kill -9` while everything is pinned: the next start puts it back before it pins."""
    rig.beat(0)
    assert limits(rig.sysfs) != rig.before
    rig.stop(signal.SIGKILL)
    assert limits(rig.sysfs) != rig.before
    assert rig.run()["restored"]
    let_go(rig)


def killed_then_restored(rig):
    """`kill -9` while everything is pinned, and the command that the unit runs."""
    rig.beat(0)
    rig.stop(signal.SIGKILL)
    assert limits(rig.sysfs) != rig.before
    done = restore(rig, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["restored"]
    assert limits(rig.sysfs) == rig.before and not rig.journal.exists()


def restore(rig, *more):
    """`edged governor restore`, as root runs it."""
    asked = ["restore", "--root", rig.root, "--journal", rig.journal, *more]
    return CliRunner().invoke(command, [str(word) for word in asked])


def let_go(rig):
    """Every other way out than a kill: after all that has happened here, all is as it was."""
    assert rig.stop(signal.SIGTERM) == 0
    assert limits(rig.sysfs) == rig.before and not rig.journal.exists()


def two_daemons(rig):
    """The second one reports the board's owner. Neither it nor the command changes anything."""
    rig.beat(0)
    pinned = limits(rig.sysfs)
    second, said = start(rig, *rig.more)
    assert said["kind"] == "OwnedElsewhere" and f"process {rig.process.pid}" in said["problem"]
    end(second)
    assert restore(rig).exit_code == 75
    assert limits(rig.sysfs) == pinned


def dead_helper(rig):
    """Without it nothing is set and nothing ends; one that was started again is used again."""
    rig.beat(0)
    pinned = limits(rig.sysfs)
    rig.helper.stop(signal.SIGKILL)
    said = rig.beat()
    assert said["problems"] == {knob.name: "NotPermitted" for knob in rig.knobs}
    assert limits(rig.sysfs) == pinned
    rig.helper.start()
    if os.geteuid() == 0:
        os.chown(rig.helper.socket, 0, NOBODY)
    assert rig.beat()["problems"] == {}
    let_go(rig)


def hostile_requests(rig):
    """Nothing of them is done, and the daemon is served beside them."""
    rig.beat(0)
    with attacked(rig.helper, rig.root, rig.knob):
        assert rig.beat()["problems"] == {}
    let_go(rig)


@contextlib.contextmanager
def attacked(helper, root, knob):
    """Paths, wrong values and floods: each is refused with a message, nothing is written, and other
    clients are served."""
    before = snapshot(root)
    good = {"set": knob.name, "part": "max", "value": knob.text(knob.floor_hz)}
    path = knob.max_path
    hostile = [
        *({**good, "set": name} for name in ("../../etc/passwd", path, f"{knob.name}/../x", "")),
        *({**good, "part": part} for part in (f"../{Path(path).name}", "path", None)),
        *({**good, "value": value} for value in ("1", "-1", "9" * 300, "x\n", "", 1, [])),
        *({}, [], None, b"", b"\xff\xfe\x00", b"[" * 500, b'{"set": NaN}'),
    ]
    for request in hostile:
        with connected(helper.socket) as link:
            assert "refused" in ask(link, request), request
    with contextlib.ExitStack() as stack:
        connections = range(3 * helpers.CONNECTIONS)
        flood = [stack.enter_context(connected(helper.socket)) for _ in connections]
        flood[-1].setblocking(False)
        with contextlib.suppress(OSError):
            for _ in range(50):
                flood[-1].send(b"{}\n" * 1000)
        assert snapshot(root) == before
        yield
    assert helper.process.poll() is None


FAULTS = {
    "missing files": missing_files,
    "garbled files": garbled_files,
    "EACCES": no_right,
    "ENOENT in flight": gone_in_flight,
    "a hotplugged core": hotplugged_core,
    "a suspended GPU": suspended_gpu,
    "a meter that freezes": frozen_meter,
    "two daemons contending": two_daemons,
    "kill -9 while pinned, next start": killed_then_started,
    "kill -9 while pinned, restore command": killed_then_restored,
    "a helper that dies": dead_helper,
    "hostile requests to the helper": hostile_requests,
}
HELPED = (dead_helper, hostile_requests)


class Rigs:
    """At most two at a time: the board's, and the one with a helper."""

    def __init__(self):
        self.rigs = {}
        self.held = {}
        """What became of each cell, by board and fault."""

    def of(self, kind, board):
        for key, rig in list(self.rigs.items()):
            if key[1] != board or rig.broken:
                self.rigs.pop(key).close()
        if (kind, board) not in self.rigs:
            self.rigs[kind, board] = kind(board)
        return self.rigs[kind, board]

    def close(self):
        for rig in self.rigs.values():
            rig.close()


@pytest.fixture(scope="module")
def rigs():
    made = Rigs()
    yield made
    made.close()


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("board", count(SLICE, TABLE))
def test_it_is_lived_through_and_all_is_as_it_was(rigs, board, fault):
    meet = FAULTS[fault]
    rig = rigs.of(Guarded if meet in HELPED else Rig, board)
    rig.broken = True
    rig.healthy()
    meet(rig)
    rig.healthy()
    rig.broken = False
    rigs.held[board, fault] = LACKS.get((fault, board), "held")


def test_the_table_is_complete(rigs):
    """Every cell of it was met; `pytest -rP` prints it."""
    cells = {(fault, board) for board in TABLE for fault in FAULTS}
    assert len(TABLE) >= 6 and LACKS.keys() <= cells
    for fault in FAULTS:
        for board in TABLE:
            told = rigs.held.get((board, fault), "not run")
            sys.stdout.write(f"{fault:38}{board:18}{told}\n")
    if rigs.held:  # whole boards at a time: `pytest -k` may have chosen some
        assert len(rigs.held) == len(FAULTS) * len({board for board, _ in rigs.held})
