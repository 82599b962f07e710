"""PySpark's worker daemon, started in a quarter of the time: `-m edged.central._spark_daemon`.

Spark puts `pyspark.zip` in front of its Python processes' path.  Nothing that is imported from a
zip is cached as bytecode, so each of the half dozen daemons that a streaming query starts compiles
PySpark anew (0.7 s of CPU each; 0.15 s from the installed package).  Where that zip is part of the
very package that is installed here, it is taken off the path; all else is PySpark's own daemon.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from pathlib import Path


def without_zip(path: list[str]) -> list[str]:
    """`path` without PySpark's zips, where the same PySpark is found on it unzipped."""
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
