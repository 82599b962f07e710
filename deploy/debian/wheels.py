"""Wheels of another machine: resolved from the lock files by architecture and version of Python.

No interpreter of that kind is needed: environment markers are evaluated for it, and pip downloads
by tags.  Wheels are kept in build/wheels/ARCH/X.Y for the next build.
"""

from __future__ import annotations

import email
import email.message
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
"""The kernel's name of an architecture by Debian's."""
GLIBC_MINOR = 35
"""glibc 2.35: Ubuntu 22.04, JetPack 6."""


class Unresolved(Exception):
    """A requirement without a version in the lock file."""


def environment(architecture: str, python: str) -> dict[str, str]:
    """The values of environment markers (PEP 508) on such a machine."""
    return {
        "implementation_name": "cpython", "implementation_version": f"{python}.0",
        "os_name": "posix", "platform_machine": MACHINES[architecture],
        "platform_python_implementation": "CPython", "platform_release": "",
        "platform_system": "Linux", "platform_version": "", "python_full_version": f"{python}.0",
        "python_version": python, "sys_platform": "linux", "extra": "",
    }  # fmt: skip


def platforms(architecture: str) -> list[str]:
    """Tags of platforms whose wheels need no newer glibc than 2.35, the newest first."""
    machine = MACHINES[architecture]
    names = [f"manylinux_2_{minor}" for minor in range(GLIBC_MINOR, 16, -1)] + ["manylinux2014"]
    if architecture == "amd64":  # older tags than the architecture do not exist for others
        names += ["manylinux_2_12", "manylinux2010", "manylinux_2_5", "manylinux1"]
    return [f"{name}_{machine}" for name in names]


def locked(lock: str, markers: dict[str, str]) -> dict[str, Version]:
    """The version of each distribution that a lock file names for an environment."""
    found = {}
    for line in lock.splitlines():
        wanted = Requirement(line)
        if wanted.marker is None or wanted.marker.evaluate(markers):
            (pin,) = wanted.specifier
            found[canonicalize_name(wanted.name)] = Version(pin.version)
    return found


def metadata(wheel: Path) -> email.message.Message:
    """The wheel's core metadata."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", n))
        return email.message_from_bytes(archive.read(name))


class Shelf:
    """The wheels of one architecture and version of Python in a directory."""

    def __init__(self, directory: Path, lock: str, architecture: str, python: str) -> None:
        self._directory, self._architecture, self._python = directory, architecture, python
        self._markers = environment(architecture, python)
        self._versions = locked(lock, self._markers)
        directory.mkdir(parents=True, exist_ok=True)

    def closure(self, asked: Iterable[str]) -> list[Path]:
        """The wheels of the requirements and of those that they require, sorted by name."""
        found: dict[str, Path] = {}
        seen: set[tuple[str, str]] = set()
        waiting = [(Requirement(text), "") for text in asked]
        while waiting:
            wanted = list(self._wanted(waiting, seen))
            have = self.fetch({name for name, _ in wanted if name not in found})
            found |= have
            waiting = [
                (Requirement(text), extra)
                for name, extra in wanted
                for text in metadata(found[name]).get_all("Requires-Dist") or ()
            ]
        return [found[name] for name in sorted(found)]

    def _wanted(
        self, waiting: list[tuple[Requirement, str]], seen: set[tuple[str, str]]
    ) -> Iterator[tuple[str, str]]:
        """(name, extra) of the requirements that apply here and were not met before."""
        for requirement, extra in waiting:
            marker = requirement.marker
            if marker is not None and not marker.evaluate({**self._markers, "extra": extra}):
                continue
            name = canonicalize_name(requirement.name)
            for key in ((name, of) for of in ("", *sorted(requirement.extras))):
                if key not in seen:
                    seen.add(key)
                    yield key

    def fetch(self, names: set[str]) -> dict[str, Path]:
        """The wheels of distributions, downloaded where they are missing."""
        if unknown := names - self._versions.keys():
            raise Unresolved(f"not in the lock file of Python {self._python}: {sorted(unknown)}")
        missing = sorted(names - self._kept().keys())
        if missing:
            self._download([f"{name}=={self._versions[name]}" for name in missing])
        kept = self._kept()
        return {name: kept[name] for name in names}

    def _kept(self) -> dict[str, Path]:
        kept = {}
        for wheel in sorted(self._directory.glob("*.whl")):
            name, version, _, _ = parse_wheel_filename(wheel.name)
            if self._versions.get(name) == version:
                kept[name] = wheel
        return kept

    def _download(self, pins: list[str]) -> None:
        tags = [f"--platform={tag}" for tag in platforms(self._architecture)]
        words = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
                 "--no-deps", "--only-binary=:all:", f"--python-version={self._python}",
                 "--implementation=cp", *tags, "-d", str(self._directory), *pins]  # fmt: skip
        subprocess.run(words, check=True)
