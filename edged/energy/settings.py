"""Energy settings of `edged run`, from its flags.

    --board DIR | simulated:NAME | none      default: this machine's own tree, `/`
    --power-model NAME                       default: the board's own profile, if it has one
    --policy NAME --governor KEY=VALUE       default: hands_off
    --meters FILE                            TOML, a table [meters] (`governors.meters.settings`)

The journal of limits is where root can find it: `/var/lib/edged/limits.journal` for `/`, else in
the store directory.  A simulated board's tree is the store's `board/`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edged.errors import ConfigError
from governors import board_names
from governors.base import HANDS_OFF
from governors.errors import MeterError
from governors.meters import settings as meters

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

NO_BOARD, SIMULATED = board_names.NONE, board_names.SIMULATED
JOURNAL = Path("/var/lib/edged/limits.journal")
HELPER = Path("/run/edged/governor.sock")
ALLOW = "allow"
"""Setting that belongs to no policy: clocks that are set only on request (emc)."""


@dataclass(frozen=True)
class EnergySettings:
    """Energy settings."""

    board: str = "/"
    policy: str = HANDS_OFF
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the policy."""
    allowed: tuple[str, ...] = ()
    """Optional knobs that may be set."""
    meters: meters.MeterSettings = field(default_factory=meters.MeterSettings)
    helper: Path = HELPER
    gpu_share: float = 0.5
    """Share of the GPU's time that others may use before joins keep off it; 1: no limit."""
    suspend: str = "off"
    """Whether the machine is suspended between beats: off, freeze or mem."""
    suspend_watts: float = 0.0
    """Of the suspended board's whole input; 0: its profile's."""
    power_model: str = ""
    """Name of a profile whose figures stand in for the board's; empty: the board's own, if any."""
    max_celsius: float | None = None
    """Limit of the temperature that any policy obeys; None: none but the policy's."""

    @property
    def simulated(self) -> bool:
        """Whether the board is simulated."""
        return self.board.startswith(SIMULATED)

    def root(self, store: Path) -> Path:
        """The board's tree."""
        return store / "board" if self.simulated else Path(self.board)

    def journal(self, store: Path) -> Path:
        """Path of the journal of original limits."""
        return JOURNAL if self.board == "/" else store / JOURNAL.name


def from_flags(
    board: str | None, policy: str, pairs: Sequence[str], meters_file: Path | None, helper: Path
) -> EnergySettings:
    """Settings from flags.  Raises ConfigError."""
    try:
        name = board_names.parse_board(board or "/")
    except board_names.BoardNameError as problem:
        raise ConfigError(f"--board: {problem}") from None
    settings = dict(setting(pair, "--governor") for pair in pairs)
    allowed = str(settings.pop(ALLOW, ""))
    return EnergySettings(
        name,
        policy,
        settings,
        tuple(name for name in allowed.split(",") if name),
        meters.MeterSettings() if meters_file is None else read_meters(meters_file),
        helper,
    )


def read_meters(path: Path) -> meters.MeterSettings:
    """Meter settings of a file's `[meters]` table.  Raises ConfigError."""
    try:
        return meters.parse(meters_table(path))
    except MeterError as problem:
        raise ConfigError(f"--meters {path}: {problem}") from problem


def meters_table(path: Path) -> dict[str, Any]:
    """The `[meters]` table of a file, not yet checked.  Raises ConfigError."""
    try:
        document = tomllib.loads(path.read_text())
    except (OSError, ValueError) as problem:
        raise ConfigError(f"--meters {path}: {problem}") from problem
    unknown = sorted(set(document) - {"meters"})
    if unknown:
        raise ConfigError(f"--meters {path}: {unknown[0]}: only the table [meters] belongs there")
    table: dict[str, Any] = document.get("meters", {})
    return table


def setting(pair: str, option: str) -> tuple[str, Any]:
    """Key and value of `watts=5`, `until=06:00`, `sleep=true`. Raises ConfigError."""
    key, equals, text = pair.partition("=")
    if not equals or not key:
        raise ConfigError(f"{option}: {pair!r} is not a setting; write e.g. watts=5")
    if text in ("true", "false"):
        return key, text == "true"
    try:
        return key, float(text)
    except ValueError:
        return key, text
