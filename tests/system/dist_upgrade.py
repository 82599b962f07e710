"""`make system-dist-upgrade`: Debian 12 becomes Debian 13 by apt under the installed package.

    python -m tests.system.dist_upgrade PACKAGE [--json build/system-dist-upgrade.json]

The package has environments for both Pythons.  Debian 12 boots, the package is installed, a job
takes rows; apt upgrades everything while it does, and the daemon must not stop.  Its restart finds
another Python: bytecode is made, the package's kernels serve, and the job goes on with its state.
Then the machine boots once more.  Needs a network; it is no part of CI.
"""

import argparse
import time
from pathlib import Path

from tests.system import booted
from tests.system.booted_service import BUILD
from tests.system.foreground import report
from tests.system.machine import MIRROR, Machine, base

BEFORE, AFTER = "bookworm", "trixie"
PYTHON = {BEFORE: "3.11", AFTER: "3.13"}
APT = ("apt-get", "--yes", "-qq", "-o", "Dpkg::Options::=--force-confold", "-o",
       "DPkg::Options::=--force-unsafe-io")  # fmt: skip
APT_S = 1800
RESTART_S = 900


class Proof(booted.Proof):
    """The steps, in order."""

    def python(self):
        """The minor version of the system's Python."""
        words = ("/usr/bin/python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
        return self.machine.run(*words).stdout.strip()

    def online(self, *words):
        """Run a program of apt with this machine's network."""
        return self.machine.run(*words, timeout_s=APT_S, online=True)

    def be_kept_where_the_package_is_not_for_the_new_python(self):
        """apt keeps back Python, and removes nothing, where the package is for 3.11 alone."""
        assert self.python() == PYTHON[BEFORE]
        resolver = Path("/etc/resolv.conf").read_text()
        self.put("etc/apt/sources.list", f"deb {MIRROR} {AFTER} main\n")
        (self.machine.seen / "etc/resolv.conf").write_text(resolver)
        self.online("apt-get", "-qq", "update")
        status = self.machine.root / "var/lib/dpkg/status"
        kept = status.read_text()
        status.write_text(kept.replace("python3 (<< 3.14)", "python3 (<< 3.12)"))
        try:
            said = self.online(*APT, "--simulate", "upgrade").stdout
        finally:
            status.write_text(kept)
        changed = [line.split()[:2] for line in said.splitlines()]
        assert ["Remv", "edged"] not in changed and ["Inst", "python3"] not in changed, said

    def upgrade_the_distribution(self):
        """The daemon takes rows with the Python that it began with."""
        pid = self.pid()
        self.online(*APT, "dist-upgrade")
        assert self.python() == PYTHON[AFTER]
        assert "13" in (self.machine.root / "etc/debian_version").read_text()
        assert "Status: install ok installed" in self.machine.run("dpkg", "-s", "edged").stdout
        assert self.active() and self.pid() == pid, self.machine.journal("edged")[-2000:]
        self.until_more_is_acked()

    def start_with_the_new_python(self):
        """A restart makes bytecode, takes the package's kernels, and goes on with jobs and rows."""
        pid, jobs = self.pid(), self.jobs()
        began = time.monotonic()
        self.machine.run("systemctl", "restart", "edged", timeout_s=RESTART_S)
        self.restart_s = round(time.monotonic() - began, 1)
        self.machine.run("systemctl", "restart", "edged-api", "edged-collector")
        said = self.said_since(pid)
        assert f"Python has changed to {PYTHON[AFTER]}" in said, said
        assert self.kernels().startswith("ahead of time for ")
        runs = (self.machine.seen / f"proc/{self.pid()}/exe").readlink()
        assert runs.name == f"python{PYTHON[AFTER]}"
        assert self.jobs() == jobs
        self.post()
        self.until_more_is_acked()

    def compile_for_this_processor(self):
        """The unit compiles in its sandbox, while rows arrive; the next start takes its kernels."""
        pid = self.pid()
        self.machine.run("systemctl", "start", "edged-compile", timeout_s=900)
        assert self.pid() == pid
        self.until_more_is_acked()

    def start_once_more(self):
        """Nothing is made a second time; kernels are those of the processor."""
        began = time.monotonic()
        pid = self.pid()
        self.machine.run("systemctl", "restart", "edged")
        self.warm_s = round(time.monotonic() - began, 1)
        assert "Python has changed" not in self.said_since(pid)
        assert self.kernels() == "ahead of time"
        self.post()
        self.until_more_is_acked()

    def come_back_after_a_boot(self):
        """The units of the upgraded Debian start with it, with job and state."""
        self.machine.__exit__()
        self.machine.__enter__()
        self.until(self.active, RESTART_S)
        assert "law" in self.jobs()
        assert self.machine.run("systemctl", "is-active", "edged-api").stdout == "active\n"

    def close(self):
        """End the producers."""
        if self.tcp is not None and self.tcp.poll() is None:
            self.tcp.kill()

    def remove_it(self):
        self.machine.run("dpkg", "--purge", "edged")
        for path in ("opt/edged", "var/lib/edged", "etc/edged", "var/cache/edged"):
            assert not (self.machine.root / path).exists(), path


STEPS = (
    Proof.install_the_package,
    Proof.run_a_job_over_the_api,
    Proof.take_rows_over_tcp_and_http,
    Proof.be_kept_where_the_package_is_not_for_the_new_python,
    Proof.upgrade_the_distribution,
    Proof.start_with_the_new_python,
    Proof.compile_for_this_processor,
    Proof.start_once_more,
    Proof.stop_and_drain,
    Proof.come_back_after_a_boot,
    Proof.remove_it,
)
FIGURES = ("restart_s", "warm_s", "rows")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("package", type=Path)
    parser.add_argument("--json", type=Path, default=Path("build/system-dist-upgrade.json"))
    options = parser.parse_args()
    BUILD.mkdir(parents=True, exist_ok=True)
    with Machine(base(BUILD, BEFORE), BUILD) as machine:
        report(options, Proof(machine, options.package, options.package), STEPS, FIGURES)


if __name__ == "__main__":
    main()
