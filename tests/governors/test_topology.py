"""The cores and clocks of a machine, as its tree has them."""

from governors.detect import detect
from governors.sysfs import Sysfs
from governors.topology import topology
from tests.governors import trees
from tests.governors.trees import Tree

CPU = "/sys/devices/system/cpu"


def found(sysfs):
    return topology(sysfs, detect(sysfs))


def test_a_table_of_clocks_and_a_range_are_told_apart(tmp_path):
    steps = found(trees.plant(tmp_path / "acpi", "x86-acpi-cpufreq"))
    span = found(trees.plant(tmp_path / "pstate", "x86-intel-pstate"))
    assert {d.table_hz for d in steps.domains} == {tuple(k * 1000 for k in trees.ACPI_KHZ)}
    assert {d.table_hz for d in span.domains} == {()}
    assert all(d.floor_hz < d.ceiling_hz for d in span.domains)
    assert {core for d in span.domains for core in d.cores} == set(span.online)


def test_threads_of_a_core_are_not_counted_as_cores(tmp_path):
    tree = Tree({"/proc/cpuinfo": "model name\t: Example 9\nmodel name\t: Example 9\n"})
    tree.add(CPU, online="0-3")
    for core in range(4):
        listed = "0,2" if core % 2 == 0 else "1,3"
        tree.add(f"{CPU}/cpu{core}/topology", thread_siblings_list=listed)
    cores = found(tree.plant(tmp_path))
    assert (cores.physical, cores.text) == (2, "2 cores, 4 threads: Example 9")
    (domain,) = cores.domains
    assert domain.cores == (0, 1, 2, 3) and domain.ceiling_hz is None, "no clock is shown"


def test_an_empty_tree_has_no_cores_and_no_figures(tmp_path):
    cores = found(Sysfs(tmp_path))
    assert (cores.online, cores.physical, cores.domains) == ((), None, ())
    assert cores.text == "cores not known"
