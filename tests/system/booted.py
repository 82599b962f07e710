"""`make system`: the Debian package, installed and used in a Debian booted with systemd.

    python -m tests.system.booted PACKAGE NEWER [--suite trixie] [--json build/system.json]

Each step is a method of `Proof`, run in source order; a failing step ends the run.  Device
and centre are one machine: daemon, API, governor helper and collector run as their units.  Rows
arrive over TCP from a process of producers and over HTTP; at the end the landing must hold each row
once.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.governors.trees import BOARDS
from tests.system.booted_service import BACK_S, BUILD, Installed
from tests.system.encrypted import Encrypted, Impossible
from tests.system.machine import SUITE, Machine, base

PORT = 7400
TCP_ROWS = 500
"""Rows of a batch; each producer sends one every PERIOD_S."""
PERIOD_S = 0.05
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
ENCRYPTED = """\
[device]
name = "edge-2"
[store]
directory = "/var/lib/edged/disk/store"
"""
LANDING = "/var/lib/edged-collector/landing"
READER = f"""\
from edged.central import consumers, segments
landing = "{LANDING}"
reader = consumers.Consumer("reader", "a_out@1", {{}})
consumers.register(landing, reader, anew=True)
rows = segments.positions(landing)
for name in rows:
    assert len(segments.read_rows(landing, name)) == rows[name]
