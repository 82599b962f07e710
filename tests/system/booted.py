"""`make system`: the Debian package, proven on a Debian that is booted with systemd.

    python -m tests.system.booted PACKAGE NEWER [--json build/system.json]

Each step is a function below, in the order of their lines; a step that fails ends the run.  Device
and centre are the same machine: daemon, API, governor helper and collector run as their units.
Rows come over TCP from a process of producers and over HTTP; at the end the landing must hold every
row that was sent, once.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import httpx

from edged.pages.format import parse_header, verify
from edged.pages.read import read_page
from edged.schema import Schema
from tests.central.support import read_landing
from tests.governors.trees import BOARDS
from tests.system import producers
from tests.system.machine import Machine, base

BUILD = Path("build/system")
PORT = 7400
TCP_ROWS = 500
"""A batch of each producer, every PERIOD_S."""
PERIOD_S = 0.05
HTTP_ROWS = 200
BACK_S = 20.0
"""Within which a daemon must work again that was killed; its start alone takes about 2 s."""
CONFIG = """\
[device]
name = "edge-1"
[uplink]
url = "http://127.0.0.1:7500"
[energy]
board = "simulated:orin-nano"
policy = "fixed"
settings = { cpu_mhz = 1036.8 }
"""
UNIT = "[Service]\nWatchdogSec=6\n"
JOB = {
    "name": "law",
    "promises": {"latency": "100ms"},
    "streams": {
        "a": {
            "source": {"type": "tcp", "listen": f"127.0.0.1:{PORT}"},
            "columns": {"id": "int64", "key": "int32", "time": "timestamp", "note": "string?"},
            "time": "time",
            "lateness": "1h",
        },
        "h": {
            "source": {"type": "http"},
            "columns": {"id": "int64", "time": "timestamp"},
            "time": "time",
        },
    },
    "operators": {"some": {"type": "filter", "input": "a", "where": "id + 1 > 0"}},
    "sinks": {
        "a_out": {"type": "pages", "input": "some", "stream": "a_out"},
        "h_out": {"type": "pages", "input": "h", "stream": "h_out"},
    },
}
LIMITS = "sys/devices/system/cpu/cpufreq/policy*/scaling_m[ai][nx]_freq"
CPUS = "sys/devices/system/cpu"
OURS = """\
[energy]
board = "/"
policy = "fixed"
settings = { cpu_mhz = 1036.8 }
"""
NVPMODEL = """\
[Service]
Type=oneshot
ExecStart=/usr/bin/sleep 1
"""
LANDING = "/var/lib/edged-collector/landing"
READER = f"""\
from edged.central import consumers, segments
landing = "{LANDING}"
reader = consumers.Consumer("reader", "a_out@1", {{}})
consumers.enter(landing, reader, anew=True)
rows = segments.positions(landing)
for name in rows:
    assert len(segments.read_rows(landing, name)) == rows[name]
