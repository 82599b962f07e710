"""What CI promises beside the tests: nothing is passed over in silence."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SKIPS = {
    "one test": "import pytest\ndef test_a(): pass\ndef test_b(): pytest.skip('no')\n",
    "a fixture": (
        "import pytest\n@pytest.fixture\ndef f(): pytest.skip('no')\ndef test_b(f): pass\n"
    ),
    "a module": "import pytest\npytest.importorskip('there_is_no_such_module')\n",
}


def outcome(path, text, *options):
    """(exit status, output) of a session of pytest over a file with this text."""
    (path / "test_given.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider",
         "-c", os.devnull, "--rootdir", path, *options, path],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("text", SKIPS.values(), ids=SKIPS)
def test_what_is_skipped_fails_a_run_without_skips_and_is_named(tmp_path, text):
    status, output = outcome(tmp_path, text, "--no-skips")
    assert status == 1, output
    assert "SKIPPED under --no-skips: test_given.py" in output


def test_a_run_without_skips_passes_where_nothing_is_skipped(tmp_path):
    text = "import pytest\ndef test_a(): pass\n@pytest.mark.xfail\ndef test_b(): assert False\n"
    assert outcome(tmp_path, text, "--no-skips")[0] == 0


def test_outside_of_ci_a_test_may_be_skipped(tmp_path):
    assert outcome(tmp_path, SKIPS["one test"])[0] == 0


def test_ci_asks_for_it_and_has_the_packages_first():
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert ".ci/packages" in lines and "make system" in lines
    assert any(line.startswith("make test") and "--no-skips" in line for line in lines)


def packages(path, *programs):
    """What `.ci/packages` does on a machine that has only these programs."""
    for name in ("bash", *programs):
        (path / name).symlink_to(shutil.which(name) or "/bin/true")  # it only looks for them
    return subprocess.run(
        [shutil.which("bash") or "bash", ROOT / ".ci" / "packages"],
        env={"PATH": str(path)}, capture_output=True, text=True,
    )  # fmt: skip


def test_without_a_package_manager_ci_names_the_command_and_fails(tmp_path):
    done = packages(tmp_path, "id")
    assert done.returncode == 1
    assert re.search(r"sudo apt-get install .*openssl", done.stderr)


def test_ci_is_silent_where_everything_is_there(tmp_path):
    needed = ("curl", "openssl", "mosquitto", "chromium", "promtool")
    done = packages(tmp_path, "id", *needed)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
