"""Earlier releases: wheels built from commits of this repository, each in a directory of its own.

`build/releases/<commit>/site` holds the installed wheel with its compiled kernels; the packages
that it needs are those of this environment.  Building one takes two minutes of CPU time, nearly all
of it for its kernels.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
RELEASED = {1: "a80f6ba"}
"""Format of stores and landings -> the last commit that wrote it."""


def site(commit):
    """The directory with the release of `commit`; built where it is missing."""
    place = ROOT / "build" / "releases" / commit
    if not (place / "ready").exists():
        shutil.rmtree(place / "src", ignore_errors=True)
        (place / "src").mkdir(parents=True)
        archive = subprocess.run(
            ["git", "-C", ROOT, "archive", commit], capture_output=True, check=False
        )
        if archive.returncode:
            raise SystemExit(
                f"commit {commit} is not in this repository (a shallow clone?): git fetch "
                f"--unshallow\n{archive.stderr.decode()}"
            )
        subprocess.run(["tar", "x", "-C", place / "src"], input=archive.stdout, check=True)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
        subprocess.run([*pip, "wheel", "-q", "--no-deps", "-w", place, place / "src"], check=True)
        shutil.rmtree(place / "src")
        (wheel,) = place.glob("edged-*.whl")
        subprocess.run(
            [*pip, "install", "-q", "--no-deps", "--upgrade", "--target", place / "site", wheel],
            check=True,
        )
        subprocess.run(
            [sys.executable, "-m", "edged", "compile"],
            cwd=place, env={**os.environ, "PYTHONPATH": str(place / "site")}, check=True,
        )  # fmt: skip
        (place / "ready").touch()
    return place / "site"
