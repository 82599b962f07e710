"""Builds Debian packages for one architecture, on a machine of any.

    python deploy/debian/build.py --arch arm64 --version 0.1.0+7 [--python 3.11]... [--level 12]
                                  [--target armv8-a]...

A package carries an environment for each Python from 3.10 to 3.13 under /opt/edged/lib; what is
equal in them is stored once.  The interpreter is the system's /usr/bin/python3, and its version
chooses the environment.  Kernels are compiled here for processors by name, whichever machine this
is; their code does not depend on Python's version.  Every shared object is checked: machine,
libraries, newest versions of glibc's symbols.  Two builds of one commit are the same bytes.  Writes
build/edged_VERSION_ARCH.deb and its SBOM.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import archive
import elf
import sbom
import tree
import wheels

BUILD = tree.SOURCE / "build"
OBJECT = re.compile(r"\.so(\.[\d.]+)?$")
SCRIPTS = ("preinst", "postinst", "prerm", "postrm")
LEVEL = 12
TARGETS = {"amd64": ("x86-64-v3", "x86-64-v2"), "arm64": ("armv8-a",)}
"""Processors that kernels are compiled for (`kernels.ahead.targets`)."""
SIZE_MAX = 250_000_000
"""Bytes that a package may have."""


def main() -> None:
    """Build one package for each version, from one tree."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--arch", choices=sorted(wheels.MACHINES), required=True)
    parser.add_argument("--version", action="append", required=True)
    parser.add_argument("--python", action="append", choices=wheels.PYTHONS)
    parser.add_argument("--level", type=int, default=LEVEL)
    parser.add_argument("--target", action="append", choices=[*itertools.chain(*TARGETS.values())])
    options = parser.parse_args()
    project = tree.tomllib.loads((tree.SOURCE / "pyproject.toml").read_text())["project"]
    pythons = options.python or list(wheels.PYTHONS)
    carried = {python: shelf(options.arch, python).closure(project["dependencies"])
               for python in pythons}  # fmt: skip
    root = BUILD / f"deb-{options.arch}"
    shutil.rmtree(root, ignore_errors=True)
    lay(root, carried, project, objects(options.target or TARGETS[options.arch]))
    needs = check(root, options.arch)
    for version in options.version:
        bill = sbom.document(carried, version, options.arch, time_s())
        (root / "usr/share/doc/edged/edged.cdx.json").write_text(bill)
        package = BUILD / f"edged_{version}_{options.arch}.deb"
        pack(root, package, version, options.arch, pythons, needs, options.level)
        package.with_suffix(".cdx.json").write_text(bill)
        say(f"{package.name}: {package.stat().st_size / 1e6:.1f} MB; Python {', '.join(pythons)}; "
            f"needs glibc {dotted(elf.newest(needs, 'GLIBC'))}")  # fmt: skip
        sys.stdout.write(f"{package.relative_to(tree.SOURCE)}\n")
        if package.stat().st_size > SIZE_MAX:
            raise SystemExit(f"larger than {SIZE_MAX / 1e6:.0f} MB")


def shelf(architecture: str, python: str) -> wheels.Shelf:
    """The wheels of one Python, kept in build/."""
    lock = tree.SOURCE / f"requirements/py{python.replace('.', '')}.txt"
    directory = BUILD / "wheels" / architecture / python
    return wheels.Shelf(directory, lock.read_text(), architecture, python)


def objects(targets: Iterable[str]) -> list[Path]:
    """Shared objects of the kernels for processors by name, kept in build/."""
    from edged.platform.libraries import loops
    from kernels.ahead import target_paths

    directory, found = BUILD / "objects", list[Path]()
    for target in targets:
        words = [sys.executable, "-m", "edged", "compile", "--for", target, "--output",
                 str(directory)]  # fmt: skip
        # A set's order is that of its hashes, and code's order may be a set's.
        environ = {**os.environ, "PYTHONHASHSEED": "0"}
        subprocess.run(words, check=True, cwd=tree.SOURCE, env=environ, stdout=sys.stderr)
        found += target_paths(target, loops(), directory).values()
    return found


