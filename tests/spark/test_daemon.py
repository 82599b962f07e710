"""PySpark's worker daemon without PySpark's zip, only if the same package is installed unzipped."""

import subprocess
import sys
from pathlib import Path

import pyspark

from edged.central._spark_daemon import without_zip

HOME = Path(pyspark.__file__).parent
ZIPS = sorted(str(p) for p in (HOME / "python" / "lib").glob("*.zip"))
SITE = str(HOME.parent)


def test_the_zips_of_the_installed_pyspark_are_taken_off_the_path():
    assert len(ZIPS) == 2
    assert without_zip(["", *ZIPS, "/task.zip", SITE]) == ["", "/task.zip", SITE]


def test_the_zips_stay_where_pyspark_is_not_installed_or_another_one_is(tmp_path):
    assert without_zip([*ZIPS, str(tmp_path)]) == [*ZIPS, str(tmp_path)]
    for package in ("pyspark", "py4j"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    assert without_zip([*ZIPS, str(tmp_path)]) == [*ZIPS, str(tmp_path)]


def test_workers_import_the_installed_pyspark_and_not_its_zip(spark):
    def where(_):
        import pyspark

        return [pyspark.__file__]

    assert spark.sparkContext.parallelize([1], 1).mapPartitions(where).collect() == [
        pyspark.__file__
    ]


def test_the_daemon_ends_when_spark_does():
    command = [sys.executable, "-m", "edged.central._spark_daemon", "pyspark.worker"]
    environment = {"PYTHON_WORKER_FACTORY_SECRET": "x", "PATH": ""}
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True,
                          env=environment, timeout=120)  # fmt: skip
    assert len(done.stdout) == 4, done.stderr  # the port that it listened on
