"""Who writes: this process where it may, else the root helper, else nobody."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from governors.actuators._helper_client import HelperWriter
from governors.actuators.base import Setting, put, refusal
from governors.errors import NotPermitted
from governors.sysfs import Sysfs


class Writer(Protocol):
    """Writes the board's files."""

    @property
    def name(self) -> str:
        """direct, helper or none."""

    @property
    def why(self) -> str:
        """Why it was chosen, for people."""

    def refusal(self, path: str) -> str:
        """Why it would not write there; empty where it would."""

    def write(self, path: str, text: str) -> None:
        """Write.  Raises SysfsError as the kernel answers, NotPermitted without the right."""

    def close(self) -> None:
        """Nothing more will be written for now."""


class Direct:
    """This process."""

    name = "direct"

    def __init__(self, sysfs: Sysfs, why: str = "this process may write") -> None:
        self._sysfs, self.why = sysfs, why

    def refusal(self, path: str) -> str:
        """Why the kernel would not let it."""
        return refusal(self._sysfs, path)

    def write(self, path: str, text: str) -> None:
        """Write."""
        put(self._sysfs, path, text)

    def close(self) -> None:
        """Holds nothing."""


class Nobody:
    """Nothing may be written."""

    name = "none"

    def __init__(self, why: str) -> None:
        self.why = why

    def refusal(self, path: str) -> str:
        """Always the same."""
        del path
        return self.why

    def write(self, path: str, text: str) -> None:
        """Raises NotPermitted."""
        raise NotPermitted(f"{path} cannot be set to {text}: {self.why}")

    def close(self) -> None:
        """Holds nothing."""


def choose_writer(sysfs: Sysfs, settings: Sequence[Setting], helper_socket: Path) -> Writer:
    """Who may write the files of `settings`: all of them if that can be, else as many as can."""
    if not settings:
        return Nobody("there is nothing on this board that could be set")
    paths = [path for setting in settings for path in setting.files().values()]
    refusals = [why for path in paths if (why := refusal(sysfs, path))]
    if not refusals:
        return Direct(sysfs, "this process may write: it is root, or udev gave its group access")
    try:
        helper = HelperWriter(helper_socket, settings)
        if sum(not helper.refusal(path) for path in paths) > len(paths) - len(refusals):
            return helper
        helper.close()
        without = f"the helper at {helper_socket} may no more"
    except NotPermitted as problem:
        without = str(problem)
    more = f" (and {len(refusals) - 1} more)" if len(refusals) > 1 else ""
    if len(refusals) < len(paths):
        return Direct(sysfs, f"this process may write the rest, but {refusals[0]}{more}; {without}")
    return Nobody(f"{refusals[0]}{more}; {without}")
