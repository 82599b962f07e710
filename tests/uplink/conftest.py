"""Shared by the tests of a real child: pages in a file, and a landing."""

import pytest

from tests.uplink.support import Spool


@pytest.fixture
def spool(tmp_path):
    made = Spool(tmp_path / "spool")
    yield made
    made.close()


@pytest.fixture
def landing(tmp_path):
    return tmp_path / "landing"
