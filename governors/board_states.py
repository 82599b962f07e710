"""How far each board is known: one state for each of its parts.

    unknown      nothing is public, or edged does not use it
    supported    read and set as kernel and vendor document it; tests do so on a fixture tree
    simulated    the simulated board of a profile shows it too
    measured     seen on a real board, with the source in `measured` of the profile
    -            the board has no such part, or cannot run what it needs

A state includes those before it.  `python -m governors.board_states` prints the table of
docs/boards.md.
"""

from __future__ import annotations

import sys

from governors.detect import X86, boards
from governors.profile import PARTS, BoardProfile
from governors.profile_reader import UNKNOWN, load, names

SUPPORTED, SIMULATED, MEASURED, NO_PART = "supported", "simulated", "measured", "–"
STATES = (UNKNOWN, SUPPORTED, SIMULATED, MEASURED, NO_PART)
STAND_INS = {"generic-x86": "x86"}
"""Profiles that describe no one machine, and the board whose row is theirs."""
_OLD_SYSTEMS = ("jetson-nano", "tx2", "xavier-nx", "agx-xavier")
"""JetPack 4 and 5: older than Python 3.10 and glibc 2.35."""
_NO_SENSOR_NAMES = ("agx-xavier",)
"""No public source says what their rails are."""
REPORT = "edged doctor --report board.json"


def rows() -> dict[str, dict[str, str]]:
    """State by board and part, in the order of detection."""
    profiles = {STAND_INS.get(name, name): load(name) for name in names()}
    return {
        board: {part: _state(board, part, profiles.get(board)) for part in PARTS}
        for board in boards()
    }


def _state(board: str, part: str, profile: BoardProfile | None) -> str:
    if profile is not None and part in dict(profile.measured):
        return MEASURED
    return _KNOWN[part](board, profile)


def _clocks(board: str, profile: BoardProfile | None) -> str:
    del board
    return SUPPORTED if profile is None else SIMULATED


def _rails(board: str, profile: BoardProfile | None) -> str:
    if profile is not None and profile.sensor.meter != "none":
        return SIMULATED
    return UNKNOWN if board in _NO_SENSOR_NAMES else SUPPORTED


def _gpu(board: str, profile: BoardProfile | None) -> str:
    if profile is not None and profile.gpu is not None:
        return SIMULATED
    return NO_PART if board == "raspberry-pi-5" else SUPPORTED


def _thermal(board: str, profile: BoardProfile | None) -> str:
    del board
    return SUPPORTED if profile is None or profile.thermal is None else SIMULATED


def _suspend(board: str, profile: BoardProfile | None) -> str:
    if profile is not None and profile.suspend is not None:
        return SIMULATED
    return SUPPORTED if board == X86 else UNKNOWN


def _package(board: str, profile: BoardProfile | None) -> str:
    del profile
    return NO_PART if board in _OLD_SYSTEMS else SUPPORTED


_KNOWN = {
    "clocks": _clocks, "rails": _rails, "gpu": _gpu, "thermal": _thermal, "suspend": _suspend,
    "package": _package,
}  # fmt: skip


def table() -> list[str]:
    """The lines of the table."""
    lines = [f"| board | {' | '.join(PARTS)} | to know more |", "|---" * (len(PARTS) + 2) + "|"]
    for board, states in rows().items():
        unread = ", ".join(part for part, state in states.items() if state == UNKNOWN)
        more = f"{unread}: `{REPORT}`" if unread else f"`{REPORT}`"
        lines.append(f"| {board} | {' | '.join(states.values())} | {more} |")
    return lines


if __name__ == "__main__":
    sys.stdout.write("\n".join([*table(), ""]))
