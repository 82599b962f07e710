"""Creates Spark sessions for edged: Java located, quiet, in UTC, with the page source registered.

Under a `local` master Spark listens on loopback only and uses this Python.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from edged.central.package import zip_edged
from edged.errors import CentralError, ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN = 17
_INSTALL = {
    "apt-get": "apt-get install -y",
    "dnf": "dnf install -y java-17-openjdk-headless",
    "apk": "apk add openjdk17-jre-headless",
    "pacman": "pacman -S --noconfirm jre17-openjdk-headless",
    "zypper": "zypper install -y java-17-openjdk-headless",
    "brew": "brew install openjdk@17",
}
_LOG4J = Path(__file__).with_name("log4j2.properties")


def open_session(
    master: str = "local[*]", name: str = "edged", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """A session on `master` with `format("edged")`; `conf` overrides edged's own settings.

    Raises CentralError if Java is missing or too old, ConfigError if PySpark is missing, or the
    executors' Python of a cluster is not named.
    """
    check_pyspark()
    check_executors_python(master)
    check_java()
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    # Errors are raised as exceptions; PySpark would also print each with its Java trace.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    local = master.startswith("local")
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {**_settings(master), **(conf or {})}
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except PySparkRuntimeError as problem:
        raise CentralError(
            f"Spark did not start: {problem}. See Java's output above; memory and the "
            "address it binds to are the usual reasons"
        ) from problem
    except Py4JJavaError as problem:
        raise CentralError(
            f"Spark did not start on {master}: its master cannot be reached, or its workers start "
            "no executor; see Java's output above, and the workers' logs"
        ) from problem
    if not local:
        place = Path(tempfile.mkdtemp(prefix="edged-")) / "edged.zip"
        spark.sparkContext.addPyFile(str(zip_edged(place)))
    register_source(spark)
    register_functions(spark)
    return spark


def register_functions(spark: SparkSession) -> None:
    """Register the functions on sketches (`edged.data.sketches`) for SQL."""
    from pyspark.sql.types import BinaryType, DoubleType, LongType

    from edged.data import sketches

    spark.udf.register("edged_merged_quantiles", sketches.merged_quantiles, BinaryType())
    spark.udf.register("edged_quantile", sketches.quantile, DoubleType())
    spark.udf.register("edged_merged_distinct", sketches.merged_distinct, BinaryType())
    spark.udf.register("edged_distinct", sketches.distinct, LongType())


def register_source(spark: SparkSession, name: str = "edged") -> str:
    """Register `edged.central.datasource` as format `name`; returns the name.

    Concurrent streaming queries each need their own name: Spark 4.3's PythonStreamingSourceRunner
    puts settings into the environment map of the registered function, a plain HashMap.  Queries
    that start at the same time corrupt a shared map, and every task that receives it then fails
    with java.io.OptionalDataException.
    """
    from pyspark.errors import AnalysisException

    from edged.central.datasource import EdgedDataSource

    source = type("EdgedDataSource", (EdgedDataSource,), {"name": classmethod(lambda cls: name)})
    try:
        spark.dataSource.register(source)
    except AnalysisException as problem:  # an existing session has it already
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(problem):
            raise
    return name


def check_pyspark() -> None:
    """Raise ConfigError, with the installation command, if PySpark is missing."""
    if find_spec("pyspark") is None:
        raise ConfigError(
            "PySpark is not installed here; install it with: "
            f"{sys.executable} -m pip install 'edged[central]'"
        )


def check_executors_python(master: str) -> None:
    """Raise ConfigError if `master` is a cluster and PYSPARK_PYTHON is not set.

    Executors read pages with Python, and Spark's default is any `python3` on their PATH.
    """
    if master.startswith("local") or os.environ.get("PYSPARK_PYTHON"):
        return
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    raise ConfigError(
        f"--master {master}: executors read pages with Python; set PYSPARK_PYTHON to a Python "
        f"{version} with numpy, pyarrow and pyspark that every worker has at the same path, e.g. "
        f"PYSPARK_PYTHON={sys.executable}"
    )


def check_java() -> None:
    """Raise CentralError, with the installation command, if no Java 17 is found."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home, "bin"))) if home else shutil.which("java")
    advice = f"install it with: {install_command()}"
    if java is None:
        where = f"in JAVA_HOME={home}" if home else "on the PATH, and JAVA_HOME is not set"
        raise CentralError(f"Spark needs Java {JAVA_MIN} or newer; there is none {where}: {advice}")
    output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', output)
    if version is not None and int(version[1]) < JAVA_MIN:
        raise CentralError(
            f"Spark needs Java {JAVA_MIN} or newer; {java} is {output.splitlines()[0]}: {advice}"
        )


def install_command() -> str:
    """The command that installs Java on this machine."""
    for tool, command in _INSTALL.items():
        if shutil.which(tool):
            root = tool == "brew" or (hasattr(os, "geteuid") and os.geteuid() == 0)
            named = f"{command} {_debian_package()}" if tool == "apt-get" else command
            return named if root else f"sudo {named}"
    return "your system's package manager (a Java 17 runtime, headless)"


def _debian_package() -> str:
    """The oldest Java that Spark runs on and that this release of Debian or Ubuntu has."""
    names = [f"openjdk-{version}-jre-headless" for version in (JAVA_MIN, 21, 25)]
    try:
        words = ["apt-cache", "madison", *names]
        listed = subprocess.run(words, capture_output=True, text=True, check=False).stdout
    except OSError:
        listed = ""
    return next((name for name in names if f"{name} |" in listed), names[0])


def _settings(master: str) -> dict[str, str]:
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # explicit UTC
    }
    if master.startswith("local"):
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": str(_cores(master)),
            "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG4J.as_uri()}",
        }
        if os.environ.get("PYSPARK_PYTHON") == sys.executable:
            settings["spark.python.daemon.module"] = "edged.central._spark_daemon"
    return settings


def _cores(master: str) -> int:
    given = re.fullmatch(r"local\[(\d+)(?:,\d+)?\]", master)
    return int(given[1]) if given else (os.cpu_count() or 1) if "[" in master else 1
