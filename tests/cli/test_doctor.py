"""`edged doctor`: each finding against a machine that is made to have it."""

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from edged.cli import doctor
from edged.cli._doctor import base, board, centre, runtime, services, system
from edged.cli._doctor.base import AREAS, Machine, Verdict, load
from edged.cli.board import command as board_command
from edged.config import read
from governors import profile_reader
from tests.governors import trees

DAEMON_FILES = ("proc/meminfo", "proc/mounts")


def machine(tmp_path, tree=None, **changes):
    """A machine below `tmp_path`, with the board `tree`."""
    root = tmp_path / "root"
    root.mkdir(parents=True, exist_ok=True)
    if tree is not None:
        trees.plant(root, tree)
    found = Machine(str(root), tmp_path / "store", read(None)[0], (), None, root)
    return replace(found, **changes)


def states(check, found):
    return [(f.name, f.state) for f in check(found)]


def one(check, found):
    (finding,) = check(found)
    return finding


def write(found, path, text):
    place = found.root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)


class TestRunning:
    @pytest.mark.parametrize(
        ("kib", "state"), [("8000000", Verdict.OK), ("100000", Verdict.WARNING)]
    )
    def test_little_memory_is_a_warning(self, tmp_path, kib, state):
        found = machine(tmp_path)
        write(found, "proc/meminfo", f"MemTotal: 9000000 kB\nMemAvailable:  {kib} kB\n")
        assert ("memory", state) in states(runtime.resources, found)

    def test_a_machine_without_meminfo_has_no_finding_of_memory(self, tmp_path):
        assert not [f for f in runtime.resources(machine(tmp_path)) if f.name == "memory"]

    def test_kernels_that_are_compiled_are_counted_and_none_is_deleted(self, tmp_path):
        first = one(runtime.kernels, machine(tmp_path))
        assert (first.state, first.text) == (Verdict.OK, first.text)
        assert one(runtime.kernels, machine(tmp_path)) == first

    def test_a_faulty_configuration_is_a_failure_with_the_command_that_lists_it(self, tmp_path):
        file = tmp_path / "edged.toml"
        file.write_text("[store]\nbytes_max = 'much'\n")
        config, faults = read(file)
        found = machine(tmp_path, config=config, faults=tuple(faults), config_file=file)
        finding = one(runtime.configuration, found)
        assert finding.state is Verdict.FAILURE
        assert "store.bytes_max" in finding.text
        assert finding.remedy == f"edged validate {file}"

    def test_a_clock_before_2024_fails(self, tmp_path, monkeypatch):
        monkeypatch.setattr(time, "time", lambda: 1_000_000.0)
        assert one(system.clock, machine(tmp_path)).state is Verdict.FAILURE

    def test_a_store_in_memory_is_a_warning(self, tmp_path):
        found = machine(tmp_path)
        write(found, "proc/mounts", f"x / ext4 rw 0 0\ntmpfs {tmp_path.resolve()} tmpfs rw 0 0\n")
        texts = {f.text: f.state for f in system.disk(found)}
        assert texts["tmpfs does not survive a power cut"] is Verdict.WARNING

    def test_a_commit_to_the_disk_is_timed(self, tmp_path):
        found = machine(tmp_path)
        write(found, "proc/mounts", "x / ext4 rw 0 0\n")
        assert any("a commit waits" in f.text for f in system.disk(found))
        assert not (tmp_path / "store").exists()

    def test_a_volatile_journal_is_a_warning(self, tmp_path):
        found = machine(tmp_path)
        assert one(system.journal, found).state is Verdict.OPTIONAL
        (found.root / "run/systemd/system").mkdir(parents=True)
        assert one(system.journal, found).state is Verdict.WARNING
        (found.root / "var/log/journal").mkdir(parents=True)
        assert one(system.journal, found).state is Verdict.OK


class TestBoard:
    def test_an_orin_has_its_input_and_its_clocks(self, tmp_path):
        found = machine(tmp_path, "orin-nano-r36")
        assert ("input", Verdict.OK) in states(board.meters, found)
        assert ("clocks", Verdict.OK) in states(board.clocks, found)

    def test_a_machine_without_meter_and_clocks_is_told_so(self, tmp_path):
        found = machine(tmp_path, "no-control")
        assert one(board.clocks, found).state is Verdict.OPTIONAL
        assert one(board.sleep_states, machine(tmp_path / "bare")).state is Verdict.OPTIONAL

    def test_a_fixed_governor_is_a_warning_unless_the_driver_decides(self, tmp_path):
        found = machine(tmp_path, "x86-intel-pstate")
        assert one(board.governors, found).state is Verdict.OK
        for policy in (found.root / "sys/devices/system/cpu/cpufreq").glob("policy*"):
            (policy / "scaling_governor").write_text("performance\n")
        assert "schedutil" in one(board.governors, found).remedy

    def test_a_jetson_without_a_power_mode_is_a_warning(self, tmp_path):
        found = machine(tmp_path, "orin-nano-r36")
        status = found.root / "var/lib/nvpmodel/status"
        status.unlink(missing_ok=True)
        assert one(board.power_mode, found).state is Verdict.WARNING
        write(found, "var/lib/nvpmodel/status", "pmode:0001\n")
        assert one(board.power_mode, found).text.startswith("mode 0001")

    def test_disabled_idle_states_are_a_warning(self, tmp_path):
        found = machine(tmp_path, "orin-nano-r36")
        disabled = list((found.root / "sys/devices/system/cpu").glob("cpu*/cpuidle/state1/disable"))
        assert disabled
        for file in disabled:
            file.write_text("1\n")
        assert "jetson_clocks" in one(board.sleep_states, found).remedy

    def test_limits_that_were_left_behind_are_a_warning(self, tmp_path):
        found = machine(tmp_path)
        assert list(board.limits(found)) == []
        write(found, "var/lib/edged/limits.journal", "{}")
        assert "edged governor restore" in one(board.limits, found).remedy


