"""A plant for each file that asks for one, and how its alerts are waited for."""

import time

import pytest

from tests.metrics.plant import Plant


@pytest.fixture(scope="module")
def plant(tmp_path_factory):
    """All parts, and a Prometheus that has seen the daemon."""
    with Plant(tmp_path_factory.mktemp("plant")) as plant:
        plant.until(lambda: plant.query("edged_up == 1"))
        yield plant


@pytest.fixture
def fires(plant):
    """Waits until an alert has fired since the test began, now or for a moment; its labels."""
    began_s = time.monotonic()

    def wait(name, **labels):
        alert, *_ = plant.until(
            lambda: (
                plant.firing(name, **labels)
                or plant.fired(name, time.monotonic() - began_s, **labels)
            )
        )
        told = alert["annotations"]
        assert not any("error" in text or "<no value>" in text for text in told.values()), told
        return alert["labels"]

    return wait
