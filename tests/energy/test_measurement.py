"""`edged measure`: joules are the meters', other figures are counted, the command is untouched."""

import json
import os
import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.energy.measurement import CORES_APART, Span, watts_per_core
from edged.energy.process_times import between, snapshot, tree_cpu_s
from governors import interrupts
from governors.energy import Provenance, Rail, RailEnergy
from governors.sysfs import Sysfs
from tests.governors import trees

PSYS = "sys/devices/virtual/powercap/intel-rapl/intel-rapl:1/energy_uj"
X86 = """\
            CPU0       CPU1
 24:          1          0  IO-APIC   5-edge      ACPI:Ged
 36:          0      34288 PCI-MSIX-0000:00:02.0   1-edge      nvme0q1
LOC:      38957      82134   Local timer interrupts
ERR:          0
"""
ARM = """\
           CPU0       CPU1       CPU2
 11:       1000       2000       3000     GICv3  30 Level     arch_timer
 62:          5          0          0     GICv3 208 Level     mmc0
IPI0:         7          8          9       Rescheduling interrupts
Err:          0
"""


def measure(*arguments, tree="/"):
    """The finished process of `edged measure`, and its document."""
    command = [sys.executable, "-m", "edged", "measure", "--baseline", "0", "--board", str(tree)]
    out = [*command, "--json", "-", *arguments]
    done = subprocess.run(out, capture_output=True, text=True, timeout=120, check=False)
    start = done.stdout.find("{\n")
    return done, json.loads(done.stdout[start:]) if start >= 0 else None


class TestJoules:
    def test_a_counter_that_the_command_raises_gives_its_joules(self, tmp_path):
        trees.plant(tmp_path, "x86-intel-pstate")
        counter = tmp_path / PSYS
        counter.chmod(0o600)
        raised = int(counter.read_text()) + 7_000_000
        done, document = measure("--", "sh", "-c", f"echo {raised} >{counter}", tree=tmp_path)
        assert done.returncode == 0, done.stderr
        (psys,) = (r for r in document["rails"] if r["rail"] == "psys")
        assert psys["joules"] == pytest.approx(7.0)
        assert psys["provenance"] == "measured"

    def test_a_machine_without_a_meter_reports_no_joules(self, tmp_path):
        trees.plant(tmp_path, "no-control")
        done, document = measure("--", "true", tree=tmp_path)
        assert done.returncode == 0
        assert document["input"] is document["above_baseline_j"] is None
        assert "joules: not known" in done.stderr

    def test_a_simulated_boards_joules_say_so(self):
        done, document = measure("--", "true", tree="simulated:orin-nano")
        assert document["input"]["provenance"] == "simulated", done.stderr

    @given(st.floats(0, 50), st.floats(0.1, 20), st.floats(0, 8), st.floats(CORES_APART * 1.01, 8))
    def test_two_points_of_a_line_give_its_slope(self, idle_w, core_w, cores, more):
        found = watts_per_core(
            _span(idle_w + core_w * cores, cores),
            _span(idle_w + core_w * (cores + more), cores + more),
        )
        assert found == pytest.approx(core_w, rel=1e-6)

    @pytest.mark.parametrize(("watts", "cores"), [(9.0, 1.0 + CORES_APART / 2), (4.0, 3.0)])
    def test_two_equal_loads_and_a_falling_line_give_none(self, watts, cores):
        assert watts_per_core(_span(5.0, 1.0), _span(watts, cores)) is None


def _span(watts, cores, seconds=2.0):
    rail = RailEnergy(Rail("all", ("input",)), watts * seconds, Provenance.MEASURED, 0, 2_000_000)
    return Span(seconds, rail, None, {}, cores * seconds)


class TestTheCommand:
    def test_its_output_and_exit_code_are_its_own(self):
        done, document = measure("--", "sh", "-c", "echo said; exit 3")
        assert done.stdout.startswith("said\n")
        assert done.returncode == document["exit_code"] == 3

    def test_a_signal_is_128_and_its_number(self):
        done, _ = measure("--", "sh", "-c", "kill -9 $$")
        assert done.returncode == 128 + signal.SIGKILL

    def test_repetitions_end_with_the_first_failure(self, tmp_path):
        count = tmp_path / "count"
        script = f"echo >>{count}; test $(wc -l <{count}) -lt 3"
        done, document = measure("--repeat", "9", "--", "sh", "-c", script)
        assert (done.returncode, document["runs"]) == (1, 3)

    def test_one_that_is_not_there_is_named(self):
        done, _ = measure("--", "no-such-command")
        assert done.returncode == 78
        assert "no-such-command: cannot be started" in done.stderr


class TestProcesses:
    def test_cpu_time_is_what_the_process_used(self):
        before = snapshot()
        script = "while sum(__import__('os').times()[:2]) < 0.3: pass\nprint(flush=True)\ninput()"
        child = subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        child.stdout.readline()
        (found,) = (p for p in between(before, snapshot()) if p.pid == child.pid)
        alive = tree_cpu_s(child.pid)
        child.communicate(b"\n")
        assert 0.3 <= found.cpu_s <= alive < 1.0
        assert not [p for p in between(before, snapshot(), [os.getpid()]) if p.pid == os.getpid()]


class TestInterrupts:
    @pytest.mark.parametrize(
        ("text", "counts"),
        [
            (X86, {"ACPI:Ged": 1, "nvme0q1": 34288, "Local timer interrupts": 121091}),
            (ARM, {"arch_timer": 6000, "mmc0": 5, "Rescheduling interrupts": 24}),
        ],
    )
    def test_each_source_has_the_sum_of_its_cores(self, tmp_path, text, counts):
        assert interrupts.read(_proc(tmp_path, text)) == counts

    @given(st.text(st.sampled_from("0123456789 :\nCPU edge"), max_size=200))
    def test_any_text_is_read(self, tmp_path_factory, text):
        counts = interrupts.read(_proc(tmp_path_factory.mktemp("proc"), text))
        assert all(count >= 0 for count in counts.values())

    def test_rates_are_of_what_rose(self):
        assert interrupts.per_s({"a": 5, "b": 9}, {"a": 7, "b": 9, "c": 8}, 2) == {"c": 4, "a": 1}


def _proc(root, text):
    (root / "proc").mkdir()
    (root / "proc/interrupts").write_text(text)
    return Sysfs(root)
