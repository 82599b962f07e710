"""System calls of running processes that fail, or do nothing, while strace is attached."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from pathlib import Path

SYNCS = "fsync,fdatasync"
WRITES = "pwritev,pwritev2,pwrite64"
READS = "pread64,preadv,preadv2"
SPACE = "fallocate"


class Injection:
    """While it is open, `calls` of the processes end as `how` says: `error=EIO`, `retval=0`.

    `how` may end with strace's `:when=`, e.g. `error=EIO:when=3` for the third call alone.
    """

    def __init__(self, pids: list[int], calls: str, how: str) -> None:
        self.pids = pids
        command = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={calls}",
                   "-e", f"inject={calls}:{how}"]  # fmt: skip
        self._tracer = subprocess.Popen([*command, *(f"--attach={p}" for p in pids)])

    def __enter__(self) -> Injection:
        end = time.monotonic() + 10
        while time.monotonic() < end and not all(_is_traced(p) for p in self.pids):
            time.sleep(0.01)
        return self

    def __exit__(self, *_) -> None:
        self._tracer.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._tracer.wait(10)
        self._tracer.kill()
        self._tracer.wait()


def _is_traced(pid: int) -> bool:
    """Whether every thread of a process is traced, or the process has gone."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        return all("TracerPid:\t0\n" not in (t / "status").read_text() for t in threads)
    except OSError:
        return True
