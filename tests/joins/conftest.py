"""Joins are dealt to all workers here, however small the beats are."""

import pytest

from tests.eager import eager


@pytest.fixture(scope="module", autouse=True)
def woken():
    """Small beats would be joined by one thread."""
    with eager():
        yield
