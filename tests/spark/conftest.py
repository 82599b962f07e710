"""One Spark session for all tests of this directory; landings that close their files."""

import os

import pytest

from edged.central.session import open_session
from tests.spark.landings import READINGS, Landing

QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A JVM that starts fast and never gets fast: what short tests want."""
QUICK_SPARK = {
    "spark.driver.memory": "1g",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@pytest.fixture(scope="session")
def spark():
    os.environ["JDK_JAVA_OPTIONS"] = QUICK_JVM
    session = open_session("local[2]", "edged tests", QUICK_SPARK)
    del os.environ["JDK_JAVA_OPTIONS"]
    yield session
    session.stop()


@pytest.fixture
def landing(tmp_path):
    """A landing with the stream curve@1 registered and no pages."""
    made = Landing(tmp_path / "landing")
    made.register("curve", READINGS)
    yield made
    made.close()
