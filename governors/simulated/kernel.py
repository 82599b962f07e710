"""Kernel behaviour of a simulated board: the effect of reads and writes.

State is in the files, so every process that opens the tree (the daemon, the helper, `edged governor
restore`) sees one board.  Reads return file contents, except

    !EAGAIN, !EIO, ...   as content: that error (thermal zones of blocks without power)
    a commanded fault    in `.simulated/faults.json`: an error for matching paths

Writes follow rules per file, under a lock on the tree:

    scaling_{min,max}_freq   an integer, clipped to the hardware's range; min > max is EINVAL
    scaling_governor         one of the available, else EINVAL; userspace opens scaling_setspeed
    devfreq {min,max}_freq   snapped to the table (a minimum up, a maximum down), then the same
    online, disable          0 or 1; a policy whose cores are all offline loses its files
    tpc_pg_mask              EBUSY where the value would change
    rtc wakealarm            +SECONDS; EBUSY while one is set; 0 clears it
    power/state              waits until the alarm, and clears it; EBUSY without one, where a real
                             board would sleep until a button is pressed
    files without a rule     EACCES

After each write the clock follows its limits.  Sources: cpufreq.rst, testing/sysfs-class-devfreq;
snapping as captured on boards (a maximum of 640 MHz becomes 614.4).
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

from governors.actuators.suspend import POWER_STATE, RTC
from governors.sysfs import CPU, Sysfs, SysfsError, error

PRIVATE = ".simulated"
"""Directory in the root for files that are not part of the board."""

FAULTS = f"{PRIVATE}/faults.json"
WRITTEN = f"{PRIVATE}/written"
"""Holds the process and the time of the last write to the tree."""
Fault = tuple[str, int, str]
"""Pattern of paths, errno, and the accesses that fail: reads (`r`), writes (`w`) or both."""
Rule = Callable[["SimulatedSysfs", str, str, "re.Match[str]"], None]
_RULES: list[tuple[re.Pattern[str], Rule]] = []


def snap(table: Sequence[int], low: int, high: int, wanted: int) -> int:
    """The clock that a driver selects: the lowest entry of its table at or above `wanted`, inside
    the limits; where none is inside, the highest below them."""
    wanted = min(max(wanted, low), high)
    inside = [entry for entry in table if low <= entry <= high]
    if inside:
        return min((entry for entry in inside if entry >= wanted), default=inside[-1])
    return max((entry for entry in table if entry <= high), default=table[0]) if table else wanted


def is_simulated(root: Path | str) -> bool:
    """Whether a root is a simulated board's tree."""
    return (Path(root) / PRIVATE / "board.json").exists()


def open_root(root: Path | str) -> Sysfs:
    """The tree at `root`, with kernel behaviour where it is a simulated board's."""
    return SimulatedSysfs(root) if is_simulated(root) else Sysfs(root)


