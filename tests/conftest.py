"""Settings of all tests.

Hypothesis has no deadline, since machines that run tests are busy.  `--whole` runs campaigns whole,
of which a run does a slice otherwise (`tests/whole.py`).  `--no-skips`, for CI, fails a run in
which a test was skipped.  With several workers (`pytest -n 3 --dist loadgroup`) whole files
are distributed, because expensive fixtures are made once a file; the tests of the shared Spark
session stay in one worker, and the longest files start first.
"""

import os
import signal
import subprocess

import pytest
from hypothesis import HealthCheck, settings

from edged.platform.libraries import use_libraries

if os.environ.get("EDGED_TEST_LIBRARY"):  # before any kernel is imported
    use_libraries()
from kernels import ahead, registry
from tests import forked, whole
from tests.spark import jvm

LONGEST = (
    "tests/system/test_spark_kills.py",
    "tests/system/test_kills.py",
    "tests/joins/test_family_cuda.py",
    "tests/spark",
    "tests/faults",
    "tests/system",
    "tests/uplink",
    "tests/energy",
    "tests/bench",
    "tests/job",
    "tests/beat",
)
"""The files that take longest, by wall time."""
APART = ("tests/spark/test_restart.py", "tests/system/test_bad_input.py")
"""Files without shared fixtures: each of their tests may run in another worker."""

TOGETHER = {"shuffle": ("tests/shuffle/", "tests/bench/test_bench_shuffle.py")}
"""Groups of files that compile the same kernels when they first need them."""


class NoSkips:
    """Fails a session that passes but has skipped tests, and lists them."""

    def __init__(self):
        self.skipped = []

    def _note(self, report):
        if report.skipped and not hasattr(report, "wasxfail"):
            self.skipped.append(report.nodeid)

    def pytest_collectreport(self, report):
        self._note(report)

    def pytest_runtest_logreport(self, report):
        self._note(report)

    def pytest_sessionfinish(self, session):
        if self.skipped and session.exitstatus in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        for nodeid in self.skipped:
            terminalreporter.line(f"SKIPPED under --no-skips: {nodeid}", red=True)


@pytest.fixture(scope="session", autouse=True)
def quick_jvms(tmp_path_factory):
    """Options for all JVMs: a short start, and one directory for files of killed ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", jvm.options(tmp_path_factory.mktemp("jvm")))
        yield


@pytest.fixture(scope="session", autouse=True)
def quick_starts():
    """Commands of edged are forked from a process that has imported it; see `tests.forked`."""
    if os.environ.get(whole.WHOLE):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", forked.Popen)
        yield
    forked.close()


@pytest.fixture(scope="session", autouse=True)
def ready_kernels():
    """The machine code of all kernels that the tests import, from the cache.

    Otherwise each is compiled by its first call, whose types numba does not find in the cache.
    """
    for row in [] if ahead.active() else registry.KERNELS.values():
        for signature in row.signatures if row.device == "cpu" else ():
            row.dispatcher.compile(signature)


def pytest_addoption(parser):
    parser.addoption("--no-skips", action="store_true", help="fail where a test was skipped")
    parser.addoption("--whole", action="store_true", help="run campaigns whole, not a slice")


def pytest_configure(config):
    config.addinivalue_line("markers", "xdist_group(name): tests of one group share a process")
    config.addinivalue_line("markers", "whole: a case of a campaign that is no part of the slice")
    if config.getoption("--whole"):
        os.environ[whole.WHOLE] = "1"
    settings.register_profile(
        "edged",
        deadline=None,
        max_examples=whole.examples(100),
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("edged")
    if config.getoption("--no-skips"):
        config.pluginmanager.register(NoSkips())
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a shell leaves it to what ends in &
        signal.signal(signal.SIGINT, signal.default_int_handler)  # tests interrupt their processes
    if not hasattr(config, "workerinput") and not ahead.active():
        registry.forget_stale()  # numba does not notice changed helpers


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in its own hook
def pytest_collection_modifyitems(items):
    """Mark each test with its group; the sort is stable, so files stay whole and in order."""
    if not os.environ.get(whole.WHOLE):
        items[:] = [item for item in items if not item.get_closest_marker("whole")]
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))
    items.sort(key=_turn)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session):
    """Refuse a run that distributes single tests, which would pass but slowly."""
    loose = [item.nodeid for item in session.items if "@" not in item.nodeid]
    if getattr(session.config.option, "loadgroup", False) and loose:
        pytest.exit(
            f"pytest-xdist has not read the group of {loose[0]}", pytest.ExitCode.USAGE_ERROR
        )


def _group(item):
    if "spark" in item.fixturenames:
        return "spark"
    for group, places in TOGETHER.items():
        if item.nodeid.startswith(places):
            return group
    file = item.nodeid.partition("::")[0]
    return item.name if file in APART else file


def _turn(item):
    found = (i for i, place in enumerate(LONGEST) if item.nodeid.startswith(place))
    return next(found, len(LONGEST))
