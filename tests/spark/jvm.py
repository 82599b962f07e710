"""JVMs for tests: fast start, little compilation, and no files outside a given directory.

    python -m tests.spark.jvm

writes build/spark.jsa, an archive of the classes that an aggregation loads (Java's dynamic class
data sharing, JEP 350): a JVM that maps it starts a Spark session for half of the CPU time.  `make
test` writes it once; without it, or with the archive of another Java or Spark, JVMs load their
classes as usual.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
ARCHIVE = ROOT / "build" / "spark.jsa"
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -Xlog:disable"


def options(directory):
    """The value of JDK_JAVA_OPTIONS; a killed JVM leaves its files in `directory`."""
    archive = f" -XX:SharedArchiveFile={ARCHIVE}" if ARCHIVE.exists() else ""
    return f"{QUICK} -Djava.io.tmpdir={directory}{archive}"


def aggregate_twice(directory):
    """Two batches and their merge: everything that Spark loads for an aggregation."""
    # imported here, since every session of pytest imports this module
    from edged.central.aggregate import AggregateOptions, aggregate
    from edged.central.spec import parse_spec
    from tests.spark.conftest import QUICK_SPARK
    from tests.spark.landings import READINGS, Landing, readings
    from tests.spark.test_aggregate import BY_KEY

    landing = Landing(directory / "landing")
    landing.register("curve", READINGS)
    spec = parse_spec({"streams": {"curve": "curve@1"}, "tables": {"by_key": BY_KEY}})
    places = {name: str(directory / name) for name in ("landing", "output", "checkpoint")}
    for seq in (1, 2):
        landing.land([readings(seq)])
        aggregate(spec, AggregateOptions(**places, master="local[2]", conf=QUICK_SPARK))
    landing.close()


def main():
    """Write the archive under another name first, because a run may be interrupted."""
    ARCHIVE.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ARCHIVE.parent) as place:
        fresh = Path(place, "spark.jsa")
        quick = f"{QUICK} -Djava.io.tmpdir={place} -XX:ArchiveClassesAtExit={fresh}"
        done = subprocess.run(
            [sys.executable, "-m", "tests.spark.jvm", place], cwd=ROOT,
            env={**os.environ, "JDK_JAVA_OPTIONS": quick}, text=True,
            stdout=subprocess.PIPE,  # open until the archive is written
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        if done.returncode:
            sys.exit(done.stdout[-4000:])
        fresh.replace(ARCHIVE)


if __name__ == "__main__":
    aggregate_twice(Path(sys.argv[1])) if sys.argv[1:] else main()
