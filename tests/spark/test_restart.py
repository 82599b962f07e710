"""Aggregations killed with SIGKILL, Python and JVM together: no row is lost or repeated."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from edged.central.tables import TableDirectory
from tests.spark.conftest import QUICK_SPARK
from tests.spark.landings import readings, readings_table
from tests.spark.test_aggregate import BY_KEY, assert_equals_duckdb
from tests.whole import count

DEADLINE_S = 200
DEATHS = (
    ("before", "merge_batch", 1),  # offsets logged, nothing done
    ("after", "write_state", 2),  # half of version 1 written; batch 0 repeated before it
    ("after", "publish", 1),  # published, not committed
)
SPEC = {"streams": {"curve": "curve@1"}, "tables": {"by_key": BY_KEY}}


class Runs:
    """Starts aggregations on one landing, output and checkpoint."""

    def __init__(self, landing, tmp_path, root):
        self.output = tmp_path / "output"
        self._said = tmp_path / "said"
        self._root = root
        self._options = {
            "landing": str(landing.path),
            "output": str(self.output),
            "checkpoint": str(tmp_path / "checkpoint"),
            "master": "local[2]",
            "conf": QUICK_SPARK,
        }

    def start(self, die=None, **options):
        order = {"spec": SPEC, "options": {**self._options, **options}, "die": die}
        with open(self._said, "w") as said:  # a file never blocks the writer, unlike a pipe
            return subprocess.Popen(
                [sys.executable, "-m", "tests.spark.child", json.dumps(order)],
                cwd=self._root,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )

    def finish(self, die=None):
        with killed_at_last(self.start(die)) as child:
            child.wait(DEADLINE_S)
        return child.returncode, self.said()

    def said(self):
        return self._said.read_text()


@contextlib.contextmanager
def killed_at_last(child):
    """An aggregation, Python and JVM together."""
    with child:
        try:
            yield child
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)


@pytest.fixture
def runs(landing, tmp_path, request):
    return Runs(landing, tmp_path, request.config.rootpath)


def test_killed_between_offset_log_and_commit_it_goes_on_where_it_was(landing, runs):
    seq = 0
    for die in count(DEATHS[-1:], DEATHS):
        landing.land([readings(s, n=100) for s in range(seq + 1, seq + 6)])
        seq += 5
        status, said = runs.finish(die)
        assert status == -signal.SIGKILL, said
    status, said = runs.finish()
    assert status == 0, said
    assert_equals_duckdb(runs.output / "by_key", readings_table(range(1, seq + 1), n=100))


def test_killed_at_random_moments_while_pages_land_it_loses_and_repeats_nothing(landing, runs):
    dice = random.Random(20)
    seq = 0
    for _ in range(count(1, 2)):
        with killed_at_last(runs.start(trigger_us=100_000)) as child:
            version = published(runs)
            until = time.monotonic() + DEADLINE_S
            while published(runs) < version + 2:
                assert child.poll() is None, runs.said()
                assert time.monotonic() < until, runs.said()
                seq += 1
                landing.land([readings(seq, n=50)])
                time.sleep(0.3)
            time.sleep(dice.uniform(0, 0.8))
    status, said = runs.finish()
    assert status == 0, said
    assert_equals_duckdb(runs.output / "by_key", readings_table(range(1, seq + 1), n=50))


def published(runs):
    manifest = TableDirectory(runs.output / "by_key").current()
    return -1 if manifest is None else manifest.version
