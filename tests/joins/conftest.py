"""Joins are dealt to all workers here, however small the beats are."""

import pytest

from edged import workers


@pytest.fixture(scope="module", autouse=True)
def woken():
    """Small beats would be joined by one thread."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "ASLEEP_WORTH_US", 1e-3)
        patch.setattr(workers, "AWAKE_WORTH_US", 1e-3)
        yield
