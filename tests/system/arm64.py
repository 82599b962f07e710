"""`make system-arm64`: the arm64 package in a Debian of that architecture, run by qemu-user.

    python -m tests.system.arm64 PACKAGE NEWER [--native] [--json build/system-arm64.json]

No kernel is emulated: programs run in a chroot of this machine, and there is no systemd.
The units' commands are started as they start them, by the same user.  It installs, looks with
`edged doctor`, takes rows over TCP into the landing of a collector, kills the daemon, upgrades,
stops, removes and purges; the landing must hold each row once.  Not part of CI.  With `--native`
the packages are those of this machine's architecture, and nothing is emulated.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

from tests.system import machine
from tests.system.booted import CONFIG, JOB
from tests.system.booted_service import BUILD
from tests.system.foreground import DOOR, STOP, WAIT_S, Foreground, report
from tests.system.imports import IMPORTS
from tests.system.machine import INCLUDED, MIRROR, SUITE

FORMAT = Path("/usr/lib/binfmt.d/qemu-aarch64.conf")
REGISTERED = Path("/proc/sys/fs/binfmt_misc")
CPU = "cortex-a57"
"""What qemu shows: the core of the Jetson Nano and TX2."""
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "QEMU_CPU": CPU,
               "DEBIAN_FRONTEND": "noninteractive"}  # fmt: skip
SERVICE = {"HOME": "/var/lib/edged", "NUMBA_CACHE_DIR": "/var/cache/edged/numba",
           "EDGED_CACHE": "/var/cache/edged/expr", "EDGED_RUN__DOOR": DOOR,
           "EDGED_RUN__FILES": "/var/lib/edged/files"}  # fmt: skip
"""As in edged.service."""
INSTALL_S = 7200


def register():
    """Make the kernel run programs of AArch64 by qemu, from any root (flag F)."""
    if not (REGISTERED / "status").exists():
        subprocess.run(["mount", "-t", "binfmt_misc", "none", REGISTERED], check=True)
    if not (REGISTERED / "qemu-aarch64").exists():
        (REGISTERED / "register").write_text(FORMAT.read_text().strip())


def base(directory, suite):
    """The tarball of a fresh Debian for arm64, made where it is missing."""
    tarball = directory / f"{suite}-arm64.tar.zst"
    if tarball.exists():
        return tarball
    root = directory / "debootstrap-arm64"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    words = ["debootstrap", "--foreign", "--arch=arm64", "--variant=minbase",
             f"--include={','.join(INCLUDED)}", suite, root, MIRROR]  # fmt: skip
    with (directory / "debootstrap-arm64.log").open("w") as log:
        environ = {**os.environ, **ENVIRONMENT}
        subprocess.run(words, check=True, stdout=log, env=environ)
        subprocess.run(["chroot", root, "/debootstrap/debootstrap", "--second-stage"],
                       check=True, stdout=log, env=environ)  # fmt: skip
    for archive in (root / "var/cache/apt/archives").glob("*.deb"):
        archive.unlink()
    made = tarball.with_suffix(".new")
    subprocess.run(["tar", "-C", root, "--zstd", "-cf", made, "."], check=True)
    shutil.rmtree(root)
    made.rename(tarball)
    return tarball


class Root:
    """A root directory whose programs run in a chroot; `with Root(tarball, directory) as root`."""

    def __init__(self, tarball, directory):
        self.root = directory / "root-arm64"
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir(parents=True)
        subprocess.run(["tar", "-C", self.root, "--zstd", "-xf", tarball], check=True)

    def __enter__(self):
        for kind in "proc", "sys", "dev":
            subprocess.run(["mount", "--rbind", f"/{kind}", self.root / kind], check=True)
            subprocess.run(["mount", "--make-rslave", self.root / kind], check=True)
        return self

    def __exit__(self, *_):
        for kind in "proc", "sys", "dev":
            subprocess.run(["umount", "--recursive", "--lazy", self.root / kind], check=False)

    def run(self, *words, check=True, timeout_s=WAIT_S):
        """Run a command in it; returns its standard output."""
        done = subprocess.run(["chroot", self.root, *map(str, words)], capture_output=True,
                              text=True, timeout=timeout_s, env=ENVIRONMENT)  # fmt: skip
        self.said = done.stdout + done.stderr
        if check and done.returncode:
            raise AssertionError(f"{' '.join(map(str, words))}: {done.returncode}\n{self.said}")
        return done

    def journal(self, name):
        """What a service has written."""
        return (BUILD / f"{name}-arm64.log").read_text()


class Proof(Foreground):
    """The steps, in order."""

    def __init__(self, root, package, newer):
        super().__init__(root)
        self.package, self.newer = package, newer
        self.services = {}

    def start(self, name, user, *words):
        """Start a service as its user; it has a log of its own."""
        command = ["chroot", self.machine.root, "setpriv", f"--reuid={user}", f"--regid={user}",
                   "--init-groups", *words]  # fmt: skip
        with (BUILD / f"{name}-arm64.log").open("a") as log:
            self.services[name] = subprocess.Popen(
                list(map(str, command)), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**ENVIRONMENT, **SERVICE},
            )  # fmt: skip

    def install_the_package(self):
        """Nothing is downloaded, and no kernel is compiled."""
        self.put("etc/edged/edged.toml.d/50-system.toml", CONFIG)
        self.put("etc/edged/jobs.d/law.toml", json.dumps(JOB))
        self.machine.run("dpkg", "-i", self.carry(self.package), timeout_s=INSTALL_S)
        assert "kernels are ready: ahead of time for " in self.machine.said

    def import_every_wheel(self):
        """The top-level modules of every distribution, in the system's Python."""
        python = "/opt/edged/bin/python3"
        where = "import sysconfig; print(sysconfig.get_path('purelib'), end='')"
        site = self.machine.run(python, "-c", where).stdout
        self.architecture = self.machine.run("uname", "-m").stdout.strip()
        self.imported = self.machine.run(python, "-c", IMPORTS, site).stdout.strip()

    def look_with_doctor(self):
        found = json.loads(self.machine.run("edged", "doctor", "--json", check=False).stdout)
        failures = [f for f in found["findings"] if f["state"] == "failure"]
        assert failures == [], failures

    def take_rows_over_tcp(self):
        for path, user in ("run/edged/daemon", "edged"), ("run/edged", "root"):
            (self.machine.root / path).mkdir(parents=True, exist_ok=True)
            self.machine.run("chown", user, f"/{path}")
        super().take_rows_over_tcp()

    def kill_the_daemon(self):
        self.services["edged"].send_signal(signal.SIGKILL)

    def ask_to_stop(self):
        self.machine.run(*STOP)

    def upgrade_in_place(self):
        """The daemon goes on until it is started again, then with its state."""
        self.machine.run("dpkg", "-i", self.carry(self.newer), timeout_s=INSTALL_S)
        self.stop_the_daemon()
        self.start_the_daemon()
        self.until_more_are_acked()

    def stop_the_daemon(self):
        self.services["edged"].terminate()
        assert self.services["edged"].wait(WAIT_S) == 0, self.machine.journal("edged")[-2000:]

    def remove_and_purge_it(self):
        self.machine.run("dpkg", "--remove", "edged")
        assert not (self.machine.root / "opt/edged").exists()
        assert (self.machine.root / "var/lib/edged").exists()
        self.machine.run("dpkg", "--purge", "edged")
        for path in ("var/lib/edged", "etc/edged", "var/cache/edged"):
            assert not (self.machine.root / path).exists(), path


STEPS = (
    Proof.install_the_package,
    Proof.import_every_wheel,
    Proof.look_with_doctor,
    Proof.take_rows_over_tcp,
    Proof.come_back_from_a_kill,
    Proof.upgrade_in_place,
    Proof.stop_and_drain,
    Proof.remove_and_purge_it,
)
FIGURES = ("architecture", "imported", "rows")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("package", type=Path)
    parser.add_argument("newer", type=Path)
    parser.add_argument("--suite", default=SUITE)
    parser.add_argument("--native", action="store_true", help="this machine's architecture")
    parser.add_argument("--json", type=Path, default=Path("build/system-arm64.json"))
    options = parser.parse_args()
    BUILD.mkdir(parents=True, exist_ok=True)
    if options.native:
        tarball = machine.base(BUILD, options.suite)
    else:
        register()
        tarball = base(BUILD, options.suite)
    with Root(tarball, BUILD) as root:
        report(options, Proof(root, options.package, options.newer), STEPS, FIGURES)


if __name__ == "__main__":
    main()
