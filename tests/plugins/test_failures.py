"""Plug-ins that fail: an event and a clear error for the jobs that need them, never a dead daemon.

A package is a directory on the path with `NAME-1.0.dist-info`, which is all that entry points need.
"""

import json
import os
import subprocess
import sys

import pytest

from edged.operators.base import OPERATORS, operator
from governors.registry import DuplicateName

JOB = """
name = "j"
[streams.s]
source = { type = "generator", rate = 100, rows = 10 }
columns = { time = "timestamp", x = "float64" }
time = "time"
[operators.o]
type = "KIND"
input = "s"
where = "x > 0"
[sinks.out]
type = "file"
input = "o"
path = "out"
"""
BROKEN = {
    "an import that is not there": ("import no_such_module", "ModuleNotFoundError"),
    "an exit": ("import sys; sys.exit(3)", "SystemExit: 3"),
    "a syntax error": ("def", "SyntaxError"),
    "nothing registered": ("x = 1", "registers no operator 'broken'"),
}


def package(place, name, group, kind, source):
    """An installed distribution `name` 1.0 whose one module holds `source`."""
    facts = place / f"{name}-1.0.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(f"[{group}]\n{kind} = {name}_module\n")
    (place / f"{name}_module.py").write_text(source)


def edged(place, *words):
    path = os.pathsep.join([str(place), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-m", "edged", *map(str, words)],
        env={**os.environ, "PYTHONPATH": path},
        cwd=place,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("source, says", BROKEN.values(), ids=BROKEN)
def test_a_plug_in_that_fails_is_listed_and_its_jobs_are_refused_with_the_reason(
    tmp_path, source, says
):
    package(tmp_path, "bad", "edged.operators", "broken", source)
    done = edged(tmp_path, "plugins", "--json")
    assert done.returncode == 1
    (found,) = json.loads(done.stdout)
    assert (found["name"], found["distribution"], found["version"]) == ("broken", "bad", "1.0")
    assert says in found["problem"]
    (tmp_path / "job.toml").write_text(JOB.replace("KIND", "broken"))
    refused = edged(tmp_path, "validate", tmp_path / "job.toml")
    assert refused.returncode == 65
    text = " ".join((refused.stdout + refused.stderr).split())
    assert "operators.o.type" in text and "bad 1.0" in text and says in text
    (tmp_path / "job.toml").write_text(JOB.replace("KIND", "filter"))
    assert edged(tmp_path, "validate", tmp_path / "job.toml").returncode == 0


@pytest.mark.parametrize(
    "group, kind, source",
    [
        ("edged.operators", "filter", "from edged.plugin import operator, OperatorPlan\n"
         "@operator('filter')\nclass Mine(OperatorPlan): ...\n"),
        ("edged.functions", "abs", "from edged.plugin import function\n"
         "@function('abs', arguments=('DOUBLE',), returns='DOUBLE')\ndef abs(x): return x\n"),
        ("edged.policies", "hands_off", "from edged.plugin import policy, Policy\n"
         "@policy\nclass Mine(Policy): name = 'hands_off'\n"),
    ],
)  # fmt: skip
def test_a_name_that_is_taken_is_refused_and_the_built_in_kind_stays(tmp_path, group, kind, source):
    package(tmp_path, "thief", group, kind, source)
    done = edged(tmp_path, "plugins", "--all", "--json")
    found = [k for k in json.loads(done.stdout) if (k["group"], k["name"]) == (group, kind)]
    assert done.returncode == 1
    assert [k["distribution"] for k in found] == ["edged", "thief"]
    assert "belongs to edged" in found[1]["problem"]


def test_a_second_module_cannot_take_a_name_in_one_process_either():
    OPERATORS.load()
    with pytest.raises(DuplicateName, match=r"operator 'filter' is registered by edged"):
        operator("filter")(type("Mine", (), {"__module__": "elsewhere"}))


def test_a_half_registered_plug_in_leaves_nothing_behind(tmp_path):
    source = (
        "from edged.plugin import function\n"
        "@function('half', arguments=('DOUBLE',), returns='DOUBLE')\n"
        "def half(x): return x / 2\n"
        "raise RuntimeError('too late')\n"
    )
    package(tmp_path, "late", "edged.functions", "half", source)
    (found,) = json.loads(edged(tmp_path, "plugins", "--json").stdout)
    assert found["problem"] == "RuntimeError: too late"
    (tmp_path / "job.toml").write_text(
        JOB.replace("KIND", "filter").replace("x > 0", "half(x) > 0")
    )
    refused = edged(tmp_path, "validate", tmp_path / "job.toml")
    assert refused.returncode == 65
    assert "too late" in " ".join((refused.stdout + refused.stderr).split())


def test_a_function_of_text_is_refused_when_it_is_registered(tmp_path):
    source = (
        "from edged.plugin import function\n"
        "@function('shout', arguments=('VARCHAR',), returns='DOUBLE')\n"
        "def shout(x): return 1.0\n"
    )
    package(tmp_path, "text", "edged.functions", "shout", source)
    (found,) = json.loads(edged(tmp_path, "plugins", "--json").stdout)
    assert "'VARCHAR' is not one of BOOLEAN, BIGINT, DOUBLE, TIMESTAMP" in found["problem"]


def running(place, job, *more):
    """A daemon with `place` on its path; returns the process, ended by itself or by a signal."""
    path = os.pathsep.join([str(place), *filter(None, [os.environ.get("PYTHONPATH")])])
    words = [sys.executable, "-m", "edged", "run", str(job), "--store", str(place / "store")]
    return subprocess.Popen(
        [*words, "--workers", "1", *more],
        env={**os.environ, "PYTHONPATH": path},
        cwd=place,
        stderr=subprocess.PIPE,
        text=True,
    )


def until_line(process, text):
    """The lines of a process's log up to the first that holds `text`."""
    lines = []
    for line in process.stderr:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError(f"no {text!r} in {lines}")


def test_a_daemon_starts_beside_a_failing_plug_in_and_says_so_in_an_event(tmp_path):
    package(tmp_path, "bad", "edged.operators", "broken", "import no_such_module")
    (tmp_path / "job.toml").write_text(JOB.replace("KIND", "filter"))
    daemon = running(tmp_path, tmp_path / "job.toml")
    lines = until_line(daemon, "edged: ready")
    daemon.terminate()
    daemon.communicate()
    assert daemon.returncode == 0
    assert any("bad 1.0: broken" in line and "no_such_module" in line for line in lines), lines


def test_a_stored_job_outlives_the_absence_of_its_plug_in(tmp_path):
    source = (
        "from edged.plugin import function\n"
        "@function('twice', arguments=('DOUBLE',), returns='DOUBLE')\n"
        "def twice(x): return 2 * x\n"
    )
    package(tmp_path, "good", "edged.functions", "twice", source)
    (tmp_path / "job.toml").write_text(
        JOB.replace("KIND", "filter").replace("x > 0", "twice(x) > 0")
    )
    daemon = running(tmp_path, tmp_path / "job.toml")
    until_line(daemon, "edged: ready")
    daemon.terminate()
    daemon.communicate()
    module = tmp_path / "good_module.py"
    module.write_text("import no_such_module")
    daemon = running(tmp_path, tmp_path / "job.toml")
    lines = until_line(daemon, "edged: ready")
    daemon.terminate()
    daemon.communicate()
    assert any("job j is shelved" in line and "no_such_module" in line for line in lines), lines
    other = JOB.replace("KIND", "filter").replace('"j"', '"k"').replace("x > 0", "twice(x) > 0")
    (tmp_path / "other.toml").write_text(other)
    refused = running(tmp_path, tmp_path / "job.toml", str(tmp_path / "other.toml"))
    assert "no_such_module" in refused.communicate()[1] and refused.returncode == 65
    module.write_text(source)
    daemon = running(tmp_path, tmp_path / "job.toml")
    lines = until_line(daemon, "edged: ready")
    daemon.terminate()
    daemon.communicate()
    assert any("recovered" in line for line in lines), lines
