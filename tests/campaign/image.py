"""A file system in a file, whose power is cut by taking the file as it is.

What a program has written and not synced is in the page cache of the mounted file system, and not
in the file behind the loop device: a copy of that file is the disk after a power cut.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

IMAGE_BYTES = 512 << 20
"""Room for a store's preallocated log; the file is sparse."""
PLACE = Path("/dev/shm")
"""Images are in memory: flushes of the loop device cost nothing."""


def sudo(*command: object) -> str:
    """Run a command of root; its output.  Raises RuntimeError with what it says."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout.strip()


class Image:
    """An ext4 file system mounted at `mount`."""

    def __init__(self, name: str, mount: Path) -> None:
        self.mount = mount
        self._file = PLACE / f"edged-{name}.img"
        mount.mkdir(parents=True)
        with self._file.open("wb") as file:
            file.truncate(IMAGE_BYTES)
        sudo("/usr/sbin/mkfs.ext4", "-q", "-F", self._file)
        self._attach()

    def __enter__(self) -> Image:
        return self

    def __exit__(self, *_) -> None:
        self._detach()
        self._file.unlink()

    def _attach(self) -> None:
        self._device = sudo("/usr/sbin/losetup", "--find", "--show", self._file)
        sudo("mount", self._device, self.mount)

    def _detach(self) -> None:
        for attempt in range(100):
            try:
                sudo("umount", self.mount)
                break
            except RuntimeError:
                if attempt == 99:
                    raise
                time.sleep(0.05)
        sudo("/usr/sbin/losetup", "--detach", self._device)

    def _writes(self) -> str:
        return Path(f"/sys/block/{Path(self._device).name}/stat").read_text().split()[4]

    def copy(self) -> Path:
        """The disk as a power cut leaves it now; all writers must be stopped.

        The kernel may be writing pages back: the copy is repeated until no write came between.
        """
        taken = self._file.with_suffix(".cut")
        while True:
            before = self._writes()
            sudo("cp", "--sparse=always", self._file, taken)
            if self._writes() == before:
                return taken

    def restore(self, taken: Path) -> None:
        """Mount a copy in place of what is there; no process may use it."""
        self._detach()
        shutil.move(taken, self._file)
        self._attach()
