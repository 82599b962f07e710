"""`python -m tests.energy.jumping TREE`: a suspend in which the machine's own CLOCK_BOOTTIME jumps.

The process enters a time namespace whose clock is JUMP_S ahead, as the kernel's is after a suspend.
That takes a process of one thread, so that pyarrow and numpy must not start theirs (ENVIRONMENT).
Prints what was noticed, as JSON.
"""

import ctypes
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from edged.energy.board import open_site
from edged.energy.runtime import EnergyGovernor
from edged.energy.settings import EnergySettings
from edged.energy.suspends import Suspends
from edged.energy.tariffs import board_tariff
from edged.job.plan import parse_job
from edged.platform.clock import SystemClock
from edged.platform.event_loop import EventLoop
from edged.platform.timers import TimerFd
from governors.actuators.suspend import SuspendReply

JUMP_S, WAIT_S = 58, 59
ENVIRONMENT = {
    "ARROW_DEFAULT_MEMORY_POOL": "system", "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1",
}  # fmt: skip
CLONE_NEWTIME = 0x80


def jump(state, seconds):
    """Instead of the kernel's suspend."""
    command = ["unshare", "--time", "--boottime", str(JUMP_S), "sleep", "60"]
    with subprocess.Popen(command) as holder:
        own, place = Path("/proc/self/ns/time"), Path(f"/proc/{holder.pid}/ns/time")
        while place.readlink() == own.readlink():
            time.sleep(0.01)
        fd = os.open(place, os.O_RDONLY)
        libc = ctypes.CDLL(None, use_errno=True)
        failed = libc.setns(fd, CLONE_NEWTIME)
        number = ctypes.get_errno()
        os.close(fd)
        holder.kill()
    assert not failed, os.strerror(number)
    return SuspendReply()


def main(tree):
    document = {
        "name": "meter", "promises": {"latency": "60s"},
        "streams": {"r": {"source": {"type": "generator", "rate": 2.0}, "time": "t",
                          "columns": {"t": "timestamp", "v": "float64"}}},
        "sinks": {"p": {"type": "pages", "input": "r", "stream": "p"}},
    }  # fmt: skip
    clock, events, resumed, fired = SystemClock(), [], [], []
    loop, timer = EventLoop(clock), TimerFd()
    loop.on_resumed = resumed.append
    settings = EnergySettings(tree, suspend="mem", suspend_watts=0.4)
    site = open_site(settings, Path(tree) / "store", clock.monotonic_us)
    side = EnergyGovernor(settings, site, board_tariff(site), clock, 1)
    suspends = Suspends(
        settings, site, side.tariff, side.watch, clock, lambda *event: events.append(event[0]),
        lambda: None, sleeper=jump, awake_us=0,
    )  # fmt: skip
    job = SimpleNamespace(plan=parse_job(document), dormant=False, draining=False)
    suspends.connect([], lambda: [job], lambda: False, resumed.append)
    loop.before_wait = suspends.before_wait
    began_s, until_us = time.monotonic(), clock.monotonic_us() + 1_000_000 * WAIT_S
    loop.until(until_us, lambda: False)
    waited_s, late_us = time.monotonic() - began_s, clock.monotonic_us() - until_us
    loop._on_jump()
    loop.add_control(timer.fileno(), lambda: (fired.append(1), timer.disarm()))
    timer.arm(clock.monotonic_us() + 10_000)
    loop.until(clock.monotonic_us() + 50_000, lambda: bool(fired))
    found = {"waited_s": waited_s, "late_us": late_us, "asleep_us": suspends.asleep_us,
             "resumed_us": resumed, "events": events, "fired": len(fired)}  # fmt: skip
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