consumers.advance(landing, consumers.Consumer("reader", "a_out@1", rows))
print(sum(rows.values()))
"""


class Proof:
    """The steps, in order, and what they share."""

    def __init__(self, machine, package, newer):
        self.machine, self.package, self.newer = machine, package, newer
        self.tcp, self.http_rows, self.key = None, 0, 0
        self.before = {}

    # installing and starting --------------------------------------------------------------------

    def install_the_package(self):
        """Kernels are compiled, the users are there, and all units run: with no job yet."""
        self.put("etc/edged/edged.toml.d/50-system.toml", CONFIG)
        self.put("etc/systemd/system/edged.service.d/system.conf", UNIT)
        self.machine.run("dpkg", "-i", self.carry(self.package), timeout_s=400)
        assert "kernels ready" in self.machine.said
        for unit in ("edged", "edged-api", "edged.socket", "edged-governor-helper.socket"):
            assert self.machine.run("systemctl", "is-active", unit).stdout == "active\n", unit
        self.machine.run("systemctl", "start", "edged-collector")
        assert "edged" in self.machine.run("getent", "passwd", "edged").stdout

    def check_the_hardening(self):
        """`systemd-analyze security`, as this systemd counts."""
        said = self.machine.run("systemd-analyze", "security", "--no-pager", "edged.service").stdout
        self.score = float(said.rpartition("level for edged.service: ")[2].split()[0])
        assert self.score <= 2.5, self.score
        status = (self.machine.seen / f"proc/{self.pid()}/status").read_text()
        assert "CapEff:\t0000000000000000" in status and "NoNewPrivs:\t1" in status

    def run_a_job_over_the_api(self):
        """The API's socket is the group's; a job goes in and is there."""
        socket = self.machine.seen / "run/edged/api.sock"
        assert socket.stat().st_mode & 0o777 == 0o660
        group = self.machine.run("stat", "-c", "%U:%G", "/run/edged/api.sock").stdout
        assert group == "root:edged\n"
        with self.api() as api:
            answer = api.put("/v1/jobs/law", json=JOB)
            assert answer.status_code == 201, answer.text
            assert api.get("/v1/jobs/law").json()["state"] == "running"

    def be_ready_only_when_ready(self):
        """The moment that systemd says it runs, sources listen and the door answers."""
        self.machine.run("systemctl", "restart", "edged")
        connect = f"import socket; socket.create_connection(('127.0.0.1', {PORT})).close()"
        subprocess.run(self.machine.inside([sys.executable, "-c", connect]), check=True)
        self.machine.run("/usr/bin/edged", "reload", "--door", "/run/edged/daemon/door")
        with self.api() as api:
            assert api.get("/v1/jobs/law").json()["state"] == "running", "it came back"

    def take_rows_over_tcp_and_http(self):
        """Producers begin; they go on until the end, whatever happens."""
        journal = BUILD / "acked"
        journal.unlink(missing_ok=True)
        self.config = {
            "address": f"127.0.0.1:{PORT}", "journal": str(journal), "batch": TCP_ROWS,
            "batches_max": 1 << 20, "began_s": time.time(), "period_s": PERIOD_S,
            "unacked_bytes_max": 64 << 20,
            "producers": [{"id": f"p{n}", "number": n, "stream": "a"} for n in (1, 2)],
        }  # fmt: skip
        (BUILD / "producers.json").write_text(json.dumps(self.config))
        words = [sys.executable, "-m", "tests.system.producers", BUILD / "producers.json"]
        self.tcp = subprocess.Popen(self.machine.inside(words), stdout=subprocess.PIPE, text=True)
        self.post()
        self.until_more_is_acked()
        self.limits_are_owned()

    def let_another_user_read_the_landing(self):
        """A member of the collector's group reads, and says how far; nobody else sees anything."""
        run = self.machine.run
        run("useradd", "--system", "--groups", "edged-collector", "reader")
        self.until(lambda: int(run(*self.as_user("reader", READER)).stdout) > 0, 60)
        asked = ("--older-than", "1d", "--dry-run")
        run("runuser", "-u", "edged-collector", "--", "edged", "central", "expire", "--landing",
            LANDING, *asked)  # fmt: skip
        assert run("stat", "-c", "%U:%G", f"{LANDING}/consumers/reader.json").stdout == (
            "reader:edged-collector\n"
        )
        assert run(*self.as_user("nobody", READER), check=False).returncode
        assert self.machine.show("edged-collector", "NRestarts") == "0"

    # what goes wrong ----------------------------------------------------------------------------

    def come_back_from_a_kill(self):
        """`kill -9`: limits are restored, it is back within seconds, producers go on."""
        pid, began = self.pid(), time.monotonic()
        self.kill("edged")
        self.until(lambda: self.pid() not in (0, pid) and self.active(), BACK_S)
        self.back_s = time.monotonic() - began
        assert self.machine.show("edged", "NRestarts") == "1"
        assert "policy0" in self.said_since(pid), "ExecStopPost restored its limits"
        self.post()
        self.until_more_is_acked()

    def be_restarted_by_the_watchdog(self):
        """A stopped process feeds nobody."""
        pid = self.pid()
        os.kill(self.host_pid(pid), signal.SIGSTOP)
        self.until(lambda: self.pid() not in (0, pid) and self.active(), 60)
        assert "Watchdog timeout" in self.machine.journal("edged")
        self.post()
        self.until_more_is_acked()

    def refuse_a_wrong_reload(self):
        """`systemctl reload` fails; the journal says why; nothing has changed."""
        pid = self.pid()
        self.put("etc/edged/edged.toml.d/60-wrong.toml", "[log]\nlevle = 'debug'\n")
        done = self.machine.run("systemctl", "reload", "edged", check=False)
        assert done.returncode != 0
        said = self.machine.run("journalctl", "-o", "cat", "EDGED_EVENT=config.refused").stdout
        assert "did you mean log.level?" in said, "a line with its fields"
        assert self.pid() == pid and self.active()
        (self.machine.root / "etc/edged/edged.toml.d/60-wrong.toml").unlink()
        self.until_more_is_acked()

    def apply_a_right_reload(self):
        """Another policy and another job, from files; the same process, the same producers."""
        pid = self.pid()
        self.put("etc/edged/edged.toml.d/60-more.toml",
                 '[energy]\npolicy = "power_cap"\nsettings = { watts = 6.0 }\n')  # fmt: skip
        more = {**JOB, "name": "more", "streams": {"m": {**JOB["streams"]["h"]}}, "operators": {},
                "sinks": {"m_out": {"type": "pages", "input": "m"}}}  # fmt: skip
        self.put("etc/edged/jobs.d/more.json.toml", json.dumps(more))
        self.machine.run("systemctl", "reload", "edged")
        assert self.pid() == pid and self.active()
        with self.api() as api:
            assert api.get("/v1/jobs/more").json()["state"] == "running"
            assert api.get("/v1/governor").json()["policy"] == "power_cap"
        self.until_more_is_acked()

    def go_on_without_the_api(self):
        """The API is killed: the daemon does not notice, and a request brings it back."""
        pid = self.pid()
        self.kill("edged-api")
        self.until_more_is_acked()
        self.post()
        assert self.pid() == pid

    def own_the_clocks_of_sys_through_the_helper(self):
        """A board in /sys: set by root's helper, after nvpmodel; restored by it after SIGKILL even
        under a configuration that somebody has broken, and by one that has died meanwhile."""
        board = self.machine.root / "srv/board"
        BOARDS["orin-nano-r36"]().plant(board)
        limits = board / CPUS / "cpufreq/policy0/scaling_max_freq"
        self.machine.run("mount", "--bind", f"/srv/board/{CPUS}", f"/{CPUS}")
        self.put("etc/systemd/system/nvpmodel.service", NVPMODEL)
        self.put("etc/edged/edged.toml.d/70-board.toml", OURS)
        self.machine.run("systemctl", "daemon-reload")
        self.machine.run("systemctl", "stop", "edged")
        self.machine.run("systemctl", "start", "nvpmodel", "edged")
        after, before = (int(self.machine.show(unit, f"ExecMain{when}TimestampMonotonic"))
                         for unit, when in (("edged", "Start"), ("nvpmodel", "Exit")))  # fmt: skip
        assert after >= before > 0
        self.until(lambda: limits.read_text().strip() == "1036800", 30)
        self.put("etc/edged/edged.toml.d/80-wrong.toml", "[energy\n")
        self.kill("edged-governor-helper")
        self.kill("edged")
        self.until(lambda: self.machine.show("edged", "ActiveState") == "failed", 60)
        assert limits.read_text().strip() == "1344000", self.machine.journal("edged")
        assert self.machine.show("edged", "ExecMainStatus") == "78"
        for name in ("70-board", "80-wrong"):
            (self.machine.root / f"etc/edged/edged.toml.d/{name}.toml").unlink()
        self.machine.run("umount", f"/{CPUS}")
        self.machine.run("systemctl", "start", "edged")
        self.post()
        self.until_more_is_acked()

    def upgrade_in_place(self):
        """A newer package: the daemon restarts with its state and with the kernels that it has."""
        pid, jobs = self.pid(), self.jobs()
        self.machine.run("systemctl", "disable", "edged-governor-helper.socket")
        self.machine.run("dpkg", "-i", self.carry(self.newer), timeout_s=400)
        ready = self.machine.said.partition("kernels ready in ")[2].split()[0]
        assert float(ready) < 10, "kernels that did not change are not compiled again"
        for unit, told in ("edged", "enabled"), ("edged-governor-helper.socket", "disabled"):
            assert (
                self.machine.run("systemctl", "is-enabled", unit, check=False).stdout.strip()
                == told
            )
        assert self.pid() != pid and self.active()
        assert self.jobs() == jobs
        self.post()
        self.until_more_is_acked()

    def stop_and_drain(self):
        """All that was accepted is at the centre when the stop is over; clocks are as before."""
        self.tcp.send_signal(signal.SIGUSR1)
        said, _ = self.tcp.communicate(timeout=60)
        self.ended = json.loads(said.splitlines()[-1])["ended"]
        self.post()
        began = time.monotonic()
        self.machine.run("systemctl", "stop", "edged")
        assert time.monotonic() - began < 45
        assert self.machine.show("edged", "Result") == "success"
        self.rows_are_exact()
        assert self.limits_are_restored()
        assert not (self.machine.root / "var/lib/edged/limits.journal").exists()

    # the end ------------------------------------------------------------------------------------

    def remove_the_package(self):
        """Units and programs are gone; state and configuration stay; limits are restored."""
        self.machine.run("systemctl", "start", "edged")
        self.machine.run("dpkg", "--remove", "edged")
        assert not (self.machine.root / "opt/edged").exists()
        assert not (self.machine.root / "lib/systemd/system/edged.service").exists()
        assert (self.machine.root / "var/lib/edged/identity").exists() or any(
            (self.machine.root / "var/lib/edged").iterdir()
        )
        assert (self.machine.root / "etc/edged/edged.toml").exists()
        assert self.limits_are_restored()

    def install_it_again(self):
        """With state and jobs as they were left; kernels are still there, units are enabled."""
        self.machine.run("dpkg", "-i", self.carry(self.newer), timeout_s=400)
        assert float(self.machine.said.partition("kernels ready in ")[2].split()[0]) < 10
        assert self.active(), self.machine.said + self.machine.journal("edged")[-2000:]
        assert "law" in self.jobs()
        for unit in ("edged", "edged-governor-helper.socket"):
            assert self.machine.run("systemctl", "is-enabled", unit).stdout == "enabled\n"
        self.machine.run("dpkg", "--remove", "edged")

    def purge_it(self):
        """Nothing is left, the user neither."""
        self.machine.run("dpkg", "--purge", "edged")
        for path in ("var/lib/edged", "var/lib/edged-collector", "etc/edged", "var/cache/edged"):
            assert not (self.machine.root / path).exists(), path
        assert self.machine.run("getent", "passwd", "edged", check=False).returncode == 2
        assert self.machine.run("getent", "group", "edged", check=False).returncode == 2

    # what they use ------------------------------------------------------------------------------

    def put(self, path, text):
        """A file of the machine's."""
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
        """Rows over HTTP, twice under one key, as a client does that has lost the answer."""
        self.key += 1
        ids = range(self.http_rows, self.http_rows + HTTP_ROWS)
        rows = [{"id": i, "time": "2024-01-01T00:00:00Z"} for i in ids]
        body = "".join(json.dumps(row) + "\n" for row in rows)
        headers = {"Content-Type": "application/x-ndjson", "Idempotency-Key": f"key-{self.key}"}
        for _ in range(2):
            self.until(lambda: self.accepted(body, headers), BACK_S)
        self.http_rows += HTTP_ROWS

    def accepted(self, body, headers):
        """Whether the rows are in; unavailable is a reason to ask again, anything else is none."""
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
        """The daemon's, as the machine counts; 0: none."""
        return int(self.machine.show("edged", "MainPID"))

    def host_pid(self, pid):
        """The same process, as this machine counts: the last of NSpid is the innermost."""
        ours = Path(f"/proc/{self.machine.leader}/ns/pid").readlink()
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # gone meanwhile
                inner = (process / "status").read_text().partition("NSpid:")[2].split("\n")[0]
                if inner.split()[1:] == [str(pid)] and (process / "ns/pid").readlink() == ours:
                    return int(process.name)
        raise AssertionError(f"no process {pid}")

    def said_since(self, pid):
        """The daemon's log from what its process `pid` said on, without what that said itself."""
        lines = self.machine.journal("edged").partition(f"edged[{pid}]")[2].splitlines()
        return "\n".join(line for line in lines if f"edged[{pid}]" not in line)

    def active(self):
        return self.machine.show("edged", "ActiveState") == "active"

    def jobs(self):
        with self.api() as api:
            listed = api.get("/v1/jobs").json()["items"]
        return {job["name"]: (job["version"], job["document"]) for job in listed}

    def acked(self):
        """Batches that the daemon has acknowledged to producers over TCP so far."""
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
        """The policy has set clocks, and its journal says what they were."""
        journal = self.machine.root / "var/lib/edged/limits.journal"
        self.until(lambda: journal.exists() and self.clocks() == {"1036800"}, 30)
        files = json.loads(journal.read_text().splitlines()[0])["files"]
        self.before = {file["path"]: file["original"] for file in files}

    def limits_are_restored(self):
        """Every file that the policy may have set is as it was before."""
        board = self.machine.root / "var/lib/edged/board"
        now = {path: (board / path[1:]).read_text().strip() for path in self.before}
        return now == self.before

    def clocks(self):
        """What the limits of the simulated board's CPU are, in kHz."""
        board = self.machine.root / "var/lib/edged/board"
        return {path.read_text().strip() for path in board.glob(LIMITS)}

    def rows_are_exact(self):
        """Every row is in the landing, once: those over TCP that were sent, those of each key."""
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


