"""Workers that start a thread for any work, so that beats of a few rows run in parallel."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from edged.data import workers

WORTH_US = 1e-3


@contextmanager
def eager() -> Iterator[None]:
    """Workers that are made meanwhile are so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "ASLEEP_WORTH_US", WORTH_US)
        patch.setattr(workers, "AWAKE_WORTH_US", WORTH_US)
        yield


@contextmanager
def team_of(count: int) -> Iterator[workers.Workers]:
    """So many such workers."""
    with eager():
        team = workers.Workers(count)
    yield team
    team.close()
