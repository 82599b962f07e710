"""The root helper as a real process, and its clients."""

import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from governors.actuators._helper_client import HelperWriter
from governors.actuators.base import discover, findings
from governors.actuators.writers import choose_writer
from governors.detect import detect
from governors.sysfs import Sysfs
from tests.governors.owning import ROOM
from tests.governors.trees import plant

DEADLINE_S = 120


def connected(path: Path) -> socket.socket:
    """A connection to the helper at `path`.  Raises OSError where there is none."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        link.connect(str(path))
        link.settimeout(DEADLINE_S)
    except OSError:
        link.close()
        raise
    return link


class Unprivileged(Sysfs):
    """A daemon's view: it may read everything and write nothing."""

    def writable(self, path):
        return False


class Running:
    """A helper process for one board."""

    def __init__(self, directory, board, *more):
        plant(directory / "board", board)
        self.root, self.socket = directory / "board", directory / "governor.sock"
        self.sysfs = Unprivileged(self.root)
        self.settings = findings(self.sysfs, detect(self.sysfs))
        self.knobs = [k for k in discover(self.sysfs, detect(self.sysfs)) if not k.optional]
        self.more, self.writers = more, []
        self.log = directory / "log"
        self.start()

    def start(self):
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "governors.helper", "--socket", self.socket),
                    *("--root", self.root, *self.more),
                ],
                cwd=ROOM,
                stderr=log,
            )
        poll(lambda: self.answers() is not None)

    def writer(self):
        """As the daemon has; closed at the end."""
        self.writers.append(HelperWriter(self.socket, self.knobs))
        return self.writers[-1]

    def chosen(self):
        """What the daemon chooses by itself."""
        self.writers.append(choose_writer(self.sysfs, self.settings, self.socket))
        return self.writers[-1]

    def answers(self):
        try:
            with self.connect() as link:
                return ask(link, {"list": True})["ok"]
        except OSError:
            return None

    def connect(self):
        return connected(self.socket)

    def stop(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        self.process.wait(DEADLINE_S)


def poll(condition):
    """Wait until it holds."""
    until = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.002)


def ask(link, request):
    """One answer to one line."""
    line = request if isinstance(request, bytes) else json.dumps(request).encode()
    link.sendall(line + b"\n")
    got = b""
    while not got.endswith(b"\n"):
        more = link.recv(65536)
        if not more:
            raise ConnectionError("hung up")
        got += more
    return json.loads(got)


@contextmanager
def running(board="orin-nano-r36", *more):
    directory = Path(tempfile.mkdtemp(prefix="edged-helper-"))
    directory.chmod(0o755)
    helper = Running(directory, board, *more)
    try:
        yield helper
    finally:
        for writer in helper.writers:
            writer.close()
        if helper.process.poll() is None:
            helper.stop()
        shutil.rmtree(directory)


def snapshot(root):
    return {path: path.read_bytes().strip() for path in root.rglob("*") if path.is_file()}
