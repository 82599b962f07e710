"""`make system-image`: the container image, run by podman: a job over TCP into a landing.

    python -m tests.system.image ARCHIVE [--json build/system-image.json]

Two containers of one image run on this machine's network: the collector and the daemon, each with a
named volume.  The daemon's container is killed, another continues with its volume, and after a
drain the landing must hold each row once.
"""

import argparse
import json
import shutil
import subprocess
from pathlib import Path

from tests.system.booted import CONFIG, JOB
from tests.system.booted_service import BUILD
from tests.system.foreground import STOP, Foreground, report

PREFIX = "edged-proof"
VOLUMES = {"edged": "/var/lib/edged", "edged-collector": "/var/lib/edged-collector"}


def podman(*words, check=True):
    """Run podman; returns its standard output."""
    done = subprocess.run(["podman", *map(str, words)], capture_output=True, text=True)
    if check and done.returncode:
        raise AssertionError(f"podman {' '.join(map(str, words))}: {done.stderr}")
    return done.stdout.strip()


class Volumes:
    """The named volumes of both containers, seen as the root of one machine."""

    def __init__(self, directory):
        self.root = directory / "image-root"
        shutil.rmtree(self.root, ignore_errors=True)
        for name, path in VOLUMES.items():
            podman("volume", "rm", "--force", f"{PREFIX}-{name}")
            podman("volume", "create", f"{PREFIX}-{name}")
            target = self.root / path[1:]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(podman("volume", "inspect", "-f", "{{.Mountpoint}}",
                                     f"{PREFIX}-{name}"))  # fmt: skip

    def journal(self, name):
        """What a container has written."""
        return (BUILD / f"{name}-image.log").read_text()

    def remove(self):
        for name in VOLUMES:
            podman("volume", "rm", "--force", f"{PREFIX}-{name}")


class Proof(Foreground):
    """The steps, in order."""

    def __init__(self, machine, archive):
        super().__init__(machine)
        self.archive, self.services, self.image = archive, {}, None

    def load_the_image(self):
        self.image = podman("load", "--quiet", "--input", self.archive).split()[-1]
        self.image_mb = int(podman("image", "inspect", "-f", "{{.Size}}", self.image)) // 10**6

    def look_with_doctor(self):
        """The image's user runs it; nothing is a failure."""
        said = podman("run", "--rm", self.image, "edged", "doctor", "--json", check=False)
        failures = [f for f in json.loads(said)["findings"] if f["state"] == "failure"]
        assert failures == [], failures

    def start(self, name, user, *words):
        """Run a container with its volume and the job; it ends with its command."""
        self.put("etc/edged/edged.toml.d/50-system.toml", CONFIG)
        self.put("etc/edged/jobs.d/law.toml", json.dumps(JOB))
        mounts = [f"--volume={PREFIX}-{name}:{VOLUMES[name]}"]
        for directory in "edged.toml.d", "jobs.d":
            place = f"etc/edged/{directory}"
            mounts.append(f"--volume={(self.machine.root / place).resolve()}:/{place}:ro")
        with (BUILD / f"{name}-image.log").open("a") as log:
            self.services[name] = subprocess.Popen(
                ["podman", "run", "--rm", "--name", f"{PREFIX}-{name}", "--network=host",
                 f"--user={user}", *mounts, self.image, *words],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def kill_the_daemon(self):
        podman("kill", "--signal=KILL", f"{PREFIX}-edged")

    def ask_to_stop(self):
        podman("exec", f"{PREFIX}-edged", *STOP)

    def close(self):
        """End what still runs, and remove it."""
        super().close()
        for name in VOLUMES:
            podman("rm", "--force", "--ignore", f"{PREFIX}-{name}")
        self.machine.remove()
        if self.image:
            podman("image", "rm", "--force", self.image)


STEPS = (
    Proof.load_the_image,
    Proof.look_with_doctor,
    Proof.take_rows_over_tcp,
    Proof.come_back_from_a_kill,
    Proof.stop_and_drain,
)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("archive", type=Path)
    parser.add_argument("--json", type=Path, default=Path("build/system-image.json"))
    options = parser.parse_args()
    BUILD.mkdir(parents=True, exist_ok=True)
    report(options, Proof(Volumes(BUILD), options.archive), STEPS, ("image_mb", "rows"))


if __name__ == "__main__":
    main()
