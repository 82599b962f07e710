"""The CPUs that workers are placed on: `run.cpus`, the affinity, and the control group's limit."""

import os
import subprocess
import sys

import pytest

from edged.platform.cpus import cpu_limit, parse_cpus, worker_count


def group(root, path, **files):
    place = root / path
    place.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (place / name.replace("_", ".", 1)).write_text(text)


@pytest.fixture
def own(tmp_path):
    file = tmp_path / "cgroup"
    file.write_text("0::/system.slice/edged.service\n")
    return file


def test_a_list_is_read_as_the_kernel_writes_it():
    assert parse_cpus("0-3,6") == {0, 1, 2, 3, 6}


@pytest.mark.parametrize("text", ["", "a", "3-1", "0-", "-1", "0-99999", "1;2"])
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError, match="CPUs"):
        parse_cpus(text)


def test_the_tightest_group_on_the_way_up_counts(tmp_path, own):
    root = tmp_path / "fs"
    group(root, "system.slice", cpu_max="150000 100000\n")
    group(root, "system.slice/edged.service", cpu_max="max 100000\n")
    assert cpu_limit(own, root) == 1.5
    assert worker_count(own, root) == 1
    group(root, "system.slice/edged.service", cpu_max="20000 100000\n")
    assert cpu_limit(own, root) == 0.2 and worker_count(own, root) == 1


def test_without_a_limit_it_is_the_affinity(tmp_path, own):
    group(tmp_path / "fs", "system.slice/edged.service", cpu_max="max 100000\n")
    assert cpu_limit(own, tmp_path / "fs") is None
    assert worker_count(own, tmp_path / "fs") == len(os.sched_getaffinity(0))
    assert cpu_limit(tmp_path / "none", tmp_path / "fs") is None


def test_version_1_has_it_in_two_files(tmp_path):
    own, root = tmp_path / "cgroup", tmp_path / "fs"
    own.write_text("4:cpu,cpuacct:/box\n1:name=systemd:/\n")
    place = root / "cpu" / "box"
    place.mkdir(parents=True)
    (place / "cpu.cfs_quota_us").write_text("200000\n")
    (place / "cpu.cfs_period_us").write_text("100000\n")
    assert cpu_limit(own, root) == 2.0


def test_run_cpus_confines_the_process_and_its_children():
    last = max(os.sched_getaffinity(0))
    code = f"""
import os, subprocess, sys
from edged.platform.cpus import confine, worker_count
confine("{last}")
child = "import os; print(sorted(os.sched_getaffinity(0)))"
print(worker_count(), subprocess.check_output([sys.executable, "-c", child], text=True))
try:
    confine("4000")
except ValueError as problem:
    print(problem)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert f"1 [{last}]" in done.stdout and "none of the CPUs 4000" in done.stdout, done.stderr
