"""Every wheel of a package, imported by interpreters of this machine.

    python -m tests.system.imports build/edged_VERSION_amd64.deb /usr/bin/python3.12 ...

Each interpreter gets the environment of its version, as the installed package gives it: no other
packages, no user's directory.  Prints distributions and modules of each.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

IMPORTS = """\
import importlib, pathlib, site, sys
site.addsitedir(sys.argv[1])
names = []
for path in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    if path.suffix == ".py" or (path / "__init__.py").exists():
        importlib.import_module(path.stem)
        names.append(path.stem)
import edged.daemon.daemon, numba, pyarrow.compute, pyarrow.csv, pyarrow.dataset, pyarrow.parquet
count = len(list(pathlib.Path(sys.argv[1]).glob("*.dist-info")))
print(f"Python {sys.version.split()[0]}: {count} distributions, {len(names)} modules")
"""


def main():
    package, *interpreters = sys.argv[1:]
    with tempfile.TemporaryDirectory(dir="build") as root:
        subprocess.run(["dpkg-deb", "-x", package, root], check=True)
        for interpreter in interpreters:
            said = subprocess.check_output([interpreter, "--version"], text=True).split()[1]
            site = Path(root) / f"opt/edged/lib/python{said.rpartition('.')[0]}/site-packages"
            words = [interpreter, "-B", "-I", "-S", "-c", IMPORTS, str(site.resolve(strict=True))]
            subprocess.run(words, check=True)


if __name__ == "__main__":
    main()