def lay(
    root: Path, carried: sbom.Wheels, project: dict[str, Any], compiled: Iterable[Path]
) -> None:
    """Lay out environments, programs, units, configuration and documents."""
    compiled = list(compiled)
    for python, every in carried.items():
        site = root / tree.PREFIX / "lib" / f"python{python}" / "site-packages"
        site.mkdir(parents=True)
        for wheel in every:
            unpack(wheel, site)
        tree.own(site, project["version"])
        brought = site / "kernels/objects"
        brought.mkdir()
        for file in compiled:
            shutil.copyfile(file, brought / file.name)
    tree.environment(root / tree.PREFIX, project["scripts"])
    tree.system(root)
    (root / "usr/share/doc/edged/third-party-licences.txt").write_text(sbom.licences(carried))


def unpack(wheel: Path, site: Path) -> None:
    """The files of a wheel that a device runs; programs are not among them."""
    with zipfile.ZipFile(wheel) as opened:
        for name in opened.namelist():
            target = site / name
            if name.endswith("/") or tree.LEFT_OUT.search(name) or ".data/" in name:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(opened.read(name))


def check(root: Path, architecture: str) -> list[elf.Needs]:
    """What all shared objects need.  Ends the build where one would not load on a device."""
    seen: dict[bytes, elf.Needs] = {}
    faults = []
    for environment in sorted((root / tree.PREFIX / "lib").iterdir()):
        objects = [path for path in sorted(environment.rglob("*")) if OBJECT.search(path.name)]
        bundled = {path.name for path in objects}
        for path in objects:
            content = path.read_bytes()
            key = hashlib.sha256(content).digest()
            needs = seen.get(key) or seen.setdefault(key, elf.needs(content))
            faults += [f"{path.relative_to(root)}: {fault}"
                       for fault in elf.faults(needs, architecture, bundled)]  # fmt: skip
    if faults:
        raise SystemExit("\n".join(faults))
    return list(seen.values())


def pack(
    root: Path, package: Path, version: str, architecture: str, pythons: list[str],
    needs: Iterable[elf.Needs], level: int,
) -> None:  # fmt: skip
    """Write the package of a tree."""
    compressed = package.with_suffix(".data")
    with archive.Zstd(compressed, level) as target:
        size_kib = archive.data(root, target, tree.EPOCH_S, f"./{tree.PREFIX}/lib/")
    fields = {"VERSION": version, "ARCH": architecture, "SIZE": str(size_kib),
              "PYTHON": pythons[0], "NEXT": following(pythons[-1]),
              "GLIBC": dotted(elf.newest(needs, "GLIBC"))}  # fmt: skip
    files = {name: (tree.SOURCE / "deploy/debian" / name).read_text() for name in SCRIPTS}
    template = (tree.SOURCE / "deploy/debian/control.in").read_text()
    files["control"] = re.sub(r"@(\w+)@", lambda found: fields[found[1]], template)
    files["conffiles"] = "".join(f"/{name}\n" for name in configuration(root))
    with archive.Package(package, tree.EPOCH_S) as made:
        made.member("control.tar.xz", archive.control(files, SCRIPTS, tree.EPOCH_S))
        made.member("data.tar.zst", compressed)
    compressed.unlink()


def configuration(root: Path) -> Iterator[str]:
    """The files of /etc, which dpkg leaves as an administrator has changed them."""
    for path in sorted((root / "etc").rglob("*")):
        if path.is_file():
            yield str(path.relative_to(root))


def following(python: str) -> str:
    """The next minor version: 3.14 of 3.13."""
    major, minor = map(int, python.split("."))
    return f"{major}.{minor + 1}"


def dotted(numbers: Iterable[int]) -> str:
    """2.28 of (2, 28)."""
    return ".".join(map(str, numbers))


def time_s() -> int:
    """The time that a package bears: SOURCE_DATE_EPOCH, else that of the last commit."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    words = ["git", "log", "-1", "--format=%ct"]
    done = subprocess.run(words, cwd=tree.SOURCE, capture_output=True, text=True, check=False)
    return int(done.stdout.strip() or tree.EPOCH_S)


def say(text: str) -> None:
    """A line on standard error."""
    sys.stderr.write(f"edged: {text}\n")


if __name__ == "__main__":
    main()
