"""The commands: their output, and their exit when something is missing."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from edged.bench.spark import Options, measure, write_rows
from edged.central.session import check_java, install_command
from edged.central.tables import read
from edged.errors import CentralError
from tests.spark.conftest import QUICK_SPARK
from tests.spark.landings import readings

SPEC = """
[streams]
curve = "curve"
[tables.total]
from = "curve"
sql = "SELECT key, count(*) AS n FROM curve GROUP BY key"
keys = ["key"]
merge = { n = "count" }
"""


def edged(root, *arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "edged", "central", *map(str, arguments)],
        cwd=root,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def places(landing, tmp_path):
    spec = tmp_path / "spec.toml"
    spec.write_text(SPEC)
    conf = [word for k, v in QUICK_SPARK.items() for word in ("--conf", f"{k}={v}")]
    return [spec, "--landing", landing.path, "--output", tmp_path / "out",
            "--checkpoint", tmp_path / "check", "--master", "local[2]", *conf]  # fmt: skip


def test_aggregate_runs_to_the_end_of_the_landing_and_tells_each_batch(
    landing, places, tmp_path, request
):
    landing.land([readings(1), readings(2)])
    done = edged(request.config.rootpath, "aggregate", *places, "--json")
    assert done.returncode == 0, done.stderr
    batch, end = map(json.loads, done.stdout.splitlines())
    assert (batch["event"], batch["table"], batch["rows"]) == ("batch", "total", 2000)
    assert (end["event"], end["rows"]) == ("end", {"total": 2000})
    assert sum(r["n"] for r in read(tmp_path / "out" / "total").to_pylist()) == 2000


def test_aggregate_refuses_a_bad_spec_before_it_starts_java(places, tmp_path, request):
    Path(places[0]).write_text(SPEC.replace('"count"', '"average"'))
    done = edged(request.config.rootpath, "aggregate", *places, PATH="")
    assert done.returncode == 65
    assert "tables.total.merge.n: 'average' is not a merge" in done.stderr


def test_aggregate_without_java_names_the_command_that_installs_it(places, request):
    done = edged(request.config.rootpath, "aggregate", *places, PATH="", JAVA_HOME="")
    assert done.returncode == 75
    assert "Spark needs Java 17 or newer; there is none on the PATH" in done.stderr
    assert "install it with" in done.stderr and "Traceback" not in done.stderr


def test_an_old_java_is_named(tmp_path, monkeypatch):
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(CentralError, match=r'openjdk version "11\.0\.2".*install it with'):
        check_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no"))
    with pytest.raises(CentralError, match="none in JAVA_HOME="):
        check_java()
    assert install_command()


@pytest.mark.parametrize("version", [17, 21])
def test_the_java_of_this_debian_is_named(tmp_path, monkeypatch, version):
    line = f"openjdk-{version}-jre-headless | {version}.0.13+9-1 | http://deb.debian.org trixie"
    for name, text in (("apt-get", ""), ("apt-cache", f"echo '{line}'\n")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert install_command().endswith(f"apt-get install -y openjdk-{version}-jre-headless")


def test_package_writes_the_zip(tmp_path, request):
    done = edged(request.config.rootpath, "package", tmp_path / "edged.zip")
    assert done.returncode == 0, done.stderr
    assert "edged/pages/read.py" in zipfile.ZipFile(tmp_path / "edged.zip").namelist()


def test_the_benchmark_reads_the_same_rows_from_pages_and_from_parquet(spark, tmp_path):
    options = Options(rows=50_000, runs=1, page_bytes=64 << 10)
    write_rows(options, tmp_path / "landing", tmp_path / "parquet")
    figures = measure(spark, options, tmp_path / "landing", tmp_path / "parquet")
    assert figures["equal"] and figures["pages_rows_per_s"] > 0
