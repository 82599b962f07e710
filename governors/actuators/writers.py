"""Who writes: this process where it may, else the root helper, else nobody."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from governors.actuators._helper_client import HelperProbe, HelperWriter
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


class NoWriter:
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
    """Who may write the files of `settings`: all of them if that can be, else as many as can.
    A helper is waited for."""
    direct = _direct(sysfs, settings)
    if not isinstance(direct, _Lacking):
        return direct
    try:
        return _best(direct, HelperWriter(helper_socket, settings), sysfs)
    except NotPermitted as problem:
        return direct.without(str(problem), sysfs)


class ReselectingWriter:
    """Whoever may write, looked for again when somebody asks for that (`look`): a helper that was
    started later, rights that udev gave later or that a driver which was bound anew has lost."""

    def __init__(self, sysfs: Sysfs, settings: Sequence[Setting], helper_socket: Path) -> None:
        self._sysfs, self._settings, self._path = sysfs, settings, helper_socket
        self._probe = HelperProbe(helper_socket)
        self._writer = choose_writer(sysfs, settings, helper_socket)

    @property
    def name(self) -> str:
        """Of who writes now."""
        return self._writer.name

    @property
    def why(self) -> str:
        """Why it was chosen."""
        return self._writer.why

    def refusal(self, path: str) -> str:
        """Why who writes now would not write there."""
        return self._writer.refusal(path)

    def write(self, path: str, text: str) -> None:
        """Write."""
        self._writer.write(path, text)

    def close(self) -> None:
        """Nothing more will be written for now."""
        self._writer.close()
        self._probe.close()

    def look(self) -> None:
        """Choose again where not everything may be written.  Waits for nobody: a helper that is
        asked now counts from the next look on."""
        direct = _direct(self._sysfs, self._settings)
        if not isinstance(direct, _Lacking):
            self._take(direct)
        elif self._writer.name == HelperWriter.name and not _refusals(self._writer, direct.paths):
            return
        elif permissions := self._probe.look():
            helper = HelperWriter(self._path, self._settings, permissions)
            self._take(_best(direct, helper, self._sysfs))

    def _take(self, writer: Writer) -> None:
        if (writer.name, writer.why) != (self._writer.name, self._writer.why):
            self._writer.close()
            self._writer = writer


@dataclass(frozen=True, slots=True)
class _Lacking:
    """What this process may not write itself."""

    paths: tuple[str, ...]
    """All that could be written."""
    refusals: tuple[str, ...]
    """Why not, of each that it may not."""

    def without(self, helper: str, sysfs: Sysfs) -> Writer:
        """Who writes without a helper; `helper`: why there is none."""
        more = f" (and {len(self.refusals) - 1} more)" if len(self.refusals) > 1 else ""
        if len(self.refusals) < len(self.paths):
            why = f"this process may write the rest, but {self.refusals[0]}{more}; {helper}"
            return Direct(sysfs, why)
        return NoWriter(f"{self.refusals[0]}{more}; {helper}")


def _direct(sysfs: Sysfs, settings: Sequence[Setting]) -> Writer | _Lacking:
    """This process, where it may write everything."""
    if not settings:
        return NoWriter("there is nothing on this board that could be set")
    paths = tuple(path for setting in settings for path in setting.files().values())
    refusals = tuple(why for path in paths if (why := refusal(sysfs, path)))
    if refusals:
        return _Lacking(paths, refusals)
    return Direct(sysfs, "this process may write: it is root, or udev gave its group access")


def _best(direct: _Lacking, helper: HelperWriter, sysfs: Sysfs) -> Writer:
    """Whoever of the two may write more."""
    refused = _refusals(helper, direct.paths)
    if len(refused) < len(direct.refusals):
        return helper
    helper.close()
    return direct.without(refused[0] if refused else "", sysfs)


def _refusals(writer: Writer, paths: Sequence[str]) -> list[str]:
    return [why for path in paths if (why := writer.refusal(path))]
