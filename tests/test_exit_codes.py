"""Exit codes: what the errors say, what the units do with them, and what the documents tell."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from edged import errors
from edged.console import damage_report

ROOT = Path(__file__).parents[1]
UNITS = ("edged", "edged-api", "edged-collector")
USAGE, INTERRUPTED = 64, 130
FOR_EVER = {USAGE, errors.JobError.exit_code, errors.ConfigError.exit_code}
"""What the next start would meet again."""
TRIED_AGAIN = {
    errors.EdgedError, errors.StoreError, errors.StoreFailed, errors.StoreBusy,
    errors.StoreCorrupt, errors.CentralError, errors.KernelError,
}  # fmt: skip


def tree(error=errors.EdgedError):
    """All errors below one, itself included."""
    yield error
    for below in error.__subclasses__():
        yield from tree(below)


def setting(unit, name):
    """The words of a setting of a unit."""
    text = (ROOT / f"deploy/systemd/{unit}.service").read_text()
    return [word for line in re.findall(rf"^{name}=(.*)$", text, re.M) for word in line.split()]


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_is_tried_again_unless_the_next_start_would_meet_the_same(unit):
    assert setting(unit, "Restart") == ["on-failure"]
    assert setting(unit, "StartLimitIntervalSec") == ["0"]
    ends = {int(code) for code in setting(unit, "RestartPreventExitStatus")}
    assert {USAGE, errors.ConfigError.exit_code} <= ends <= FOR_EVER
    assert not ends & {error.exit_code for error in TRIED_AGAIN}
    assert setting(unit, "SuccessExitStatus") == [str(INTERRUPTED)]
    assert setting(unit, "RestartForceExitStatus") == ["SIGHUP", "SIGPIPE"]


def test_the_daemon_does_not_start_again_with_a_wrong_job():
    assert {int(code) for code in setting("edged", "RestartPreventExitStatus")} == FOR_EVER


def test_every_exit_code_is_in_the_list_of_the_errors_and_of_the_command():
    codes = {error.exit_code for error in tree() if error.__module__ == "edged.errors"} - {1}
    codes |= {errors.CommandError("unreachable", "the daemon").exit_code}
    codes |= {0, damage_report.EXIT_MENDABLE, damage_report.EXIT_LOST}
    assert {int(n) for n in re.findall(r"\bexit (\d+)", errors.__doc__)} == codes
    done = subprocess.run([sys.executable, "-m", "edged", "--help"], capture_output=True, text=True)
    listed = {int(n) for n in re.findall(r"\b(\d+) [a-z]", done.stdout)}
    assert codes | {USAGE} <= listed


def test_the_table_for_operators_says_what_the_unit_does():
    text = (ROOT / "docs/install.md").read_text().partition("| exit code |")[2]
    rows = [line.strip(" |").split(" | ") for line in text.splitlines()[2:] if "|" in line][:6]
    told = {int(n): row[2] for row in rows for n in re.findall(r"\d+", row[0])}
    ends = {int(code) for code in setting("edged", "RestartPreventExitStatus")}
    again = {error.exit_code for error in TRIED_AGAIN}
    assert {code for code, tried in told.items() if tried == "yes"} == again
    assert {code for code, tried in told.items() if tried == "no"} == ends | {0, INTERRUPTED}
