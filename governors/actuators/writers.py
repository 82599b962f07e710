"""Writers of a board's files: this process where it may, else the root helper, else none."""

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
        """Reason of the choice, for users."""

    def refusal(self, path: str) -> str:
        """Why it would not write the path; empty where it would."""

    def write(self, path: str, text: str) -> None:
        """Write.  Raises SysfsError with the kernel's errno, NotPermitted without permission."""

    def close(self) -> None:
        """Release connections; a later write opens them again."""


class Direct:
    """Writes from this process."""

    name = "direct"

    def __init__(self, sysfs: Sysfs, why: str = "this process may write") -> None:
        self._sysfs, self.why = sysfs, why

    def refusal(self, path: str) -> str:
        """Why the kernel would refuse the write."""
        return refusal(self._sysfs, path)

    def write(self, path: str, text: str) -> None:
        """Write."""
        put(self._sysfs, path, text)

    def close(self) -> None:
        """Nothing to release."""


class NoWriter:
    """Refuses every write."""

    name = "none"

    def __init__(self, why: str) -> None:
        self.why = why

    def refusal(self, path: str) -> str:
        """The same reason for every path."""
        del path
        return self.why

    def write(self, path: str, text: str) -> None:
        """Raises NotPermitted."""
        raise NotPermitted(f"{path} cannot be set to {text}: {self.why}")

    def close(self) -> None:
        """Nothing to release."""


def choose_writer(sysfs: Sysfs, settings: Sequence[Setting], helper_socket: Path) -> Writer:
    """The writer for the files of `settings`: one that may write all, else the one that may write
    most.  Blocks until the helper replies."""
    direct = _direct(sysfs, settings)
    if not isinstance(direct, _Lacking):
        return direct
    try:
        return _best(direct, HelperWriter(helper_socket, settings), sysfs)
    except NotPermitted as problem:
        return direct.without(str(problem), sysfs)


class ReselectingWriter:
    """The best writer, chosen again on `look`: a helper may have started, udev may have granted
    access, or a rebound driver may have lost it."""

    def __init__(self, sysfs: Sysfs, settings: Sequence[Setting], helper_socket: Path) -> None:
        self._sysfs, self._settings, self._path = sysfs, settings, helper_socket
        self._probe = HelperProbe(helper_socket)
        self._writer = choose_writer(sysfs, settings, helper_socket)

    @property
    def name(self) -> str:
        """Name of the current writer."""
        return self._writer.name

    @property
    def why(self) -> str:
        """Reason of the choice."""
        return self._writer.why

    def refusal(self, path: str) -> str:
        """Why the current writer would not write the path."""
        return self._writer.refusal(path)

    def write(self, path: str, text: str) -> None:
        """Write."""
        self._writer.write(path, text)

    def close(self) -> None:
        """Release connections."""
        self._writer.close()
        self._probe.close()

    def look(self) -> None:
        """Choose again where not every file may be written.  Does not block: a helper queried now
        is considered from the next call on."""
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
    """Files that this process may not write."""

    paths: tuple[str, ...]
    """All files of the settings."""
    refusals: tuple[str, ...]
    """Reasons, one per refused file."""

    def without(self, helper: str, sysfs: Sysfs) -> Writer:
        """The writer without a helper; `helper`: why there is none."""
        more = f" (and {len(self.refusals) - 1} more)" if len(self.refusals) > 1 else ""
        if len(self.refusals) < len(self.paths):
            why = f"this process may write the rest, but {self.refusals[0]}{more}; {helper}"
            return Direct(sysfs, why)
        return NoWriter(f"{self.refusals[0]}{more}; {helper}")


def _direct(sysfs: Sysfs, settings: Sequence[Setting]) -> Writer | _Lacking:
    """A writer of this process where it may write everything."""
    if not settings:
        return NoWriter("this board has nothing that can be set")
    paths = tuple(path for setting in settings for path in setting.files().values())
    refusals = tuple(why for path in paths if (why := refusal(sysfs, path)))
    if refusals:
        return _Lacking(paths, refusals)
    return Direct(sysfs, "this process may write: it is root, or udev gave its group access")


def _best(direct: _Lacking, helper: HelperWriter, sysfs: Sysfs) -> Writer:
    """The writer that may write more."""
    refused = _refusals(helper, direct.paths)
    if len(refused) < len(direct.refusals):
        return helper
    helper.close()
    return direct.without(refused[0] if refused else "", sysfs)


def _refusals(writer: Writer, paths: Sequence[str]) -> list[str]:
    return [why for path in paths if (why := writer.refusal(path))]