class SimulatedSysfs(Sysfs):
    """Tree of a simulated board."""

    def __init__(self, root: Path | str) -> None:
        super().__init__(root)
        self.settle: Callable[[], None] | None = None
        """Brings the sensors up to date; set by the board in its own process."""
        self.pause: Callable[[float], None] = time.sleep
        """Waits while the board is suspended."""
        self.wall_s: Callable[[], float] = time.time
        """The time of the board's real-time clock."""
        self._faults: list[Fault] = []
        self._faults_mtime_ns = -1

    def read(self, path: str) -> str:
        """File content, or the error that it or a fault demands."""
        if self.settle is not None and re.search(
            r"hwmon|iio:|ina3221|rapl|thermal|cpuidle|cur_freq|time_in_state", path
        ):
            self.settle()
        self._fail(path, "r")
        if path.startswith(RTC) and path.endswith("/since_epoch"):
            return str(int(self.wall_s()))
        text = super().read(path)
        if text.startswith("!"):
            raise _error(path, getattr(errno, text[1:]))
        return text

    def write(self, path: str, value: str) -> None:
        """Apply the file's rule; raises the errors of a kernel."""
        self._fail(path, "w")
        real = self.resolve(path)
        if not self.exists(path):
            raise _error(path, errno.ENOENT)
        for pattern, rule in _RULES:
            match = pattern.fullmatch(real)
            if match:
                with self.locked():
                    try:
                        rule(self, real, value.strip(), match)
                    finally:
                        self._note_write()
                return
        raise _error(path, errno.EACCES)

    def written(self) -> bytes:
        """Changes with every write that a rule was applied to, by whatever process."""
        try:
            return (self.root / WRITTEN).read_bytes()
        except FileNotFoundError:
            return b""

    def _note_write(self) -> None:
        (self.root / WRITTEN).write_text(f"{os.getpid()} {time.monotonic_ns()}")

    def writable(self, path: str) -> bool:
        """Whether a rule accepts writes and no fault blocks them."""
        try:
            self._fail(path, "w")
        except SysfsError:
            return False
        real = self.resolve(path)
        return self.exists(path) and any(p.fullmatch(real) for p, _ in _RULES)

    def store(self, path: str, value: object) -> None:
        """Change a file without rules, as the kernel does.  One write over the old content, padded
        with newlines: no reader sees an empty file."""
        fd = os.open(self.place(path), os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(fd, f"{value}\n".encode().ljust(os.fstat(fd).st_size, b"\n"), 0)
        finally:
            os.close(fd)

    def peek(self, path: str) -> str:
        """File content regardless of faults."""
        return super().read(path)

    def peek_int(self, path: str) -> int:
        """File content as an integer, regardless of faults."""
        return int(self.peek(path))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Exclusive access to the tree across processes."""
        with (self.root / PRIVATE / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def clip(self, at: str) -> None:
        """Update the clock of a policy or devfreq node to its limits."""
        names = "scaling_{}_freq" if "/cpufreq/" in at else "{}_freq"
        low, high, now = (self.peek_int(f"{at}/{names.format(n)}") for n in ("min", "max", "cur"))
        kind = "scaling_available_frequencies" if "/cpufreq/" in at else "available_frequencies"
        self.store(
            f"{at}/{names.format('cur')}", snap(_table(self, f"{at}/{kind}"), low, high, now)
        )

    def set_faults(self, faults: Sequence[Fault]) -> None:
        """Replace the commanded faults atomically, for every process."""
        fresh = (self.root / FAULTS).with_suffix(".new")
        fresh.write_text(json.dumps(faults))
        fresh.replace(self.root / FAULTS)

    def faults(self) -> list[Fault]:
        """The commanded faults.  Raises KernelRefused where the file does not have the form that
        `set_faults` writes."""
        try:
            mtime_ns = (self.root / FAULTS).stat().st_mtime_ns
        except FileNotFoundError:
            return []
        if mtime_ns != self._faults_mtime_ns:
            try:
                entries = json.loads((self.root / FAULTS).read_text())
                self._faults = [
                    (str(path), int(number), str(ways)) for path, number, ways in entries
                ]
            except (ValueError, TypeError) as wrong:
                problem = f"not [[pattern, errno, ways], ...], as `set_faults` writes it: {wrong}"
                raise error(f"/{FAULTS}", OSError(errno.EINVAL, problem)) from wrong
            self._faults_mtime_ns = mtime_ns
        return self._faults

    def _fail(self, path: str, way: str) -> None:
        faults = self.faults()
        if faults:
            both = {path, self.resolve(path)}
            for pattern, number, ways in faults:
                if way in ways and any(fnmatch(one, pattern) for one in both):
                    raise _error(path, number)


def _error(path: str, number: int) -> SysfsError:
    return error(path, OSError(number, os.strerror(number)))


def _rule(pattern: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        _RULES.append((re.compile(pattern), rule))
        return rule

    return register


def _table(sysfs: SimulatedSysfs, path: str) -> list[int]:
    """Clocks of a table; empty without one."""
    return [int(text) for text in sysfs.peek(path).split()] if sysfs.exists(path) else []


def _integer(path: str, value: str) -> int:
    if not re.fullmatch(r"[+-]?\d{1,18}", value) or int(value) < 0:
        raise _error(path, errno.EINVAL)
    return int(value)


@_rule(rf"({CPU}/cpufreq/policy\d+)/scaling_(min|max)_freq")
def _cpu_limit(sysfs: SimulatedSysfs, path: str, value: str, match: re.Match[str]) -> None:
    at, part = match.groups()
    range_khz = [sysfs.peek_int(f"{at}/cpuinfo_{end}_freq") for end in ("min", "max")]
    wanted = min(max(_integer(path, value), range_khz[0]), range_khz[1])
    _limit(sysfs, path, part, wanted, f"{at}/scaling_{{}}_freq")
    sysfs.clip(at)


@_rule(r"(/sys/devices/.*/devfreq/[^/]+)/(min|max)_freq")
def _device_limit(sysfs: SimulatedSysfs, path: str, value: str, match: re.Match[str]) -> None:
    at, part = match.groups()
    wanted = _integer(path, value)
    table = _table(sysfs, f"{at}/available_frequencies")
    if table and part == "min":
        wanted = min((hz for hz in table if hz >= wanted), default=table[-1])
    elif table:
        wanted = max((hz for hz in table if hz <= wanted), default=table[0])
    _limit(sysfs, path, part, wanted, f"{at}/{{}}_freq")
    sysfs.clip(at)


def _limit(sysfs: SimulatedSysfs, path: str, part: str, wanted: int, name: str) -> None:
    other = sysfs.peek_int(name.format("max" if part == "min" else "min"))
    if (wanted > other) if part == "min" else (wanted < other):
        raise _error(path, errno.EINVAL)
    sysfs.store(path, wanted)


@_rule(rf"({CPU}/cpufreq/policy\d+)/scaling_governor")
def _governor(sysfs: SimulatedSysfs, path: str, value: str, match: re.Match[str]) -> None:
    at = match[1]
    if value not in sysfs.peek(f"{at}/scaling_available_governors").split():
        raise _error(path, errno.EINVAL)
    sysfs.store(path, value)
    if sysfs.exists(f"{at}/scaling_setspeed"):
        clock = sysfs.peek(f"{at}/scaling_cur_freq")
        sysfs.store(f"{at}/scaling_setspeed", clock if value == "userspace" else "<unsupported>")
    ends = {"performance": "max", "powersave": "min"}
    if value in ends and sysfs.peek(f"{at}/scaling_driver") != "intel_pstate":
        sysfs.store(f"{at}/scaling_cur_freq", sysfs.peek(f"{at}/scaling_{ends[value]}_freq"))
        sysfs.clip(at)


@_rule(rf"({CPU}/cpufreq/policy\d+)/scaling_setspeed")
def _setspeed(sysfs: SimulatedSysfs, path: str, value: str, match: re.Match[str]) -> None:
    if sysfs.peek(f"{match[1]}/scaling_governor") != "userspace":
        raise _error(path, errno.EINVAL)
    sysfs.store(f"{match[1]}/scaling_cur_freq", _integer(path, value))
    sysfs.clip(match[1])
    sysfs.store(path, sysfs.peek(f"{match[1]}/scaling_cur_freq"))


@_rule(r"(/sys/devices/.*/devfreq/[^/]+)/governor")
def _device_governor(sysfs: SimulatedSysfs, path: str, value: str, match: re.Match[str]) -> None:
    if value not in sysfs.peek(f"{match[1]}/available_governors").split():
        raise _error(path, errno.EINVAL)
    sysfs.store(path, value)


@_rule(r"/sys/kernel/nvpmodel_clk_cap/emc|.*/railgate_delay|.*/polling_interval")
def _number(sysfs: SimulatedSysfs, path: str, value: str, match: re.Match[str]) -> None:
    del match
    sysfs.store(path, _integer(path, value))


@_rule(rf"{CPU}/cpu\d+/cpuidle/state\d+/disable|.*/railgate_enable")
def _switch(sysfs: SimulatedSysfs, path: str, value: str, match: re.Match[str]) -> None:
    del match
    if value not in ("0", "1"):
        raise _error(path, errno.EINVAL)
    sysfs.store(path, value)


@_rule(r".*/power/control")
def _runtime_pm(sysfs: SimulatedSysfs, path: str, value: str, match: re.Match[str]) -> None:
    del match
    if value not in ("auto", "on"):
        raise _error(path, errno.EINVAL)
    sysfs.store(path, value)


@_rule(r".*/(tpc|gpc|fbp)_pg_mask")
def _gating_mask(sysfs: SimulatedSysfs, path: str, value: str, match: re.Match[str]) -> None:
    del match
    if _integer(path, value) != sysfs.peek_int(path):
        raise _error(path, errno.EBUSY)


@_rule(rf"{RTC}/rtc\d+/wakealarm")
def _wakealarm(sysfs: SimulatedSysfs, path: str, value: str, match: re.Match[str]) -> None:
    del match
    relative, now_s = value.startswith("+"), int(sysfs.wall_s())
    due_s = _integer(path, value.removeprefix("+")) + (now_s if relative else 0)
    if due_s <= now_s:
        sysfs.store(path, "")
    elif sysfs.peek(path):
        raise _error(path, errno.EBUSY)
    else:
        sysfs.store(path, due_s)


@_rule(POWER_STATE)
def _power_state(sysfs: SimulatedSysfs, path: str, value: str, match: re.Match[str]) -> None:
    del match
    if value not in sysfs.peek(path).split():
        raise _error(path, errno.EINVAL)
    clocks = [f"{RTC}/{name}/wakealarm" for name in sysfs.list(RTC)]
    due = [(sysfs.peek_int(clock), clock) for clock in clocks if sysfs.peek(clock)]
    if not due:
        raise _error(path, errno.EBUSY)
    due_s, clock = min(due)
    sysfs.pause(max(0.0, due_s - sysfs.wall_s()))
    sysfs.store(clock, "")


@_rule(rf"{CPU}/cpu(\d+)/online")
def _online(sysfs: SimulatedSysfs, path: str, value: str, match: re.Match[str]) -> None:
    if value not in ("0", "1"):
        raise _error(path, errno.EINVAL)
    sysfs.store(path, value)
    cores = [int(n[3:]) for n in sysfs.list(CPU) if re.fullmatch(r"cpu\d+", n)]
    files = {n: f"{CPU}/cpu{n}/online" for n in sorted(cores)}
    online = [n for n, file in files.items() if not sysfs.exists(file) or sysfs.peek(file) != "0"]
    sysfs.store(f"{CPU}/online", ",".join(map(str, online)))
    for policy in [n for n in sysfs.list(f"{CPU}/cpufreq") if n.startswith("policy")]:
        _populate(sysfs, f"{CPU}/cpufreq/{policy}", online)
    del match


def _populate(sysfs: SimulatedSysfs, at: str, online: list[int]) -> None:
    """A policy without online cores keeps its limits, but its files disappear."""
    related = [int(n) for n in sysfs.peek(f"{at}/related_cpus").split()]
    left = [n for n in related if n in online]
    sysfs.store(f"{at}/affected_cpus", " ".join(map(str, left)))
    hidden = sysfs.root / PRIVATE / at.rpartition("/")[2]
    here = Path(sysfs.place(at))
    if not left and not hidden.exists():
        hidden.mkdir()
        for file in here.glob("scaling_*"):
            file.rename(hidden / file.name)
    elif left and hidden.exists():
        for file in hidden.iterdir():
            file.rename(here / file.name)
        hidden.rmdir()
