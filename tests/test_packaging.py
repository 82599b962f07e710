"""The Debian package: its scripts with and without Debian's helpers, its units, its files.

Scripts run with stubs in the place of programs; a stub records its arguments.
"""

import ast
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
UNITS = ["edged.service", "edged-api.service", "edged.socket", "edged-governor-helper.socket"]


@pytest.fixture
def machine(tmp_path):
    """Runs a script with stubs only; returns the recorded calls, a line each."""
    programs, notes = tmp_path / "bin", tmp_path / "notes"
    programs.mkdir()

    def have(*names, code=0):
        for name in names:
            stub = programs / name
            stub.write_text(
                f'#!{shutil.which("sh")}\necho "${{0##*/}} $*" >>{notes}\nexit {code}\n'
            )
            stub.chmod(0o755)

    def run(script, *arguments):
        notes.write_text("")
        words = [shutil.which("sh"), str(ROOT / "deploy/debian" / script), *arguments]
        done = subprocess.run(words, env={"PATH": str(programs)}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return notes.read_text().splitlines()

    have("systemd-sysusers", "systemd-tmpfiles", "runuser", "systemctl", "udevadm")
    return have, run


@pytest.mark.skipif(os.path.isdir("/run/systemd/system"), reason="systemd runs here")  # noqa: PTH112
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
