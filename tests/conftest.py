"""Settings of all tests: hypothesis judges results, never the speed of a busy machine.

`--no-skips`, for CI: a run in which a test was skipped has failed.

Several processes (`make test`, `pytest -n 3 --dist loadgroup`) share the work by file, since what
is dear is made once per file; the tests of one Spark session stay together, and what takes longest
comes first, so that no process is left with it at the end.
"""

import pytest
from hypothesis import HealthCheck, settings

from kernels import registry
from tests.spark import jvm

settings.register_profile("edged", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("edged")


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
"""Where the suite's time goes, by the clock; `CONTRIBUTING.md` has the figures."""
APART = ("tests/spark/test_restart.py", "tests/system/test_bad_input.py")
"""Files whose tests have nothing in common: each may run in another process."""


class NoSkips:
    """Fails a session that would have passed, had nothing been skipped."""

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
    """Every JVM of the tests starts quickly, and leaves its files here where it is killed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", jvm.options(tmp_path_factory.mktemp("jvm")))
        yield


def pytest_addoption(parser):
    parser.addoption("--no-skips", action="store_true", help="fail where a test was skipped")


def pytest_configure(config):
    config.addinivalue_line("markers", "xdist_group(name): tests of one group share a process")
    if config.getoption("--no-skips"):
        config.pluginmanager.register(NoSkips())
    if not hasattr(config, "workerinput"):
        registry.forget_stale()  # else tests run kernels whose helpers have changed since


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in its own hook
def pytest_collection_modifyitems(items):
    """Every test is told its group; the sort is stable, files stay whole and in order."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))
    items.sort(key=_turn)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session):
    """Files dealt out test by test would only be slow: nobody would see it."""
    loose = [item.nodeid for item in session.items if "@" not in item.nodeid]
    if getattr(session.config.option, "loadgroup", False) and loose:
        pytest.exit(
            f"pytest-xdist has not read the group of {loose[0]}", pytest.ExitCode.USAGE_ERROR
        )


def _group(item):
    if "spark" in item.fixturenames:
        return "spark"
    file = item.nodeid.partition("::")[0]
    return item.name if file in APART else file


def _turn(item):
    found = (i for i, place in enumerate(LONGEST) if item.nodeid.startswith(place))
    return next(found, len(LONGEST))