class TestCentre:
    def test_a_missing_interpreter_of_the_executors_fails(self, tmp_path, monkeypatch):
        found = machine(tmp_path)
        monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
        assert list(centre.pyspark_python(found)) == []
        monkeypatch.setenv("PYSPARK_PYTHON", "no-such-python")
        assert one(centre.pyspark_python, found).state is Verdict.FAILURE
        monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
        assert one(centre.pyspark_python, found).state is Verdict.OK

    def test_an_interpreter_of_another_version_fails(self, tmp_path, monkeypatch):
        other = tmp_path / "python2"
        other.write_text("#!/bin/sh\necho 2.7\n")
        other.chmod(0o755)
        monkeypatch.setenv("PYSPARK_PYTHON", str(other))
        assert "is Python 2.7" in one(centre.pyspark_python, machine(tmp_path)).text

    def test_missing_java_is_named_with_its_command(self, tmp_path, monkeypatch):
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
        (java,) = [f for f in centre.spark(machine(tmp_path)) if f.name == "java"]
        assert (java.state, "install" in java.remedy) == (Verdict.OPTIONAL, True)

    def test_a_collector_that_does_not_answer_is_a_warning(self, tmp_path, monkeypatch):
        monkeypatch.setenv("EDGED_UPLINK__URL", "http://127.0.0.1:1")
        found = machine(tmp_path, config=read(None)[0])
        assert one(centre.uplink, found).state is Verdict.WARNING

    def test_nothing_runs_on_an_empty_machine(self, tmp_path):
        found = machine(tmp_path)
        assert one(services.door, found).state is Verdict.OPTIONAL
        assert one(services.api, found).state is Verdict.OPTIONAL


def test_every_area_has_checks_and_they_come_in_its_order():
    areas = [area for area, _ in load()]
    assert list(dict.fromkeys(areas)) == list(AREAS)


def test_the_command_reports_a_simulated_board_as_json(tmp_path):
    command = [sys.executable, "-m", "edged", "doctor", "--board", "simulated:orin-nano", "--json"]
    done = subprocess.run(
        [*command, "--store", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    document = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert document["ok"] is True
    (rail,) = [f["text"] for f in document["findings"] if f["name"] == "input"]
    assert rail.endswith("simulated")


def test_a_report_is_written_and_printed_and_a_skeleton_is_made_of_it(tmp_path, monkeypatch):
    monkeypatch.setattr(base, "CHECKS", [])
    monkeypatch.setenv("USER", "thermal-lab")
    tree, file = tmp_path / "thermal-lab", tmp_path / "board.json"
    trees.plant(tree, "xavier-nx-r35")
    options = ["--board", str(tree), "--store", str(tmp_path / "thermal-lab/store")]
    done = CliRunner().invoke(doctor.command, [*options, "--report", str(file), "--json"])
    assert done.exit_code == 0, done.output
    assert done.output == file.read_text()
    assert "thermal-lab" not in done.output
    assert json.loads(done.output)["board"]["name"] == "xavier-nx"
    made = CliRunner().invoke(board_command, ["--template", str(file)])
    assert profile_reader.parse(made.output, "made").name == "xavier-nx"
    file.write_text("{}")
    refused = CliRunner().invoke(board_command, ["--template", str(file)])
    assert "no report of `edged doctor --report`" in str(refused.exception)


def test_the_help_says_what_a_report_holds():
    told = CliRunner().invoke(doctor.command, ["--help"]).output
    for word in ("model", "kernel", "power sensors", "no host or user names", "tokens"):
        assert word in " ".join(told.split())


def test_a_failure_is_exit_code_1_and_has_its_remedy(tmp_path):
    file = tmp_path / "edged.toml"
    file.write_text("[store]\nbytes = 1\n")
    command = [sys.executable, "-m", "edged", "doctor", "--config", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1, done.stderr
    assert f"→ edged validate {file}" in done.stdout


def test_every_installation_ends_with_the_doctor():
    root = Path(__file__).parents[2]
    for name in ("deploy/setup.sh", "deploy/install.sh", "deploy/debian/postinst"):
        lines = [line for line in (root / name).read_text().splitlines() if "edged" in line]
        assert "edged doctor" in lines[-1], name
    for name in ("docs/install.md", "README.md"):
        assert "\nedged doctor" in (root / name).read_text(), name
