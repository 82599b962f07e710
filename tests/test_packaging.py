"""The Debian package: its scripts with and without Debian's helpers, its units, its files.

Scripts run with stubs in the place of programs; a stub records its arguments.
"""

import ast
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NO_SYSTEMD = pytest.mark.skipif(
    Path("/run/systemd/system").is_dir(), reason="systemd runs here, and its units would be started"
)
UNITS = ["edged.service", "edged-api.service", "edged.socket", "edged-governor-helper.socket"]


@pytest.fixture
def machine(tmp_path):
    """Runs a script with stubs only; returns the recorded calls, a line each.

    The script's root is `tmp_path / "root"`, and files are moved there by the real programs.
    """
    programs, notes, root = tmp_path / "bin", tmp_path / "notes", tmp_path / "root"
    programs.mkdir()
    (root / "opt/edged/libexec").mkdir(parents=True)
    (root / "usr/lib/systemd/system").mkdir(parents=True)

    def stub(path, code):
        path.write_text(f'#!{shutil.which("sh")}\necho "${{0##*/}} $*" >>{notes}\nexit {code}\n')
        path.chmod(0o755)

    def have(*names, code=0):
        for name in names:
            stub(programs / name, code)

    def run(script, *arguments, status=0):
        notes.write_text("")
        words = [shutil.which("sh"), str(ROOT / "deploy/debian" / script), *arguments]
        environ = {"PATH": str(programs), "DPKG_ROOT": str(root)}
        done = subprocess.run(words, env=environ, capture_output=True, text=True)
        assert done.returncode == status, done.stderr
        return notes.read_text().splitlines()

    have("systemd-sysusers", "systemd-tmpfiles", "runuser", "systemctl", "udevadm")
    for name in ("mkdir", "mv", "cp", "rm", "find"):
        (programs / name).symlink_to(shutil.which(name))
    stub(root / "opt/edged/libexec/prepare", 0)
    return have, run


def version(root, number):
    """Lay out a version of the package, as dpkg's unpacking does: files are replaced."""
    for path in ("opt/edged/version", "usr/lib/systemd/system/edged.service"):
        (root / path).unlink(missing_ok=True)
        (root / path).write_text(number)


def versions(root):
    return [(root / path).read_text()
            for path in ("opt/edged/version", "usr/lib/systemd/system/edged.service")]  # fmt: skip


@NO_SYSTEMD
def test_an_upgrade_that_fails_puts_the_version_before_it_back_and_can_be_tried_again(
    machine, tmp_path
):
    have, run = machine
    root = tmp_path / "root"
    version(root, "1")
    run("preinst", "upgrade", "1")
    version(root, "2")
    have("runuser", code=1)  # kernels cannot be compiled
    for _ in range(2):
        said = run("postinst", "configure", "1", status=1)
        assert not [line for line in said if line.startswith("systemctl")], "no unit was touched"
        assert versions(root) == ["1", "1"]
    have("runuser")
    run("postinst", "configure", "1")
    assert versions(root) == ["2", "2"]
    assert sorted(path.name for path in (root / "opt").iterdir()) == ["edged"]


@NO_SYSTEMD
def test_an_upgrade_after_one_that_failed_keeps_the_version_that_works(machine, tmp_path):
    have, run = machine
    root = tmp_path / "root"
    version(root, "1")
    for number in ("2", "3"):
        run("preinst", "upgrade", "1")
        version(root, number)
        have("runuser", code=1)
        run("postinst", "configure", "1", status=1)
        assert versions(root) == ["1", "1"]


@NO_SYSTEMD
def test_a_first_installation_that_fails_enables_nothing_and_leaves_no_cache(machine, tmp_path):
    have, run = machine
    (tmp_path / "root/var/cache/edged/numba").mkdir(parents=True)
    (tmp_path / "root/opt/edged/lib/__pycache__").mkdir(parents=True)
    have("runuser", code=1)
    said = run("postinst", "configure", status=1)
    assert not [line for line in said if line.startswith("systemctl")]
    assert not (tmp_path / "root/var/cache/edged").exists()
    assert not (tmp_path / "root/opt/edged/lib/__pycache__").exists()


def environment_of(tmp_path, *pythons):
    """An environment with its preparation, for versions of Python."""
    home = tmp_path / "edged"
    for name in ("bin", "libexec"):
        (home / name).mkdir(parents=True)
    shutil.copy(ROOT / "deploy/debian/prepare", home / "libexec/prepare")
    (home / "bin/python3").symlink_to(sys.executable)
    for python in pythons:
        (home / f"lib/python{python}/site-packages").mkdir(parents=True)
        (home / f"lib/python{python}/site-packages/a.py").write_text("a = 1\n")
    return home


