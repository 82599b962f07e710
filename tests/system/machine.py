"""A Debian booted with systemd as its first process, in a container.

debootstrap makes it once from the distribution's packages; a tarball keeps it for the next run.
Commands run in it by nsenter(1).  Its files lie under `root`, its mounts under `seen`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

SUITE = "bookworm"
MIRROR = "http://deb.debian.org/debian"
INCLUDED = ("systemd", "systemd-sysv", "dbus", "python3", "udev", "adduser")
BOOT_S = 180
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8",
               "DEBIAN_FRONTEND": "noninteractive"}  # fmt: skip
ONLINE = ("--mount", "--uts", "--ipc", "--pid", "--cgroup")
"""Namespaces of a command that has the network of this machine."""


def base(directory, suite=SUITE):
    """The tarball of a fresh Debian, made where it is missing."""
    tarball = directory / f"{suite}.tar.zst"
    if tarball.exists():
        return tarball
    root = directory / "debootstrap"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    environ = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
    words = ["debootstrap", "--variant=minbase", f"--include={','.join(INCLUDED)}", suite]
    with (directory / "debootstrap.log").open("w") as log:
        subprocess.run([*words, root, MIRROR], check=True, stdout=log, env=environ)
    for archive in (root / "var/cache/apt/archives").glob("*.deb"):
        archive.unlink()
    (root / "etc/machine-id").unlink(missing_ok=True)
    made = tarball.with_suffix(".new")
    subprocess.run(["tar", "-C", root, "--zstd", "-cf", made, "."], check=True,
                   env={**os.environ, "ZSTD_CLEVEL": "1", "ZSTD_NBTHREADS": "2"})  # fmt: skip
    shutil.rmtree(root)
    made.rename(tarball)
    return tarball


class Machine:
    """The running container; `with Machine(tarball, directory) as machine`.

    `shared` are directories of this machine that it sees at the same path, with whether they are
    read-only; with them it has this machine's network.  Without, it has a network of its own.
    """

    def __init__(self, tarball, directory, shared=None):
        self._options = ["--private-network"] if shared is None else ["--resolv-conf=copy-host"]
        for path, read_only in (shared or {}).items():
            self._options.append(f"--bind{'-ro' if read_only else ''}={path}")
        self.root = directory / "root"
        self._log = directory / "boot.log"
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir(parents=True)
        subprocess.run(["tar", "-C", self.root, "--zstd", "-xf", tarball], check=True)

    def __enter__(self):
        words = ["systemd-nspawn", "--directory", self.root, "--boot", "--machine", "edged-system",
                 *self._options, "--register=no", "--keep-unit", "--quiet",
                 "--console=pipe"]  # fmt: skip
        with self._log.open("w") as log:
            self._nspawn = subprocess.Popen(
                list(map(str, words)), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            self._until(self._booted, BOOT_S, "systemd did not come up")
        except BaseException:
            self._nspawn.kill()
            self._nspawn.wait()
            raise
        return self

    def __exit__(self, *_):
        with contextlib.suppress(ProcessLookupError):  # SIGRTMIN+4 is `poweroff` to systemd
            os.kill(self.leader, signal.SIGRTMIN + 4)
        try:
            self._nspawn.wait(30)
        except subprocess.TimeoutExpired:
            self._nspawn.kill()
            self._nspawn.wait()

    @property
    def seen(self):
        """Its root with its mounts, such as /run and /proc."""
        return Path(f"/proc/{self.leader}/root")

    def run(self, *words, check=True, timeout_s=180, text=None, online=False):
        """Run a command in it, `online` with this machine's network; returns its standard
        output."""
        kinds = ONLINE if online else ("--all",)
        done = subprocess.run(
            ["nsenter", *kinds, "--target", str(self.leader), "--wd=/", "--", *map(str, words)],
            capture_output=True, text=True, timeout=timeout_s, input=text, env=ENVIRONMENT,
        )  # fmt: skip
        self.said = done.stdout + done.stderr
        if check and done.returncode:
            raise AssertionError(f"{' '.join(map(str, words))}: {done.returncode}\n{self.said}")
        return done

    def inside(self, words):
        """The command line that runs `words` here, in its network."""
        return ["nsenter", "--net", "--target", str(self.leader), "--", *map(str, words)]

    def show(self, unit, name):
        """A property of a unit."""
        return self.run("systemctl", "show", "--value", "-p", name, unit).stdout.strip()

    def journal(self, unit):
        """The unit's log."""
        return self.run("journalctl", "-u", unit, "--no-pager", "-o", "short-monotonic").stdout

    def _find_leader(self):
        if self._nspawn.poll() is not None:
            raise AssertionError(self._log.read_text())
        children = Path(f"/proc/{self._nspawn.pid}/task/{self._nspawn.pid}/children").read_text()
        return next(map(int, children.split()), None)

    def _booted(self):
        """The process that is systemd inside.  nspawn's first child forks it and ends."""
        self.leader = self._find_leader()
        if self.leader is None:
            return False
        done = self.run("systemctl", "is-system-running", check=False)
        return done.stdout.strip() in ("running", "degraded")

    def _until(self, found, seconds, problem):
        deadline = time.monotonic() + seconds
        while not (value := found()):
            assert time.monotonic() < deadline, f"{problem}: {self._log.read_text()}"
            time.sleep(0.05)
        return value
