"""Commands on a running daemon's API, as processes."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
from contextlib import suppress

import pytest

from edged.cli.status import uplink
from tests.api.support import Api, both, small_toml

JOB = small_toml()


@pytest.fixture(scope="module")
def plant(tmp_path_factory):
    with both(tmp_path_factory.mktemp("plant"), tcp=True) as pair:
        yield pair


@pytest.fixture(scope="module")
def edged(plant):
    """Runs a command with EDGED_API and returns its result."""

    def run(*words, code=0, **environment):
        done = subprocess.run(
            [sys.executable, "-m", "edged", *map(str, words)], capture_output=True, text=True,
            timeout=120, check=False,
            env={**os.environ, "EDGED_API": str(plant[1].socket), **environment},
        )  # fmt: skip
        assert done.returncode == code, (words, done)
        assert "Traceback" not in done.stderr
        return done

    return run


def test_a_job_is_checked_put_shown_paused_drained_and_deleted(edged, tmp_path):
    document = tmp_path / "extra.toml"
    document.write_text(JOB)
    assert "is valid" in edged("jobs", "validate", document).stdout
    assert "extra: running, version 1" in edged("jobs", "put", document, "--create").stdout
    told = edged("jobs", "put", document, "--create", code=65).stderr
    assert told.count("read the job again") == 1  # advice is given once
    assert json.loads(edged("jobs", "show", "extra").stdout)["origin"] == "api"
    listed = edged("jobs", "list").stdout.splitlines()
    assert [line.split()[:2] for line in listed] == [["extra", "running"], ["readings", "running"]]
    assert edged("jobs", "pause", "extra", "--if-version", 1).stdout == "extra: paused\n"
    told = edged("jobs", "resume", "extra", "--if-version", 7, code=65).stderr
    assert "job extra is of version 1, not 7" in told
    assert edged("jobs", "resume", "extra").stdout == "extra: running\n"
    drained = edged("jobs", "drain", "extra", "--wait", "--json")
    assert json.loads(drained.stdout)["state"] == "drained" and "edged: " in drained.stderr
    assert edged("jobs", "delete", "extra", "--now").stdout == "extra: deleted\n"
    kinds = [json.loads(line)["kind"] for line in edged("events", "--json").stdout.splitlines()]
    assert {"job.created", "job.paused", "job.resumed", "job.deleted"} <= set(kinds)
    assert len(edged("events", "--last", 2).stdout.splitlines()) == 2


def test_every_fault_of_a_document_is_told(edged, tmp_path):
    document = tmp_path / "extra.toml"
    document.write_text(JOB.replace("timestamp", "tiemstamp").replace('"pages"', '"page"'))
    done = edged("jobs", "validate", document, code=65)
    assert "streams.extra.columns.time" in done.stderr and "sinks.extras.type" in done.stderr
    assert json.loads(edged("jobs", "validate", document, "--json", code=65).stdout)["faults"]
    assert "sinks.extras.type" in edged("jobs", "put", document, code=65).stderr


def test_status_is_the_whole_snapshot_and_top_tells_rates(edged):
    told = json.loads(edged("status", "--json").stdout)
    assert (told["schema"], told["device"]) == (2, "dev") and "sinks" in told["jobs"]["readings"]
    shown = edged("status").stdout
    assert "orin-nano (simulated)" in shown
    assert "uplink: none" in shown
    # no row has come: that is no latency of 0 ms
    assert "latency (this host) no rows lately" in " ".join(shown.split())
    assert (told["latency_ms_p50"], told["latency_ms_p99"]) == (None, None)
    top = json.loads(edged("top", "--once", "--json").stdout)
    assert top["rows_in_per_s"] == 0 and top["watts"]["provenance"] == "simulated"
    assert [part["id"] for part in top["jobs"]["readings"]["parts"]] == [
        "power", "big", "all", "late", "bigs",
    ]  # fmt: skip
    text = edged("top", "--once").stdout
    for word in ("dev", "tuples in", "backlog", "simulated", "readings", "daemon.started"):
        assert word in text


def test_status_tells_what_the_collector_answered():
    stuck = {"stream": "curve", "partition": 3, "problem": "quota", "detail": "9 GB of 9 GB"}
    told = {"state": "down", "problem": "centre:7500: refused", "pages_acked": 1234, "stuck": []}
    assert uplink(None) == ["uplink: none, pages stay here"]
    assert uplink(told) == ["uplink: down: centre:7500: refused, 1,234 pages acknowledged"]
    assert uplink({**told, "state": "sending", "problem": "", "stuck": [stuck]}) == [
        "uplink: sending, 1,234 pages acknowledged",
        "  curve, partition 3, waits: quota: 9 GB of 9 GB",
    ]


def test_policies_are_shown_and_switched(edged):
    assert edged("governor", "policy", "power_cap", "--set", "watts=5").stdout.startswith(
        "power_cap {'watts': 5"
    )
    shown = edged("governor", "show").stdout
    assert "orin-nano (simulated): power_cap" in shown and "cpu.policy0: " in shown
    edged("governor", "policy", "turbo", code=65)
    assert edged("governor", "policy", "hands_off").stdout == "hands_off\n"


def test_settings_and_the_log_are_shown_and_the_log_is_changed(edged):
    assert "store.directory = " in edged("config").stdout
    told = edged("config", "device", "metrics.listen").stdout.splitlines()
    assert told[0] == 'device.name = "dev"  [flag:--device]' and len(told) == 2
    assert json.loads(edged("config", "device", "--json").stdout)[0]["origin"] == "flag:--device"
    assert "sections are api, device" in edged("config", "devise", code=78).stderr
    assert edged("log").stdout == "info\n"
    assert edged("log", "debug").stdout == "debug, before info\n"
    assert json.loads(edged("log", "--json").stdout)["level"] == "debug"
    edged("log", "loud", code=64)
    edged("log", "info")
    assert edged("uplink").stdout.startswith("uplink: none, pages stay here\n0 pages ")
    assert "there is no uplink" in edged("uplink", "retry", code=65).stderr
    edged("uplink", "now", code=64)


def test_exit_codes_say_what_is_wrong(edged, plant, tmp_path):
    assert "no API answers at" in edged("status", EDGED_API="/nowhere.sock", code=69).stderr
    assert edged("jobs", "show", "nobody", code=78).stderr.count("no job nobody") == 1
    url, token = f"http://127.0.0.1:{plant[1].port}", tmp_path / "token"
    edged("jobs", "list", "--api", url, code=77)
    token.write_text(plant[1].token("read") + "\n")
    edged("jobs", "list", "--api", url, "--token-file", token)
    assert "lacks the scope control" in edged(
        "jobs", "pause", "readings", "--api", url, "--token-file", token, code=77
    ).stderr  # fmt: skip
    edged("status", "--api", url, EDGED_TOKEN=token.read_text().strip())
    edged("jobs", "list", "--token-file", tmp_path / "none", code=78)
    edged("jobs", "list", "--api", "unix:///run/edged/api.sock", code=78)
    assert "no token in" in edged("token", "list", "--tokens", tmp_path / "none").stderr
    for command in ("stop", "reload"):
        edged(command, "--door", tmp_path / "nowhere", code=69)
        edged(command, "--config", tmp_path / "nowhere.toml", code=78)
    with Api(tmp_path) as lonely:
        for words in (("status",), ("top", "--once"), ("jobs", "list"), ("events",)):
            edged(*words, "--api", lonely.socket, code=69)


def test_top_in_a_terminal_shows_the_device_and_ends_with_q(plant):
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "edged", "top", "--api", str(plant[1].socket)],
        stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm"},
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    while b"readings" not in shown:
        assert select.select([ours], [], [], 120)[0], shown
        shown += os.read(ours, 65536)
    os.write(ours, b"\x1b[A\x1b[B")  # arrows: three bytes each, none of which hides the q behind
    os.write(ours, b"q")

    with suppress(OSError):  # EIO: the other end is closed
        while os.read(ours, 65536):
            pass
    os.close(ours)
    assert process.wait(120) == 0
    assert process.wait(120) == 0


def test_one_value_of_a_running_job_is_set(edged, tmp_path):
    document = tmp_path / "extra.toml"
    document.write_text(JOB)
    edged("jobs", "put", document, "--create")
    told = edged("jobs", "set", "extra", "promises", "{latency = '2s'}").stdout
    assert told == 'extra: promises = {"latency": "2s"}, version 2\n'
    assert edged("jobs", "set", "extra", "promises.latency", "3s", "--json").returncode == 0
    assert json.loads(edged("jobs", "show", "extra").stdout)["version"] == 3
    told = edged("jobs", "set", "extra", "sinks.none.page", "1", code=65).stderr
    assert "sinks.none: is no table of job extra" in told
    edged("jobs", "delete", "extra", "--now")
