"""Settings of all tests: hypothesis judges results, never the speed of a busy machine.

`--no-skips`, for CI: a run in which a test was skipped has failed.
"""

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("edged", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("edged")


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


def pytest_addoption(parser):
    parser.addoption("--no-skips", action="store_true", help="fail where a test was skipped")


def pytest_configure(config):
    if config.getoption("--no-skips"):
        config.pluginmanager.register(NoSkips())
