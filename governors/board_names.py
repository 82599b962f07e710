"""The grammar of a board's name, in `--board` of every command and in `energy.board`.

    DIR               a real board's tree; `/` is this machine's
    simulated:NAME    the simulated board of a profile
    none              no board
    NAME              the same as simulated:NAME, where only a simulated board is possible

A directory comes first.  Where a real board is possible a bare NAME is refused, since it does not
say that all figures would be simulated; the advice is what to write.
"""

from __future__ import annotations

from pathlib import Path

from governors import profile_reader
from governors.suggestions import closest, did_you_mean

SIMULATED = "simulated:"
NONE = "none"
REAL = "DIR | simulated:NAME | none"
PROFILE = "NAME | simulated:NAME"
"""The two forms, for help texts."""
_TREE = ("sys", "proc")


class BoardNameError(ValueError):
    """A text names no board: `problem` and `advice`."""

    def __init__(self, problem: str, advice: str) -> None:
        self.problem, self.advice = problem, advice
        super().__init__(f"{problem}; {advice}")


def parse_board(text: str) -> str:
    """The text, if it is a board's tree, `simulated:NAME` or `none`.  Raises BoardNameError."""
    if text == NONE:
        return text
    if text.startswith(SIMULATED):
        _known(text.removeprefix(SIMULATED), SIMULATED)
        return text
    path = Path(text)
    if not path.is_dir():
        raise BoardNameError(*_no_directory(text))
    if not any((path / name).is_dir() for name in _TREE):
        raise BoardNameError(
            f"{text} is no board's tree: it has neither {' nor '.join(_TREE)}",
            f"name the directory above them, {SIMULATED}NAME, or {NONE}",
        )
    return text


def parse_profile(text: str) -> str:
    """The name of the profile of `NAME` or `simulated:NAME`.  Raises BoardNameError."""
    if text == NONE or "/" in text:
        raise BoardNameError(
            f"{text} is no simulated board", f"there are {', '.join(profile_reader.names())}"
        )
    return _known(text.removeprefix(SIMULATED))


def _known(name: str, prefix: str = "") -> str:
    names = profile_reader.names()
    if name not in names:
        near = closest(name, names)
        advice = f"did you mean {prefix}{near}?" if near else did_you_mean(name, names)
        raise BoardNameError(f"no board profile {name!r}", advice)
    return name


def _no_directory(text: str) -> tuple[str, str]:
    names = profile_reader.names()
    if text in names:
        return f"{text} is a profile, no directory", f"did you mean {SIMULATED}{text}?"
    kind, _, name = text.rpartition(":")
    if "/" not in text and (near := closest(name, names)) and (kind or near != name):
        return f"{text} is no directory", f"did you mean {SIMULATED}{near}?"
    if "/" not in text and closest(text, [NONE]):
        return f"{text} is no directory", f"did you mean {NONE}?"
    return f"{text} is no directory", f"name a board's tree, {SIMULATED}NAME, or {NONE}"
