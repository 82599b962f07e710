"""Steps of an installed edged whose services run without systemd: in a chroot or in containers.

A collector, the daemon and a process of producers run; each is started as its unit starts it.  The
landing must hold each row once in the end.
"""

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time

from tests.system.booted import PORT, TCP_ROWS
from tests.system.booted_service import BUILD, Installed

COLLECT = ("edged", "central", "collect", "--listen", "127.0.0.1:7500", "--landing",
           "/var/lib/edged-collector/landing")  # fmt: skip
RUN = ("/opt/edged/bin/edged", "run", "--config", "/etc/edged/edged.toml")
DOOR = "/run/edged/daemon/door"
STOP = ("/opt/edged/bin/edged", "stop", "--drain", "--within", "300", "--config",
        "/etc/edged/edged.toml", "--door", DOOR)  # fmt: skip
PACE_S = 0.5
"""Between two batches of a producer."""
WAIT_S = 600


class Foreground(Installed):
    """The steps; `start`, `kill_the_daemon` and `ask_to_stop` are the machine's."""

    services: dict[str, subprocess.Popen]

    def start_the_daemon(self):
        self.start("edged", "edged", *RUN)

    def take_rows_over_tcp(self):
        """Start collector, daemon and producers, which run until the daemon is stopped."""
        self.start("edged-collector", "edged-collector", *COLLECT)
        self.start_the_daemon()
        journal = BUILD / "acked"
        journal.unlink(missing_ok=True)
        self.config = {
            "address": f"127.0.0.1:{PORT}", "journal": str(journal), "batch": TCP_ROWS,
            "batches_max": 1 << 20, "began_s": time.time(), "period_s": PACE_S,
            "unacked_bytes_max": 64 << 20,
            "producers": [{"id": f"p{n}", "number": n, "stream": "a"} for n in (1, 2)],
        }  # fmt: skip
        (BUILD / "producers.json").write_text(json.dumps(self.config))
        self.until(self.listens, WAIT_S)
        words = [sys.executable, "-m", "tests.system.producers", BUILD / "producers.json"]
        self.tcp = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        self.until_more_are_acked()

    def listens(self):
        """Whether the job's source accepts connections."""
        assert self.services["edged"].poll() is None, self.machine.journal("edged")[-2000:]
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", PORT), 1):
            return True
        return False

    def until_more_are_acked(self):
        before = self.acked() if (BUILD / "acked").exists() else 0
        self.until(lambda: (BUILD / "acked").exists() and self.acked() > before + 10, WAIT_S)

    def come_back_from_a_kill(self):
        """After `kill -9` the daemon goes on with its store, and producers connect to it again."""
        self.kill_the_daemon()
        self.services["edged"].wait(WAIT_S)
        self.start_the_daemon()
        self.until_more_are_acked()

    def stop_and_drain(self):
        """Every row that was acknowledged is at the centre, once."""
        self.tcp.send_signal(signal.SIGUSR1)
        said, _ = self.tcp.communicate(timeout=WAIT_S)
        self.ended = json.loads(said.splitlines()[-1])["ended"]
        self.ask_to_stop()
        self.services["edged"].wait(WAIT_S)
        self.rows_are_exact()
        self.services["edged-collector"].terminate()
        self.services["edged-collector"].wait(WAIT_S)

    def close(self):
        """End what still runs."""
        for process in (*self.services.values(), *filter(None, [self.tcp])):
            with contextlib.suppress(ProcessLookupError):
                process.kill()


def report(options, proof, steps, figures):
    """Run the steps of a proof in order; write each step's time and the named figures."""
    done = []
    try:
        for work in steps:
            name, began = work.__name__.replace("_", " "), time.monotonic()
            sys.stderr.write(f"     {name}\n")
            work(proof)
            done.append({"name": name, "seconds": round(time.monotonic() - began, 1)})
            sys.stderr.write(f"ok  {done[-1]['seconds']:8.1f} s  {name}\n")
    finally:
        proof.close()
        found = {name: getattr(proof, name) for name in figures if hasattr(proof, name)}
        options.json.write_text(json.dumps({"steps": done, **found}, indent=2) + "\n")
