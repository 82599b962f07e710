"""CI runs the README's commands, skips nothing, and counts CPU time; tests name what they lack."""

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


def test_ci_runs_the_commands_of_the_readme_and_nothing_else():
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert [line for line in lines if "make" in line and "#" not in line] == [
        "make check",
        "make system",
        ".ci/cpu_minutes 40 make test",
    ]
    assert any(line.startswith("export PYTEST_ARGS=") and "--no-skips" in line for line in lines)


BURN = "import os, time\nwhile time.process_time() < 0.6: pass\n"


@pytest.mark.parametrize(("limit", "status"), [("1", 0), ("0.005", 1)])
def test_the_cpu_time_of_orphans_counts(limit, status):
    orphan = f"import os\nif os.fork() == 0:\n    exec({BURN!r})\n    os._exit(0)\n"
    words = [sys.executable, "-c", orphan]
    waits = (  # until the orphan, too, has closed its output, and a moment for it to be counted
        "import subprocess, sys, time; "
        "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.PIPE); time.sleep(1)"
    )
    done = cpu_minutes(limit, sys.executable, "-c", waits, *words)
    assert done.returncode == status, done.stderr
    assert "0.0 CPU-min (limit" in done.stderr


def test_the_status_of_the_command_is_passed_on():
    assert cpu_minutes("1", "sh", "-c", "exit 7").returncode == 7
    assert cpu_minutes("1", "sh", "-c", "kill -9 $$").returncode == 137


def cpu_minutes(*words):
    return subprocess.run(
        [ROOT / ".ci" / "cpu_minutes", *words], capture_output=True, text=True, check=False
    )


JAVA = "#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n"


def packages(path, *programs, java=None):
    """What `deploy/test_packages.sh` does on a machine that has only these programs."""
    for name in ("bash", "sed", "head", *programs):
        (path / name).symlink_to(shutil.which(name) or "/bin/true")  # it only looks for them
    if java is not None:
        (path / "java").write_text(java.replace("/bin/sh", shutil.which("sh")))
        (path / "java").chmod(0o755)
    return subprocess.run(
        [shutil.which("bash") or "bash", ROOT / "deploy" / "test_packages.sh"],
        env={"PATH": str(path)}, capture_output=True, text=True,
    )  # fmt: skip


def test_without_root_one_command_is_named_that_installs_all(tmp_path):
    (tmp_path / "id").write_text(f"#!{shutil.which('sh')}\necho 1000\n")
    (tmp_path / "id").chmod(0o755)
    done = packages(tmp_path, "apt-get")
    assert done.returncode == 1
    (command,) = re.findall(r"sudo sh -c .*", done.stderr)
    for package in ("git", "curl", "openssl", "chromium", "prometheus", "jre-headless"):
        assert package in command


def test_the_oldest_java_that_this_debian_has_is_named(tmp_path):
    """Debian 13 knows openjdk-17 only as a name: `apt-cache show` says nothing and succeeds."""
    cache = """#!{sh}
[ "$1" = madison ] && [ "$2" = openjdk-21-jre-headless ] && echo "$2 | 21.0.13 | trixie/main"
exit 0
"""
    for name, text in (("apt-cache", cache), ("id", "#!{sh}\necho 1000\n")):
        (tmp_path / name).write_text(text.format(sh=shutil.which("sh")))
        (tmp_path / name).chmod(0o755)
    done = packages(tmp_path, "apt-get")
    assert "openjdk-21-jre-headless" in done.stderr and "openjdk-17" not in done.stderr


APT = """#!{sh}
echo "$*" >>{calls}
[ "$2" != --assume-no ] || {{ echo "Need to get 5 kB of archives."; exit 1; }}
"""


def test_as_root_missing_packages_are_installed(tmp_path):
    """`apt-get install --assume-no` tells the size and ends with 1."""
    (tmp_path / "id").write_text(f"#!{shutil.which('sh')}\necho 0\n")
    (tmp_path / "apt-get").write_text(APT.format(sh=shutil.which("sh"), calls=tmp_path / "calls"))
    for name in ("id", "apt-get"):
        (tmp_path / name).chmod(0o755)
    programs = ("paste", "git", "curl", "mosquitto", "chromium", "promtool", "zstd")
    done = packages(tmp_path, *programs, java=JAVA)
    assert done.returncode == 0, done.stderr
    assert "the tests need openssl: installing (5 kB to download)" in done.stderr
    assert (tmp_path / "calls").read_text().splitlines()[-1] == "install -y -qq openssl"


def test_without_apt_the_packages_are_named(tmp_path):
    done = packages(tmp_path, "id")
    assert done.returncode == 1 and "chromium" in done.stderr


def test_nothing_is_said_where_everything_is_there(tmp_path):
    needed = ("git", "curl", "openssl", "mosquitto", "chromium", "promtool", "zstd")
    done = packages(tmp_path, "id", *needed, java=JAVA)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_tests_install_what_they_need_and_the_demo_does_not():
    text = (ROOT / "Makefile").read_text()
    assert re.search(r"^test: packages ", text, re.MULTILINE)
    assert re.search(r"^demo: \$\(READY\) ", text, re.MULTILINE)
