"""Lays out an installation: its own Python environment under /opt/edged, units, configuration.

    python deploy/debian/tree.py ROOT

So `make install` has it: from the environment that runs this script.  The files of pyproject.toml's
dependencies and of theirs, as installed from the lock file, are linked rather than copied, and
nothing is downloaded.  Packages are laid out from wheels by build.py, which shares the rest.
Benches, the demo and fits of board profiles stay out.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from packaging.requirements import Requirement

SOURCE = Path(__file__).resolve().parents[2]
PREFIX = Path("opt/edged")
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
PACKAGES = ("edged", "kernels", "governors", "api")
LEFT_OUT = re.compile(
    r"(^|/)(tests?|include|src)/|\.(pyx|pxd|hpp|h|a|lib|nbi|nbc|whl)$|(^|/)__pycache__/"
    # Flight, and file systems of clouds
    r"|pyarrow/(_(flight|s3fs|gcsfs|azurefs|hdfs|pyarrow_cpp_tests)\.|libarrow(_python)?_(flight|s3)\.)"
    # threads that need libgomp and libtbb; kernels have edged's
    r"|numba/np/ufunc/(omp|tbb)pool\."
)
"""Files of dependencies that no device runs."""
BENCHES = re.compile(r"edged/(bench|demo)/|edged/cli/(bench|demo)\.py$|governors/fit_nano\.py$")
"""Files of edged that no device runs."""
UNITS = SOURCE / "deploy" / "systemd"
DOCUMENTS = ("README.md", "CHANGELOG.md")
EPOCH_S = 946_684_800
"""2000-01-01, the time of all files, so that equal sources give equal packages."""


def main(root: Path) -> None:
    """Lay everything out below `root`, which must not exist yet."""
    project = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]
    site = root / PREFIX / "lib" / PYTHON / "site-packages"
    site.mkdir(parents=True)
    for distribution in closure(project["dependencies"]):
        link(distribution, site)
    own(site, project["version"])
    environment(root / PREFIX, project["scripts"])
    system(root)


def closure(asked: Iterable[str]) -> Iterator[Distribution]:
    """The required distributions and those that they require, as installed here, each once."""
    seen: set[tuple[str, str]] = set()
    waiting = [(Requirement(text), "") for text in asked]
    while waiting:
        wanted, extra = waiting.pop()
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": extra}):
            continue
        distribution = importlib.metadata.distribution(wanted.name)
        name = distribution.metadata["Name"].lower()
        if not any(name == other for other, _ in seen):
            yield distribution
        for of in ("", *wanted.extras):
            if (name, of) not in seen:
                seen.add((name, of))
                waiting += [(Requirement(text), of) for text in distribution.requires or ()]


def link(distribution: Distribution, site: Path) -> None:
    """Link the files of a distribution, without its programs and what no device runs."""
    for file in distribution.files or ():
        source = Path(str(distribution.locate_file(file)))
        if str(file).startswith("..") or LEFT_OUT.search(str(file)) or not source.is_file():
            continue
        target = site / file
        target.parent.mkdir(parents=True, exist_ok=True)
        _link(source, target)


def own(site: Path, version: str) -> None:
    """Copy edged's packages, and write the metadata that pip would."""
    for name in own_files():
        target = site / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(SOURCE / name, target)
        os.utime(target, (EPOCH_S, EPOCH_S))
    metadata = site / f"edged-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: edged\nVersion: {version}\n")


def own_files() -> list[str]:
    """The files of edged's packages that a device runs, relative to the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", *PACKAGES], cwd=SOURCE, capture_output=True, check=False
    )
    names = [n for n in listed.stdout.decode().split("\0") if n and (SOURCE / n).is_file()]
    if not names:  # an unpacked archive has no git
        names = [str(p.relative_to(SOURCE)) for package in PACKAGES
                 for p in (SOURCE / package).rglob("*")
                 if p.is_file() and "__pycache__" not in p.parts]  # fmt: skip
    return [name for name in names if not BENCHES.match(name)]


def environment(prefix: Path, scripts: dict[str, str]) -> None:
    """Write what makes a directory a virtual environment, and edged's programs."""
    programs = prefix / "bin"
    programs.mkdir()
    (prefix / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    (programs / "python3").symlink_to("/usr/bin/python3")
    for name, entry in scripts.items():
        module, function = entry.split(":")
        program = programs / name
        program.write_text(
            f"#!/opt/edged/bin/python3\nimport sys\n\nfrom {module} import {function}\n\n"
            f"sys.exit({function}())\n"
        )
        program.chmod(0o755)
    _copy(SOURCE / "deploy/debian/prepare", prefix / "libexec/prepare")
    (prefix / "libexec/prepare").chmod(0o755)


def system(root: Path) -> None:
    """Copy units, users, directories, rules, configuration and documentation."""
    units = root / "usr/lib/systemd/system"
    for unit in (p for kind in ("service", "socket", "timer") for p in UNITS.glob(f"*.{kind}")):
        _copy(unit, units / unit.name)
    _copy(UNITS / "sysusers.conf", root / "usr/lib/sysusers.d/edged.conf")
    _copy(UNITS / "tmpfiles.conf", root / "usr/lib/tmpfiles.d/edged.conf")
    _copy(UNITS / "udev.rules", root / "usr/lib/udev/rules.d/70-edged.rules")
    _copy(SOURCE / "deploy/edged.toml", root / "etc/edged/edged.toml")
    for directory in ("edged.toml.d", "jobs.d"):
        (root / "etc/edged" / directory).mkdir()
    documents = root / "usr/share/doc/edged"
    for name in DOCUMENTS:
        _copy(SOURCE / name, documents / name)
    for page in (SOURCE / "docs").rglob("*.md"):
        _copy(page, documents / page.relative_to(SOURCE))
    for file in ("prometheus/*.yml", "grafana/dashboards/*.json", "grafana/provisioning/*/*.yml"):
        for source in (SOURCE / "deploy").glob(file):
            _copy(source, documents / source.relative_to(SOURCE / "deploy"))
    _copy(UNITS / "gpu.conf", documents / "gpu.conf")
    _copy(SOURCE / "LICENSE", documents / "copyright")
    _copy(SOURCE / "SECURITY.md", documents / "SECURITY.md")
    program = root / "usr/bin/edged"
    program.parent.mkdir(parents=True)
    program.symlink_to(f"/{PREFIX}/bin/edged")


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o644)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or files of another user
        shutil.copy2(source, target)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
