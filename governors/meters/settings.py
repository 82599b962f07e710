"""Settings of the meters, from `[meters]` of a profile or `energy.meters` of the configuration.

[meters]
labels = { "6-0040/1" = "POM_5V_CPU" }    # chip and channel, numbered as its driver does

[[meters.external]]
name = "shunt"                            # the rail's name
file = "/run/victron/smartshunt"          # or topic = "N/123/battery/P", broker = "127.0.0.1"
quantity = "watts"                        # or "joules": a counter
key = "P"                                 # in JSON a.b.c, else the first word of a line
scale = 1.0                               # watts (joules) in one unit of the reading
feeds = ["input"]
stale_s = 10.0
interval_s = 1.0

[meters.radio]
interface = "wwan0"
watts_up = "400mW"                        # while the link is up; a number: in W
joules_per_byte = 2e-6
tail_joules = 1.5                         # after each burst, over tail_s
tail_s = 4.0
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from sys import float_info
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from governors.documents import NotBlank, convert, in_units
from governors.energy import Feed, Provenance, Rail
from governors.errors import MeterError
from governors.quantities import ENERGY, POWER, SECONDS, Quantity

MQTT_PORT = 1883

_Finite = Annotated[float, Meta(ge=-float_info.max, le=float_info.max)]
_NotNegative = Annotated[float, Meta(ge=0, le=float_info.max)]
_Positive = Annotated[float, Meta(gt=0, le=float_info.max)]


def _or_zero(kind: Quantity) -> Quantity:
    return replace(kind, zero=True)


class External(Struct, frozen=True, forbid_unknown_fields=True):
    """A meter whose readings another program writes to a file or publishes by MQTT.

    Raises ValueError unless exactly one of `file` and `topic` is given.
    """

    name: Annotated[NotBlank, Meta(description="Name of the rail.")]
    file: Annotated[
        str, Meta(description="File with the reading, an absolute path; this or `topic`.")
    ] = ""
    topic: Annotated[str, Meta(description="MQTT topic of the reading.")] = ""
    broker: Annotated[str, Meta(description="Host of the MQTT broker.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=1, le=65_535, description="Port of the broker.")] = MQTT_PORT
    username: Annotated[str, Meta(description="User name at the broker.")] = ""
    password: Annotated[
        str, Meta(description="Password at the broker; masked in every output.")
    ] = ""
    quantity: Annotated[
        Literal["watts", "joules"], Meta(description="What is read: power, or a counter of energy.")
    ] = "watts"
    key: Annotated[
        str, Meta(description="Path of the value in JSON (`a.b.c`); empty: first word of a line.")
    ] = ""
    scale: Annotated[_Finite, Meta(description="W (J) in one unit of the reading.")] = 1.0
    feeds: Annotated[tuple[Feed, ...], Meta(min_length=1, description="What the rail feeds.")] = (
        "input",
    )
    stale_s: Annotated[
        _Positive, Meta(description="An older reading is a gap.", extra={"quantity": SECONDS})
    ] = 10.0
    interval_s: Annotated[
        _Positive, Meta(description="Time between two readings.", extra={"quantity": SECONDS})
    ] = 1.0

    def __post_init__(self) -> None:
        if bool(self.file) == bool(self.topic):
            raise ValueError("give either file or topic")
        if self.file and not self.file.startswith("/"):
            raise ValueError(f"file {self.file!r} is not an absolute path")

    def __repr__(self) -> str:
        """Without the password."""
        return f"External(name={self.name!r}, file={self.file!r}, topic={self.topic!r})"


class RadioSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Energy model of a radio: constant watts while the link is up, joules a byte, and a tail of
    `tail_joules` over `tail_s` after each burst, in which the radio stays awake."""

    interface: Annotated[NotBlank, Meta(description="Network interface of the radio.")]
    watts_up: Annotated[
        _NotNegative,
        Meta(description="Power while the link is up.", extra={"quantity": _or_zero(POWER)}),
    ] = 0.0
    joules_per_byte: Annotated[
        _NotNegative,
        Meta(
            description="Energy of a byte sent or received.", extra={"quantity": _or_zero(ENERGY)}
        ),
    ] = 0.0
    tail_joules: Annotated[
        _NotNegative,
        Meta(
            description="Energy after each burst, spread over `tail_s`.",
            extra={"quantity": _or_zero(ENERGY)},
        ),
    ] = 0.0
    tail_s: Annotated[
        _NotNegative,
        Meta(description="Time that the radio stays awake after a burst.",
             extra={"quantity": _or_zero(SECONDS)}),
    ] = 0.0  # fmt: skip

    def __post_init__(self) -> None:
        if "/" in self.interface:
            raise ValueError(f"interface {self.interface!r} is not a name such as wwan0")
        if (self.tail_joules > 0) != (self.tail_s > 0):
            raise ValueError("tail_joules and tail_s belong together")


@dataclass(frozen=True, slots=True)
class Modelled:
    """Rails of a power model; `watts(now_us)` gives each rail's mean W since the previous call."""

    rails: tuple[Rail, ...]
    watts: Callable[[int], Mapping[str, float]]
    interval_us: int = 1_000_000


@dataclass(frozen=True, slots=True)
class MeterSettings:
    """All settings of the meters."""

    provenance: Provenance = Provenance.MEASURED
    """Provenance of the board's own sensors: SIMULATED where the tree is a simulated board's."""
    labels: Mapping[str, str] = field(default_factory=dict)
    externals: tuple[External, ...] = ()
    radio: RadioSettings | None = None
    model: Modelled | None = None


class MetersTable(Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of a `[meters]` table."""

    labels: Annotated[
        dict[str, str],
        Meta(description="Rail by chip and channel, where the board's own label is wrong."),
    ] = msgspec.field(default_factory=dict)
    external: Annotated[
        tuple[External, ...], Meta(description="Meters that other programs read.")
    ] = ()
    radio: Annotated[RadioSettings | None, Meta(description="Energy model of a radio.")] = None

    def __post_init__(self) -> None:
        if len({e.name for e in self.external}) < len(self.external):
            raise ValueError("two external meters have the same name")


def parse(document: Mapping[str, Any], where: str = "meters") -> MeterSettings:
    """Settings of a `[meters]` table.  Raises MeterError that names the key."""
    plain = in_units(document, MetersTable, where, MeterError)
    found = convert(plain, MetersTable, where, MeterError)
    return MeterSettings(labels=found.labels, externals=found.external, radio=found.radio)
