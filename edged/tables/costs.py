"""What probes and merges of table states cost on this machine, and what energy costs now.

`edged calibrate` measures the two constants and keeps them in the store, in `tables.json`:

    {"format": 1, "probe_ns": x, "merge_ns": y}

Energy has a price that changes: `MergePricing.share` says what a second of work costs now, beside a
second on battery in which the board is awake for it alone.  What probes pay and what merges cost is
multiplied by it (`edged.tables.compaction`), so that both are joules: debts that were made on
battery are paid with energy from the mains, and with time in which the board is awake anyway.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from edged.platform.disk import SystemDisk, replace_file

FILE, FORMAT = "tables.json", 1
PROBE_NS = 150.0
"""Time that a probed key takes for each run more that has a row of it, where it is not measured."""
MERGE_NS = 100.0
"""Time that a row takes in a merge, where it is not measured."""


@dataclass(slots=True)
class MergePricing:
    """The constants of this machine and the price of energy now, for all states of a daemon."""

    probe_ns: float = PROBE_NS
    merge_ns: float = MERGE_NS
    calibrated: bool = False
    share: float = 1.0
    """What a second of work costs now, beside one on battery in a board that sleeps otherwise."""
    watts: float | None = None
    """Power of one busy core above idle (W), where it is known."""
    why: str = ""
    """Why the price is what it is."""
    states: int = 0
    """States that go by it; nothing reads the price of energy for none."""

    @property
    def cheap(self) -> bool:
        """Whether work costs less now than at other times."""
        return self.share < 1

    def note(self) -> str:
        """The price as text."""
        return f"a joule counts as {self.share:.2f}" + (f": {self.why}" if self.why else "")

    def joules(self, paid_ns: float) -> float | None:
        """Joules of so much priced time; None where the watts are not known."""
        return None if self.watts is None else paid_ns / 1e9 * self.watts


def load_costs(directory: Path) -> MergePricing:
    """The constants of a store, or the defaults where `edged calibrate` was not run on it."""
    try:
        document = json.loads((directory / FILE).read_text())
        if document["format"] == FORMAT:
            return MergePricing(float(document["probe_ns"]), float(document["merge_ns"]), True)
    except (OSError, ValueError, KeyError, TypeError):  # a file of another version counts as none
        pass
    return MergePricing()


def save_costs(costs: MergePricing, directory: Path) -> Path:
    """Keep the constants in a store; returns the file."""
    document = {"format": FORMAT, "probe_ns": costs.probe_ns, "merge_ns": costs.merge_ns}
    path = directory / FILE
    replace_file(SystemDisk(), str(path), [json.dumps(document).encode()])
    return path


def outline(costs: MergePricing) -> str:
    """The constants as a line."""
    source = "measured here" if costs.calibrated else "not measured: `edged calibrate` does"
    return (
        f"tables: a key probed pays {costs.probe_ns:.0f} ns for each run more, a merge costs "
        f"{costs.merge_ns:.0f} ns a row ({source})"
    )
