"""One daemon and one API for all tests of a file that change nothing which others rely on."""

import pytest

from tests.api.support import Api, both


@pytest.fixture(scope="module")
def plant(tmp_path_factory):
    """(daemon, api), the API on TCP too."""
    with both(tmp_path_factory.mktemp("plant"), tcp=True) as pair:
        yield pair


@pytest.fixture(scope="module")
def lonely(tmp_path_factory):
    """An API whose daemon is not there."""
    with Api(
        tmp_path_factory.mktemp("lonely"), tcp=True, origins=["https://console.example"]
    ) as api:
        yield api