STEPS = (
    Proof.install_the_package,
    Proof.check_the_hardening,
    Proof.run_a_job_over_the_api,
    Proof.be_ready_only_when_ready,
    Proof.take_rows_over_tcp_and_http,
    Proof.let_another_user_read_the_landing,
    Proof.come_back_from_a_kill,
    Proof.be_restarted_by_the_watchdog,
    Proof.refuse_a_wrong_reload,
    Proof.apply_a_right_reload,
    Proof.go_on_without_the_api,
    Proof.own_the_clocks_of_sys_through_the_helper,
    Proof.upgrade_in_place,
    Proof.stop_and_drain,
    Proof.remove_the_package,
    Proof.install_it_again,
    Proof.purge_it,
)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("package", type=Path)
    parser.add_argument("newer", type=Path)
    parser.add_argument("--json", type=Path, default=Path("build/system.json"))
    options = parser.parse_args()
    BUILD.mkdir(parents=True, exist_ok=True)
    steps, proof = [], None

    def step(name, work):
        began, problem = time.monotonic(), ""
        try:
            return work()
        except Exception as failure:
            problem = f"{type(failure).__name__}: {failure}"
            raise
        finally:
            seconds = round(time.monotonic() - began, 2)
            steps.append({"name": name, "ok": not problem, "seconds": seconds})
            if problem:
                steps[-1]["problem"] = problem[-2000:]
            sys.stderr.write(f"{'ok  ' if not problem else 'FAIL'} {seconds:7.2f} s  {name}\n")

    try:
        tarball = step("make a Debian", lambda: base(BUILD))
        machine = step("unpack it", lambda: Machine(tarball, BUILD))
        step("boot it", machine.__enter__)
        try:
            proof = Proof(machine, options.package, options.newer)
            for work in STEPS:
                step(work.__name__.replace("_", " "), lambda work=work: work(proof))
        finally:
            if proof is not None and proof.tcp is not None and proof.tcp.poll() is None:
                proof.tcp.kill()
            machine.__exit__()
    finally:
        told = {name: getattr(proof, name) for name in ("score", "back_s", "rows")
                if hasattr(proof, name)}  # fmt: skip
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"steps": steps, **told}, indent=2) + "\n")


if __name__ == "__main__":
    main()
