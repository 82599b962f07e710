"""The examples of docs/extending.md, installed from their folder into a fresh environment."""

import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "plugins"
KINDS = {
    "edged.sources": "udp",
    "edged.operators": "scale",
    "edged.sinks": "statsd",
    "edged.meters": "ups",
    "edged.policies": "night_shift",
    "edged.functions": "dew_point",
}

JOB = """
name = "dew"

[promises]
latency = "200ms"

[streams.readings]
source = {{ type = "udp", listen = "127.0.0.1:{udp}" }}
columns = {{ time = "timestamp", temperature = "float64", humidity = "float64?" }}
time = "time"

[operators.celsius]
type = "scale"
input = "readings"
column = "temperature"
factor = 0.1

[operators.dew]
type = "map"
input = "celsius"
columns = {{ time = "time", dew = "dew_point(temperature, humidity)" }}

[sinks.rows]
type = "statsd"
input = "dew"
metric = "edged.rows"
to = "127.0.0.1:{statsd}"

[sinks.out]
type = "file"
input = "dew"
path = "out"
format = "ndjson"
every = "200ms"
"""


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """A fresh environment with the examples installed; edged itself is the one under test."""
    place = tmp_path_factory.mktemp("fresh")
    subprocess.run([sys.executable, "-m", "venv", place / "venv"], check=True)
    python = place / "venv" / "bin" / "python"
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    target = Path(subprocess.check_output([python, "-c", where], text=True).strip())
    line = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    (target / "edged_under_test.pth").write_text(f"{ROOT}\n{line}")
    shutil.copytree(EXAMPLES, place / "source", ignore=shutil.ignore_patterns("__pycache__"))
    install = ["-m", "pip", "install", "-q", "--no-deps", place / "source"]
    subprocess.run([python, *install], check=True)
    return python


def edged(python, *words, **more):
    return subprocess.run(
        [python, "-m", "edged", *words], capture_output=True, text=True, timeout=120, **more
    )


def free_udp_port():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def test_the_page_prints_the_files_of_the_folder_as_they_are():
    page = (ROOT / "docs" / "extending.md").read_text()
    blocks = set(re.findall(r"```(?:python|toml)\n(.*?)```", page, re.S))
    files = [EXAMPLES / "pyproject.toml", *(EXAMPLES / "edged_example").glob("[a-z]*.py")]
    assert len(files) == 7
    for file in files:
        assert file.read_text() in blocks, f"docs/extending.md lacks {file.name} as it is"


def test_all_six_kinds_are_listed_with_package_and_version(fresh):
    done = edged(fresh, "plugins", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {kind["group"]: kind["name"] for kind in found} == KINDS
    assert {(kind["distribution"], kind["version"]) for kind in found} == {("edged-example", "1.0")}


def test_a_job_runs_with_source_operator_function_and_sink_of_the_plug_in(fresh, tmp_path):
    ports = {"udp": free_udp_port(), "statsd": 0}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as statsd:
        statsd.bind(("127.0.0.1", 0))
        statsd.settimeout(60)
        ports["statsd"] = statsd.getsockname()[1]
        (tmp_path / "job.toml").write_text(JOB.format(**ports))
        words = [fresh, "-m", "edged", "run", "job.toml", "--store", "store", "--workers", "1"]
        with open(tmp_path / "log", "wb") as log:
            daemon = subprocess.Popen(words, cwd=tmp_path, stdout=log, stderr=log)
        try:
            rows = sent_until_counted(ports["udp"], statsd, daemon)
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(60)
        assert daemon.returncode == 0, (tmp_path / "log").read_text()
    written = [
        json.loads(line)
        for file in sorted((tmp_path / "out").rglob("*.ndjson"))
        for line in file.read_text().splitlines()
    ]
    assert len(written) == rows >= 3
    gamma = math.log(0.5) + 17.62 * 20.0 / (243.12 + 20.0)
    assert written[0]["dew"] == pytest.approx(243.12 * gamma / (17.62 - gamma), rel=1e-12)
    assert [row["dew"] is None for row in written[:3]] == [False, True, False]


def sent_until_counted(port, statsd, daemon):
    """Send a datagram until the daemon listens; returns the rows that its sink counted."""
    until, sent = time.monotonic() + 120, 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        statsd.settimeout(1)
        while time.monotonic() < until and daemon.poll() is None:
            times = [f"2026-01-01 00:00:{sent % 60:02d}.{k}00000Z" for k in range(3)]
            lines = [f"{times[0]},200,50", f"{times[1]},210,", f"{times[2]},220,60"]
            sender.sendto("\n".join(lines).encode(), ("127.0.0.1", port))
            sent += 1
            try:
                counted = [statsd.recv(100)]
            except TimeoutError:
                continue
            statsd.settimeout(0.5)
            try:
                while True:
                    counted.append(statsd.recv(100))
            except TimeoutError:
                return sum(int(one.split(b":")[1].split(b"|")[0]) for one in counted)
    raise AssertionError("no row was counted within two minutes")


def test_the_meter_reads_its_file_and_is_the_whole_input(fresh, tmp_path):
    plant = tmp_path / "board" / "run" / "ups"
    plant.mkdir(parents=True)
    (plant / "output_mw").write_text("4200\n")
    code = (
        "from governors.detect import detect; from governors.meters.base import survey;"
        "from governors.meters.rails import wholes; from governors.simulated.kernel import *;"
        "from governors.sysfs import Sysfs; from pathlib import Path; import sys;"
        "sysfs = Sysfs(Path(sys.argv[1])); meters = survey(sysfs, detect(sysfs)).meters;"
        "ups = next(m for m in meters if m.name == 'ups');"
        "whole = next(w for w in wholes(meters) if w.keys[0][0] == 'ups');"
        "print(ups.read(0)[0].watts, whole.covers)"
    )
    done = subprocess.run(
        [fresh, "-c", code, tmp_path / "board"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "4.2 all that is plugged into the UPS"


def test_the_policy_is_accepted_with_its_settings_and_refuses_others(fresh, tmp_path):
    job = JOB.format(udp=free_udp_port(), statsd=1)
    chosen = '\n[governor]\npolicy = "night_shift"\nsettings = {{ {} = 3 }}\n'
    (tmp_path / "good.toml").write_text(job + chosen.format("hour").replace("{{", "{"))
    (tmp_path / "bad.toml").write_text(job + chosen.format("our").replace("{{", "{"))
    environment = {**os.environ, "EDGED_CACHE": str(tmp_path / "cache")}
    assert edged(fresh, "validate", tmp_path / "good.toml", env=environment).returncode == 0
    done = edged(fresh, "validate", tmp_path / "bad.toml", env=environment)
    assert done.returncode == 65 and "hour" in done.stdout + done.stderr


def test_a_job_written_in_python_has_a_method_for_each_kind_of_the_plug_in(fresh):
    code = (
        "from edged.job.builder import Job, generator;"
        "job = Job('j');"
        "rows = job.stream('s', generator(10), {'t': 'timestamp', 'x': 'float64'}, time='t');"
        "rows.scale('half', column='x', factor=0.5).statsd('out', metric='rows');"
        "print(job.plan().order, hasattr(rows, 'no_such_kind'))"
    )
    done = subprocess.run([fresh, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "('half',) False", done.stderr