def prepare(home, *arguments):
    words = [home / "libexec/prepare", *arguments]
    return subprocess.run(words, capture_output=True, text=True)


def test_after_an_upgrade_of_python_a_start_compiles_its_bytecode_once(tmp_path):
    home = environment_of(tmp_path, "{}.{}".format(*sys.version_info))
    bytecode = home / "lib/python{}.{}/site-packages/__pycache__".format(*sys.version_info)
    assert prepare(home, "--always").returncode == 0
    assert len(list(bytecode.iterdir())) == 1
    shutil.rmtree(bytecode)
    assert prepare(home).stderr == "" and not bytecode.exists(), "nothing has changed"
    (home / "prepared").write_text("/usr/bin/python3.9\n")
    assert "Python has changed to" in prepare(home).stderr
    assert bytecode.exists()
    assert prepare(home).stderr == ""


def test_a_python_that_the_package_is_not_for_is_named(tmp_path):
    done = prepare(environment_of(tmp_path, "3.9"))
    assert done.returncode == 78
    assert done.stderr.endswith("this package is for: python3.9 \n")


@NO_SYSTEMD
def test_without_debians_helpers_units_are_enabled_the_first_time_and_left_alone_later(machine):
    """`make install` runs on such machines."""
    _, run = machine
    assert f"systemctl enable {' '.join(UNITS)}" in run("postinst", "configure")
    assert not [said for said in run("postinst", "configure", "yes") if "enable" in said]


def test_with_them_what_an_administrator_has_disabled_stays_so(machine):
    have, run = machine
    have("deb-systemd-helper", code=0)
    said = run("postinst", "configure", "0.1")
    assert [f"deb-systemd-helper enable {unit}" in said for unit in UNITS] == [True] * 4
    assert not [line for line in said if line.startswith("systemctl enable")]


SYSTEMD = ROOT / "deploy/systemd"
HARDENING = re.compile(
    r"(Protect|Private|Restrict|Capability|Ambient|NoNew|Lock|SystemCall|MemoryDeny|Remove|Keyring"
    r"|DevicePolicy|UMask|IPAddress|ProcSubset)"
)
TOGETHER = [
    {"PrivateDevices", "DevicePolicy"},
    {"CapabilityBoundingSet", "AmbientCapabilities", "NoNewPrivileges", "RestrictSUIDSGID"},
    {"ProtectClock", "ProtectHostname", "ProtectKernelModules", "ProtectKernelLogs",
     "ProtectControlGroups"},
    {"SystemCallFilter"},
]  # fmt: skip
"""Settings that share one comment."""


def unexplained(text):
    """Hardening lines with no comment above them, or above the group that they belong to."""
    lines = text.splitlines()
    for i, line in enumerate(lines):
        key, equals, _ = line.partition("=")
        if line.startswith("#") or not equals or not HARDENING.match(key):
            continue
        above = i - 1
        while any({key, lines[above].partition("=")[0]} <= group for group in TOGETHER):
            above -= 1
        if not lines[above].startswith("#"):
            yield line


def test_every_line_of_the_daemons_hardening_is_explained():
    text = (SYSTEMD / "edged.service").read_text()
    assert len([line for line in text.splitlines() if HARDENING.match(line)]) > 25
    assert list(unexplained(text)) == []


@pytest.mark.parametrize("unit", sorted(path.name for path in SYSTEMD.glob("edged-*.service")))
def test_other_units_are_hardened_as_the_daemon_is_or_say_why_not(unit):
    text, daemon = (SYSTEMD / unit).read_text(), (SYSTEMD / "edged.service").read_text()
    assert "edged.service explains" in text
    assert [line for line in unexplained(text) if f"\n{line}\n" not in daemon] == []


def tree():
    """The module `deploy/debian/tree.py`."""
    spec = importlib.util.spec_from_file_location("tree", ROOT / "deploy/debian/tree.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def imported(name):
    """The modules that a file imports, also within functions."""
    for node in ast.walk(ast.parse((ROOT / name).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_a_device_gets_no_benches_and_misses_none():
    names = {name for name in tree().own_files() if name.endswith(".py")}
    assert "edged/daemon/daemon.py" in names
    everything = {str(p.relative_to(ROOT)) for top in tree().PACKAGES
                  for p in (ROOT / top).rglob("*.py")}  # fmt: skip
    left_out = {
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in everything - names
    }
    assert {"edged.bench.e2e", "edged.demo.story", "governors.fit_nano"} <= left_out
    needed = {(name, module) for name in names for module in imported(name)}
    assert [pair for pair in sorted(needed) if pair[1] in left_out] == []
