"""An encrypted directory by the kernel (fscrypt) in a file of ext4, mounted in a machine.

The ioctls are those of linux/fscrypt.h; the command `fscrypt` of SECURITY.md makes the same calls.
"""

import contextlib
import fcntl
import os
import struct
import subprocess
from pathlib import Path

ADD_KEY, REMOVE_KEY, SET_POLICY = 0xC0506617, 0xC0406618, 0x800C6613
IDENTIFIER = 2
"""Kind of a key's specifier: a digest of the key, which the kernel computes."""
AES_256_XTS, AES_256_CTS, PAD_32 = 1, 4, 3
KEY_BYTES = 64
SIZE_BYTES = 512 << 20


class Impossible(Exception):
    """The kernel or a program refuses: there is no encryption here."""


class Encrypted:
    """A file system with one encrypted directory; `with Encrypted(machine, at, image) as made`.

    `at` is the mount point in the machine; the directory is `at/store`.
    """

    def __init__(self, machine, at, image):
        self._machine, self._at, self.image = machine, at, Path(image)
        self._undo = contextlib.ExitStack()

    @property
    def directory(self):
        """The encrypted directory, as seen from here."""
        return self._machine.seen / self._at[1:] / "store"

    def __enter__(self):
        with contextlib.ExitStack() as undo:
            try:
                self._make(undo)
            except (OSError, subprocess.CalledProcessError, AssertionError) as problem:
                raise Impossible(getattr(problem, "stderr", None) or str(problem)) from problem
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_):
        self._undo.close()

    def _make(self, undo):
        with self.image.open("wb") as file:
            file.truncate(SIZE_BYTES)
        undo.callback(self.image.unlink)
        _run("mkfs.ext4", "-q", "-O", "encrypt", self.image)
        loop = _run("losetup", "--find", "--show", self.image)
        undo.callback(_run, "losetup", "--detach", loop)
        number = os.minor(Path(loop).stat().st_rdev)
        self._machine.run("mknod", "/dev/edged-store", "b", "7", number)
        self._machine.run("mkdir", "-p", self._at)
        self._machine.run("mount", "/dev/edged-store", self._at)
        undo.callback(self._machine.run, "umount", self._at)
        self._identifier = self._add_key()
        self.directory.mkdir()
        policy = struct.pack("<BBBB4x16s", 2, AES_256_XTS, AES_256_CTS, PAD_32, self._identifier)
        self._ioctl(self.directory, SET_POLICY, policy)

    def _add_key(self):
        request = bytearray(struct.pack("<II32xI36x", IDENTIFIER, 0, KEY_BYTES))
        request += os.urandom(KEY_BYTES)
        return bytes(self._ioctl(self.directory.parent, ADD_KEY, request)[8:24])

    def lock(self):
        """Take the key away: what no process has open is ciphertext from now on."""
        request = struct.pack("<II16s40x", IDENTIFIER, 0, self._identifier)
        self._ioctl(self.directory.parent, REMOVE_KEY, bytearray(request))

    def holds(self, text):
        """Whether the disk below has these bytes."""
        os.sync()
        return text in self.image.read_bytes()

    @staticmethod
    def _ioctl(path, request, argument):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            made = bytearray(argument)
            fcntl.ioctl(descriptor, request, made, True)
            return made
        finally:
            os.close(descriptor)


def _run(*words):
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=True,
                          env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})  # fmt: skip
    return done.stdout.strip()
