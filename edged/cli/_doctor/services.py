"""Daemon and API that run now."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from edged.cli._doctor.base import ANSWER_S, Finding, Machine, check, ok, optional, warning

UNITS = ("edged.service", "edged-api.service")
API_SOCKET = "run/edged/api.sock"
FOLDERS = ("usr/lib/systemd/system", "etc/systemd/system")


@check("services")
def units(machine: Machine) -> Iterator[Finding]:
    """The units of the package."""
    if not (machine.root / "run/systemd/system").is_dir() or shutil.which("systemctl") is None:
        return
    for unit in UNITS:
        if not any(
            (machine.root / d / unit).exists()
            for d in ("usr/lib/systemd/system", "etc/systemd/system")
        ):
            continue
        done = subprocess.run(
            ["systemctl", "is-active", unit], capture_output=True, text=True, check=False
        )
        state = done.stdout.strip() or "unknown"
        if state == "active":
            yield ok(unit, state)
        else:
            yield warning(unit, state, f"systemctl status {unit}")


@check("services")
def door(machine: Machine) -> Iterator[Finding]:
    """A daemon on the store."""
    path = Path(machine.config.run.door or machine.store / "door")
    yield _answering("daemon", path, f"no daemon answers at {path}")


@check("services")
def api(machine: Machine) -> Iterator[Finding]:
    """The API's socket."""
    path = machine.root / API_SOCKET
    yield _answering("api", path, f"no API answers at {path}")


def _answering(name: str, path: Path, absent: str) -> Finding:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(ANSWER_S)
        try:
            client.connect(str(path))
        except PermissionError:
            return warning(name, f"{path}: this user may not use it", "sudo, or the group edged")
        except OSError:
            return optional(name, absent)
    return ok(name, f"answers at {path}")
