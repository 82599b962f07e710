"""What the package's scripts do on a machine with or without Debian's helpers, by stubs that note
what they were called with."""

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
    """Runs a script with no programs but stubs; what they were called with, line by line."""
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
    """`make install` is for such machines, and failed there before anything was enabled."""
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
"""Lines that one comment explains."""


def unexplained(text):
    """Hardening lines without a comment right above, or above those that they belong to."""
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
    assert "explained there" in text
    assert [line for line in unexplained(text) if f"\n{line}\n" not in daemon] == []
