"""The installed service from outside: files, API, processes, acknowledged rows and landed rows."""

import contextlib
import json
import os
import signal
import time
from collections import Counter
from pathlib import Path

import httpx

from edged.data.schema import Schema
from edged.pages.format import parse_header, verify
from edged.pages.read import read_page
from tests.central.support import read_landing
from tests.system import producers

BUILD = Path("build/system")
HTTP_ROWS = 200
BACK_S = 20.0
"""Seconds within which a killed daemon works again; its start alone takes about 2 s."""
LIMITS = "sys/devices/system/cpu/cpufreq/policy*/scaling_m[ai][nx]_freq"


class Installed:
    """The service on a machine, and the rows sent to it."""

    def __init__(self, machine):
        self.machine = machine
        self.tcp, self.http_rows, self.key = None, 0, 0
        self.before = {}

    def put(self, path, text):
        """A file of the machine, as seen from here."""
        target = self.machine.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def carry(self, package):
        """The package's path in the machine."""
        target = self.machine.root / "root" / package.name
        target.unlink(missing_ok=True)
        os.link(package, target)
        return f"/root/{package.name}"

    def api(self):
        """A client on the API's socket."""
        socket = self.machine.seen / "run/edged/api.sock"
        transport = httpx.HTTPTransport(uds=str(socket))
        return httpx.Client(transport=transport, base_url="http://localhost", timeout=60)

    def post(self):
        """Send rows over HTTP twice under one key, as a client does after a lost answer."""
        self.key += 1
        ids = range(self.http_rows, self.http_rows + HTTP_ROWS)
        rows = [{"id": i, "time": "2024-01-01T00:00:00Z"} for i in ids]
        body = "".join(json.dumps(row) + "\n" for row in rows)
        headers = {"Content-Type": "application/x-ndjson", "Idempotency-Key": f"key-{self.key}"}
        for _ in range(2):
            self.until(lambda: self.accepted(body, headers), BACK_S)
        self.http_rows += HTTP_ROWS

    def accepted(self, body, headers):
        """Whether the rows were accepted; False for 503, an error for any other refusal."""
        try:
            with self.api() as api:
                answer = api.post("/v1/streams/h/tuples", content=body, headers=headers)
        except httpx.TransportError:
            return False
        assert answer.status_code in (202, 429, 503), answer.text
        return answer.status_code == 202

    def as_user(self, name, program):
        """The words that run a Python program as a user of the machine."""
        return "runuser", "-u", name, "--", "/opt/edged/bin/python3", "-c", program

    def kill(self, unit):
        os.kill(self.host_pid(int(self.machine.show(unit, "MainPID"))), signal.SIGKILL)

    def pid(self):
        """The daemon's process id inside the machine; 0 where it does not run."""
        return int(self.machine.show("edged", "MainPID"))

    def host_pid(self, pid):
        """The process id here of a process inside; the last entry of NSpid is the inner one."""
        ours = Path(f"/proc/{self.machine.leader}/ns/pid").readlink()
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # gone meanwhile
                inner = (process / "status").read_text().partition("NSpid:")[2].split("\n")[0]
                if inner.split()[1:] == [str(pid)] and (process / "ns/pid").readlink() == ours:
                    return int(process.name)
        raise AssertionError(f"no process {pid}")

    def said_since(self, pid):
        """The unit's log lines after those of process `pid`."""
        lines = self.machine.journal("edged").partition(f"edged[{pid}]")[2].splitlines()
        return "\n".join(line for line in lines if f"edged[{pid}]" not in line)

    def entries(self, *matches):
        """The journal's entries with these fields."""
        said = self.machine.run("journalctl", "-o", "json", *matches).stdout
        return [json.loads(line) for line in said.splitlines()]

    def active(self):
        return self.machine.show("edged", "ActiveState") == "active"

    def jobs(self):
        with self.api() as api:
            listed = api.get("/v1/jobs").json()["items"]
        return {job["name"]: (job["version"], job["document"]) for job in listed}

    def acked(self):
        """Batches acknowledged to the TCP producers so far."""
        latest = Counter()
        for line in (BUILD / "acked").read_text().splitlines():
            said = json.loads(line)
            latest[said["producer"]] = max(latest[said["producer"]], said["acked"])
        return sum(latest.values())

    def until_more_is_acked(self):
        assert self.tcp.poll() is None, "the producers have ended"
        before = self.acked() if (BUILD / "acked").exists() else 0
        self.until(lambda: (BUILD / "acked").exists() and self.acked() > before + 10, 60)

    def until(self, condition, seconds):
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, (
                f"not within {seconds:g} s\n" + self.machine.journal("edged")
            )
            time.sleep(0.1)

    def limits_are_owned(self):
        """Wait until the policy has set clocks and its journal holds the earlier limits."""
        journal = self.machine.root / "var/lib/edged/limits.journal"
        self.until(lambda: journal.exists() and self.clocks() == {"1036800"}, 30)
        files = json.loads(journal.read_text().splitlines()[0])["files"]
        self.before = {file["path"]: file["original"] for file in files}

    def limits_are_restored(self):
        """Every file that the policy may set has its earlier value."""
        board = self.machine.root / "var/lib/edged/board"
        now = {path: (board / path[1:]).read_text().strip() for path in self.before}
        return now == self.before

    def clocks(self):
        """The limits of the simulated board's CPU, in kHz."""
        board = self.machine.root / "var/lib/edged/board"
        return {path.read_text().strip() for path in board.glob(LIMITS)}

    def rows_are_exact(self):
        """The landing holds each row once: all TCP rows, and those of each HTTP key."""
        landing = self.machine.root / "var/lib/edged-collector/landing"
        found = {"a_out": Counter(), "h_out": Counter()}
        for _, page in read_landing(landing):
            verify(page)
            header = parse_header(page)
            schema = (landing / f"schemas/{header.stream}@{header.version}.json").read_text()
            batch = read_page(page, Schema.from_json(schema))
            if header.stream in found:
                found[header.stream].update(batch.column("id").to_pylist())
        sent = producers.all_rows("a", self.config, self.ended).column("id").to_pylist()
        assert found["a_out"] == Counter(sent)
        assert found["h_out"] == Counter(range(self.http_rows))
        self.rows = len(sent) + self.http_rows
