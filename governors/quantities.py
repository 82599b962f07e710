"""Quantities with units, in settings and options: energies, powers, times, clocks, voltages.

A number counts in the quantity's own unit (`watts = 5`).  A text is a number and a unit
(`"800mW"`, `"50 Wh"`); a text without a unit is refused, because its unit is ambiguous.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

NUMBER_MAX = 1e12
"""Largest value, so that derived hertz and microseconds fit into 64 bits."""
_TEXT = re.compile(r"([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z%]+)")


@dataclass(frozen=True, slots=True)
class Quantity:
    """A kind of number."""

    noun: str
    """With its article: `a power`."""
    unit: str
    """Of a number without one; may be empty."""
    units: Mapping[str, float] = field(default_factory=dict)
    """How many of `unit` each has."""
    examples: str = ""
    """`5W or 800mW`."""
    zero: bool = False
    """Whether 0 is allowed."""

    @property
    def described(self) -> str:
        """For documentation: `power: W, or e.g. 5W or 800mW`."""
        noun = self.noun.partition(" ")[2]
        if not self.examples:
            return noun
        return (
            f"{noun}: {self.unit}, or e.g. {self.examples}"
            if self.unit
            else (f"{noun}, e.g. {self.examples}")
        )

    def parse(self, value: object) -> float:
        """The value in `unit`.  Raises ValueError with a text that follows the quoted value."""
        number = self._read(value) if isinstance(value, str) else value
        least = "from 0" if self.zero else "above 0"
        if (
            not isinstance(number, int | float)
            or isinstance(number, bool)
            or not (0 < number <= NUMBER_MAX or (self.zero and number == 0))
        ):
            unit = f" ({self.unit})" if self.unit else ""
            raise ValueError(f"is not a number {least}, at most {NUMBER_MAX:g}{unit}{self._advice}")
        return float(number)

    def parse_text(self, text: str) -> float:
        """The same for the text of an option: a number without a unit counts in `unit`."""
        try:
            number = float(text)
        except ValueError:
            return self.parse(text)
        return self.parse(number)

    @property
    def _advice(self) -> str:
        return f"; write e.g. {self.examples}" if self.examples else ""

    def _read(self, text: str) -> float:
        found = _TEXT.fullmatch(text.strip())
        if found is None or not self.units:
            plain = f", or a number of {self.unit} without quotes" if self.unit else ""
            raise ValueError(f"is not {self.noun}{self._advice}{plain}")
        if found[2] not in self.units:
            raise ValueError(
                f"is not {self.noun}: its unit is one of {' '.join(self.units)}{self._advice}"
            )
        return float(found[1]) * self.units[found[2]]


ENERGY = Quantity(
    "an energy", "J",
    {"mJ": 1e-3, "J": 1.0, "kJ": 1e3, "MJ": 1e6, "mWh": 3.6, "Wh": 3600.0, "kWh": 3.6e6},
    "50Wh or 180kJ",
)  # fmt: skip
POWER = Quantity("a power", "W", {"mW": 1e-3, "W": 1.0, "kW": 1e3}, "5W or 800mW")
SECONDS = Quantity(
    "a time", "s", {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}, "10s or 2min"
)  # fmt: skip
MEGAHERTZ = Quantity("a clock", "MHz", {"kHz": 1e-3, "MHz": 1.0, "GHz": 1e3}, "1113MHz or 1.1GHz")
VOLTAGE = Quantity("a voltage", "V", {"mV": 1e-3, "V": 1.0}, "11.4V")
CELSIUS = Quantity("a temperature", "°C", {"C": 1.0}, "85C")
SHARE = Quantity("a share", "", {"%": 0.01}, "0.05 or 5%")
NUMBER = Quantity("a number", "", zero=True)
