"""Aggregation on a standalone cluster: PySpark's own jars, a master and two workers."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pyspark
import pytest

from edged.central.tables import read
from tests.spark.conftest import QUICK_SPARK
from tests.spark.landings import readings
from tests.spark.test_cli import SPEC, edged

DEPLOY = "org.apache.spark.deploy"
JARS = Path(pyspark.__file__).parent / "jars"
SCALA = re.search(r"spark-core_([\d.]+)-", next(JARS.glob("spark-core_*")).name)[1]
DEADLINE_S = 120


class Cluster:
    """A master and two workers of one core each, on loopback."""

    def __init__(self, directory):
        self.directory, self.processes = directory, []

    def start(self, kind, *arguments):
        log = self.directory / f"{kind}{len(self.processes)}.log"
        command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-cp", f"{JARS}/*",
                   f"{DEPLOY}.{kind.lower()}.{kind}", "--host", "127.0.0.1", "--port", "0",
                   "--webui-port", "0", *arguments]  # fmt: skip
        environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(JARS.parent),
                       "SPARK_SCALA_VERSION": SCALA}  # fmt: skip
        with log.open("wb") as out:
            self.processes.append(
                subprocess.Popen(
                    command, cwd=self.directory, env=environment, stdout=out, stderr=out
                )
            )
        return log

    def close(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(DEADLINE_S)


def awaited(log, pattern):
    until = time.monotonic() + DEADLINE_S
    while not (found := re.search(pattern, log.read_text())):
        assert time.monotonic() < until, log.read_text()[-2000:]
        time.sleep(0.1)
    return found[0]


@pytest.fixture
def cluster(tmp_path):
    made = Cluster(tmp_path)
    try:
        master = made.start("Master")
        url = awaited(master, r"spark://127\.0\.0\.1:\d+")
        workers = [
            made.start("Worker", "--cores", "1", "--memory", "600m",
                       "--work-dir", str(tmp_path / f"work{n}"), url)
            for n in range(2)
        ]  # fmt: skip
        for worker in workers:
            awaited(worker, "Successfully registered with master")
        yield url, tmp_path
    finally:
        made.close()


def test_aggregate_runs_on_a_standalone_cluster_of_two_workers(cluster, landing, request):
    url, root = cluster
    landing.land([readings(n) for n in range(1, 5)])
    (root / "spec.toml").write_text(SPEC)
    conf = {**QUICK_SPARK, "spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m",
            "spark.sql.shuffle.partitions": "2"}  # fmt: skip
    arguments = [
        "aggregate", root / "spec.toml", "--landing", landing.path, "--output", root / "out",
        "--checkpoint", root / "check", "--master", url, "--json",
        *(word for k, v in conf.items() for word in ("--conf", f"{k}={v}")),
    ]  # fmt: skip
    done = edged(request.config.rootpath, *arguments, PYSPARK_PYTHON=sys.executable)
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout.splitlines()[-1])["rows"] == {"total": 4000}
    assert sum(r["n"] for r in read(root / "out" / "total").to_pylist()) == 4000
    executors = sorted(p.parent.parent.name for p in root.glob("work*/app-*/*"))
    assert executors == ["work0", "work1"]


def test_a_cluster_without_a_python_for_its_executors_is_refused_with_what_to_set(
    request, tmp_path
):
    (tmp_path / "spec.toml").write_text(SPEC)
    done = edged(
        request.config.rootpath, "aggregate", tmp_path / "spec.toml", "--landing", tmp_path / "l",
        "--output", tmp_path / "o", "--checkpoint", tmp_path / "c", "--master", "spark://h:7077",
        PYSPARK_PYTHON="",
    )  # fmt: skip
    assert done.returncode == 78
    assert "--master spark://h:7077" in done.stderr and "set PYSPARK_PYTHON" in done.stderr
    assert "Traceback" not in done.stderr
