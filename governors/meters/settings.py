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
watts_up = 0.4                            # while the link is up
joules_per_byte = 2e-6
tail_joules = 1.5                         # after each burst, over tail_s
tail_s = 4.0
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from sys import float_info
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from governors.documents import NotBlank, convert
from governors.energy import Feed, Provenance, Rail
from governors.errors import MeterError

MQTT_PORT = 1883

_Finite = Annotated[float, Meta(ge=-float_info.max, le=float_info.max)]
_NotNegative = Annotated[float, Meta(ge=0, le=float_info.max)]
_Positive = Annotated[float, Meta(gt=0, le=float_info.max)]


class External(Struct, frozen=True, forbid_unknown_fields=True):
    """A meter whose readings another program writes to a file or publishes by MQTT.

    Raises ValueError unless exactly one of `file` and `topic` is given.
    """

    name: NotBlank
    file: str = ""
    topic: str = ""
    broker: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=1, le=65_535)] = MQTT_PORT
    username: str = ""
    password: str = ""
    quantity: Literal["watts", "joules"] = "watts"
    key: str = ""
    scale: _Finite = 1.0
    feeds: Annotated[tuple[Feed, ...], Meta(min_length=1)] = ("input",)
    stale_s: _Positive = 10.0
    interval_s: _Positive = 1.0

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

    interface: NotBlank
    watts_up: _NotNegative = 0.0
    joules_per_byte: _NotNegative = 0.0
    tail_joules: _NotNegative = 0.0
    tail_s: _NotNegative = 0.0

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


class _Document(Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of a `[meters]` table."""

    labels: dict[str, str] = msgspec.field(default_factory=dict)
    external: tuple[External, ...] = ()
    radio: RadioSettings | None = None

    def __post_init__(self) -> None:
        if len({e.name for e in self.external}) < len(self.external):
            raise ValueError("two external meters have the same name")


def parse(document: Mapping[str, Any], where: str = "meters") -> MeterSettings:
    """Settings of a `[meters]` table.  Raises MeterError that names the key."""
    found = convert(document, _Document, where, MeterError)
    return MeterSettings(labels=found.labels, externals=found.external, radio=found.radio)
