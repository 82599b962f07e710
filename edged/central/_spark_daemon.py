"""PySpark's worker daemon with a fast start: `-m edged.central._spark_daemon`.

Spark puts `pyspark.zip` first on the path of its Python processes.  Modules imported from a zip
have no cached bytecode, so each of the half dozen daemons of a streaming query compiles PySpark
again (0.7 s of CPU each; 0.15 s from the installed package).  If the zip belongs to the PySpark
that is installed here, it is removed from the path; the rest is PySpark's own daemon.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from pathlib import Path


def without_zip(path: list[str]) -> list[str]:
    """`path` without PySpark's zips, if the same PySpark is installed unzipped."""
    zips = [p for p in path if p.endswith(".zip") and Path(p).parent.name == "lib"]
    rest = [p for p in path if p not in zips]
    found = PathFinder.find_spec("pyspark", rest)
    needed = found is not None and PathFinder.find_spec("py4j", rest) is not None
    if not needed or found is None or found.origin is None:
        return path
    home = Path(found.origin).resolve().parent
    ours = [p for p in zips if home in Path(p).resolve().parents]
    return [p for p in path if p not in ours]


def main() -> None:
    """Run PySpark's daemon; returns when Spark closes its standard input."""
    sys.path[:] = without_zip(sys.path)
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