consumers.advance(landing, consumers.Consumer("reader", "a_out@1", rows))
print(sum(rows.values()))
"""
STRANGER = """\
import http.client
collector = http.client.HTTPConnection("127.0.0.1", 7500)
headers = {"X-Edged-Device": "stranger", "X-Edged-Epoch": "1", "X-Edged-Session": "1:1"}
collector.request("POST", "/v1/pages", b"no page", headers)
print(collector.getresponse().status, end="")
"""


class Proof(Installed):
    """The steps, in order."""

    def __init__(self, machine, package, newer):
        super().__init__(machine)
        self.package, self.newer = package, newer

    # installing and starting --------------------------------------------------------------------

    def install_the_package(self):
        """The package brings kernels, the users exist and all units run, without a job."""
        self.put("etc/edged/edged.toml.d/50-system.toml", CONFIG)
        self.put("etc/systemd/system/edged.service.d/system.conf", UNIT)
        self.machine.run("dpkg", "-i", self.carry(self.package), timeout_s=400)
        assert "kernels are ready: ahead of time for " in self.machine.said
        for unit in ("edged", "edged-api", "edged.socket", "edged-governor-helper.socket"):
            assert self.machine.run("systemctl", "is-active", unit).stdout == "active\n", unit
        self.machine.run("systemctl", "start", "edged-collector")
        assert "edged" in self.machine.run("getent", "passwd", "edged").stdout

    def check_the_hardening(self):
        """`systemd-analyze security` of the units."""
        said = self.machine.run("systemd-analyze", "security", "--no-pager", "edged.service").stdout
        self.score = float(said.rpartition("level for edged.service: ")[2].split()[0])
        assert self.score <= 2.5, self.score
        status = (self.machine.seen / f"proc/{self.pid()}/status").read_text()
        assert "CapEff:\t0000000000000000" in status and "NoNewPrivs:\t1" in status

    def run_a_job_over_the_api(self):
        """The API's socket belongs to the group and takes a job."""
        socket = self.machine.seen / "run/edged/api.sock"
        assert socket.stat().st_mode & 0o777 == 0o660
        group = self.machine.run("stat", "-c", "%U:%G", "/run/edged/api.sock").stdout
        assert group == "root:edged\n"
        with self.api() as api:
            answer = api.put("/v1/jobs/law", json=JOB)
            assert answer.status_code == 201, answer.text
            assert api.get("/v1/jobs/law").json()["state"] == "running"
        assert self.kernels().startswith("ahead of time for ")

    def be_ready_only_when_ready(self):
        """When systemd reports the daemon active, sources listen and the control socket answers."""
        self.put("opt/edged/prepared", "/usr/bin/python3.10\n")  # as before a dist-upgrade
        self.machine.run("systemctl", "restart", "edged")
        assert "Python has changed to 3." in self.machine.journal("edged")
        connect = f"import socket; socket.create_connection(('127.0.0.1', {PORT})).close()"
        subprocess.run(self.machine.inside([sys.executable, "-c", connect]), check=True)
        self.machine.run("/usr/bin/edged", "reload", "--door", "/run/edged/daemon/door")
        with self.api() as api:
            assert api.get("/v1/jobs/law").json()["state"] == "running", "it came back"

    def take_rows_over_tcp_and_http(self):
        """Start the producers, which run until the last step."""
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
        """The collector's group may read the landing and mark a position; others may not."""
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
        run("systemctl", "start", "edged-compact.service")  # ends with the run
        assert self.machine.show("edged-compact", "ExecMainStatus") == "0"
        assert self.machine.show("edged-compact.timer", "LoadState") == "loaded"
        assert self.machine.show("edged-collector", "NRestarts") == "0"

    def log_with_levels_and_fields(self):
        """Each service's log lines are in the journal with level and fields."""
        inside = self.machine.inside([sys.executable, "-c", STRANGER])
        assert subprocess.run(inside, check=True, stdout=subprocess.PIPE, text=True).stdout == "422"
        entries = {
            "edged": ("6", "EDGED_EVENT=job.created", "EDGED_JOB=law"),
            "edged-api": ("6", "EDGED_STATUS=201"),
            "edged-collector": ("4", "EDGED_EVENT=page.damaged", "EDGED_DEVICE=stranger"),
        }
        for unit, (priority, *fields) in entries.items():
            self.until(lambda f=fields: self.entries(*f), 30)
            entry = self.entries(*fields)[-1]
            assert (entry["PRIORITY"], entry["_SYSTEMD_UNIT"]) == (priority, f"{unit}.service")

    # what goes wrong ----------------------------------------------------------------------------

    def kernels(self):
        """Where the daemon has its kernels from."""
        with self.api() as api:
            return api.get("/v1/device").json()["build"]["kernels"]

    def come_back_from_a_kill(self):
        """After `kill -9` limits are restored, and the daemon is back within seconds."""
        pid, began = self.pid(), time.monotonic()
        self.kill("edged")
        self.until(lambda: self.pid() not in (0, pid) and self.active(), BACK_S)
        self.back_s = time.monotonic() - began
        assert self.machine.show("edged", "NRestarts") == "1"
        assert "policy0" in self.said_since(pid), "ExecStopPost restored its limits"
        self.post()
        self.until_more_is_acked()

    def be_restarted_by_the_watchdog(self):
        """systemd's watchdog restarts a stopped process."""
        pid = self.pid()
        os.kill(self.host_pid(pid), signal.SIGSTOP)
        self.until(lambda: self.pid() not in (0, pid) and self.active(), 60)
        assert "Watchdog timeout" in self.machine.journal("edged")
        self.post()
        self.until_more_is_acked()

    def refuse_a_wrong_reload(self):
        """`systemctl reload` of a wrong configuration fails, logs why and changes nothing."""
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
        """A reload applies another policy and another job; process and producers stay the same."""
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
        """A request restarts a killed API; the daemon is not affected."""
        pid = self.pid()
        self.kill("edged-api")
        self.until_more_is_acked()
        self.post()
        assert self.pid() == pid

    def own_the_clocks_of_sys_through_the_helper(self):
        """The root helper sets clocks of a board in /sys, after nvpmodel.  It restores them after
        SIGKILL of the daemon, also under a broken configuration and after its own death."""
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
        """A newer package restarts the daemon, which keeps its state and its compiled kernels."""
        pid, jobs = self.pid(), self.jobs()
        self.machine.run("systemctl", "disable", "edged-governor-helper.socket")
        self.fail_to_upgrade(pid)
        self.machine.run("dpkg", "--configure", "edged", timeout_s=400)
        assert "kernels are ready: ahead of time for " in self.machine.said
        for unit, state in ("edged", "enabled"), ("edged-governor-helper.socket", "disabled"):
            assert (
                self.machine.run("systemctl", "is-enabled", unit, check=False).stdout.strip()
                == state
            )
        assert self.pid() != pid and self.active()
        assert self.jobs() == jobs
        self.post()
        self.until_more_is_acked()

    def fail_to_upgrade(self, pid):
        """Where kernels cannot be compiled, the version before is back whole and runs on."""
        self.put("root/failing/runuser", "#!/bin/sh\nexit 1\n")
        (self.machine.root / "root/failing/runuser").chmod(0o755)
        words = ("env", "PATH=/root/failing:/usr/sbin:/usr/bin:/sbin:/bin", "dpkg", "-i")
        kept = self.machine.root / "opt/edged/pyvenv.cfg"
        inode = kept.stat().st_ino
        assert self.machine.run(*words, self.carry(self.newer), check=False).returncode
        assert "the version before it is back and runs on" in self.machine.said
        assert kept.stat().st_ino == inode
        assert self.pid() == pid and self.active()

    def stop_and_drain(self):
        """After a stop every accepted row is at the centre, and clocks are as before."""
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

    def keep_the_store_encrypted(self):
        """On an encrypted directory the disk shows neither rows nor names; without its key it shows
        no file.  Where the kernel cannot, `build/system.json` says why."""
        self.encryption = "fscrypt"
        try:
            with Encrypted(self.machine, "/var/lib/edged/disk", BUILD / "disk.img") as disk:
                self.work_on(disk)
        except Impossible as problem:
            self.encryption = f"not possible: {problem}"

    def work_on(self, disk):
        """Take rows into a store on `disk`."""
        self.machine.run("chown", "edged:edged", "/var/lib/edged/disk/store")
        drop_in = "etc/edged/edged.toml.d/90-encrypted.toml"
        self.put(drop_in, ENCRYPTED)
        self.machine.run("systemctl", "start", "edged")
        with self.api() as api:
            assert api.put("/v1/jobs/law", json=JOB).status_code == 201
        self.post()
        self.machine.run("systemctl", "stop", "edged")
        names = {path.name for path in disk.directory.iterdir()}
        plain = self.machine.root / "var/lib/edged"
        assert any(b"h_out" in path.read_bytes() for path in plain.rglob("*") if path.is_file())
        assert not disk.holds(b"h_out")
        disk.lock()
        assert not names & {path.name for path in disk.directory.iterdir()}
        (self.machine.root / drop_in).unlink()

    # the end ------------------------------------------------------------------------------------

    def remove_the_package(self):
        """Removal deletes units and programs, restores limits, keeps state and configuration."""
        self.machine.run("systemctl", "start", "edged")
        self.machine.run("dpkg", "--remove", "edged")
        assert list((self.machine.root / "opt").iterdir()) == []
        assert not (self.machine.root / "lib/systemd/system/edged.service").exists()
        assert (self.machine.root / "var/lib/edged/identity").exists() or any(
            (self.machine.root / "var/lib/edged").iterdir()
        )
        assert (self.machine.root / "etc/edged/edged.toml").exists()
        assert self.limits_are_restored()

    def install_it_again(self):
        """An installation after removal finds state, jobs and kernels, and enables the units."""
        self.machine.run("dpkg", "-i", self.carry(self.newer), timeout_s=400)
        assert "kernels are ready: ahead of time for " in self.machine.said
        assert self.active(), self.machine.said + self.machine.journal("edged")[-2000:]
        assert "law" in self.jobs()
        for unit in ("edged", "edged-governor-helper.socket"):
            assert self.machine.run("systemctl", "is-enabled", unit).stdout == "enabled\n"
        self.machine.run("dpkg", "--remove", "edged")

    def purge_it(self):
        """A purge leaves nothing, not even the user."""
        self.machine.run("dpkg", "--purge", "edged")
        for path in ("var/lib/edged", "var/lib/edged-collector", "etc/edged", "var/cache/edged"):
            assert not (self.machine.root / path).exists(), path
        assert self.machine.run("getent", "passwd", "edged", check=False).returncode == 2
        assert self.machine.run("getent", "group", "edged", check=False).returncode == 2


STEPS = (
    Proof.install_the_package,
    Proof.check_the_hardening,
    Proof.run_a_job_over_the_api,
    Proof.be_ready_only_when_ready,
    Proof.take_rows_over_tcp_and_http,
    Proof.let_another_user_read_the_landing,
    Proof.log_with_levels_and_fields,
    Proof.come_back_from_a_kill,
    Proof.be_restarted_by_the_watchdog,
    Proof.refuse_a_wrong_reload,
    Proof.apply_a_right_reload,
    Proof.go_on_without_the_api,
    Proof.own_the_clocks_of_sys_through_the_helper,
    Proof.upgrade_in_place,
    Proof.stop_and_drain,
    Proof.keep_the_store_encrypted,
    Proof.remove_the_package,
    Proof.install_it_again,
    Proof.purge_it,
)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("package", type=Path)
    parser.add_argument("newer", type=Path)
    parser.add_argument("--suite", default=SUITE)
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
        tarball = step("make a Debian", lambda: base(BUILD, options.suite))
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
        figures = {name: getattr(proof, name) for name in ("score", "back_s", "rows", "encryption")
                if hasattr(proof, name)}  # fmt: skip
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"steps": steps, **figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
