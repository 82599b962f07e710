"""One Spark session for all tests of this directory; landings that close their files."""

import pytest

from edged.central.session import open_session
from tests.spark.landings import READINGS, Landing

QUICK_SPARK = {
    "spark.driver.memory": "1g",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@pytest.fixture(scope="session")
def spark():
    session = open_session("local[2]", "edged tests", QUICK_SPARK)
    yield session
    session.stop()


@pytest.fixture
def landing(tmp_path):
    """A landing with the stream curve@1 registered and no pages."""
    made = Landing(tmp_path / "landing")
    made.register("curve", READINGS)
    yield made
    made.close()
