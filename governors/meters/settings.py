"""What a person or a profile tells the meters.

[meters]
labels = { "6-0040/1" = "POM_5V_CPU" }    # chip and channel as its driver counts them

[[meters.external]]
name = "shunt"                            # the rail's name
file = "/run/victron/smartshunt"          # or topic = "N/123/battery/P", broker = "127.0.0.1"
quantity = "watts"                        # or "joules": a counter
key = "P"                                 # in JSON a.b.c, else the first word of a line
scale = 1.0                               # watts (joules) in one unit of what is read
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

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from governors.energy import Provenance, Rail
from governors.errors import MeterError

FEEDS = ("input", "cpu", "gpu", "cv", "soc", "memory", "system", "radio")
MQTT_PORT = 1883


@dataclass(frozen=True, slots=True)
class External:
    """A figure that somebody else's program writes down or publishes."""

    name: str
    file: str = ""
    topic: str = ""
    broker: str = "127.0.0.1"
    port: int = MQTT_PORT
    username: str = ""
    password: str = field(default="", repr=False)
    quantity: str = "watts"
    key: str = ""
    scale: float = 1.0
    feeds: tuple[str, ...] = ("input",)
    stale_s: float = 10.0
    interval_s: float = 1.0


@dataclass(frozen=True, slots=True)
class RadioSettings:
    """What a radio costs: fixed watts while it is up, joules a byte, and a tail after each burst
    in which it stays awake."""

    interface: str
    watts_up: float
    joules_per_byte: float
    tail_joules: float = 0.0
    tail_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Modelled:
    """A model's rails; `watts(now_us)` gives the mean W of each since it was last asked."""

    rails: tuple[Rail, ...]
    watts: Callable[[int], Mapping[str, float]]
    interval_us: int = 1_000_000


@dataclass(frozen=True, slots=True)
class MeterSettings:
    """All of it.  `provenance` is what readings of the board's own sensors are: SIMULATED where
    the tree is a simulated board's."""

    provenance: Provenance = Provenance.MEASURED
    labels: Mapping[str, str] = field(default_factory=dict)
    externals: tuple[External, ...] = ()
    radio: RadioSettings | None = None
    model: Modelled | None = None


def parse(document: Mapping[str, Any], where: str = "meters") -> MeterSettings:
    """Settings of a `[meters]` table.  Raises MeterError that names the key."""
    _only(document, {"labels", "external", "radio"}, where)
    labels = document.get("labels", {})
    if not isinstance(labels, Mapping) or not all(isinstance(v, str) for v in labels.values()):
        raise MeterError(f'{where}.labels: a table of names, as {{"6-0040/1" = "POM_5V_CPU"}}')
    tables = document.get("external", [])
    if not isinstance(tables, list):
        raise MeterError(f"{where}.external: a list of tables, [[{where}.external]]")
    externals = tuple(_external(t, f"{where}.external[{i}]") for i, t in enumerate(tables))
    names = [e.name for e in externals]
    if len(set(names)) < len(names):
        raise MeterError(f"{where}.external: two have one name; give each its own")
    radio = document.get("radio")
    return MeterSettings(
        labels=dict(labels),
        externals=externals,
        radio=None if radio is None else _radio(radio, f"{where}.radio"),
    )


def _external(table: Any, where: str) -> External:
    keys = {"name", "file", "topic", "broker", "port", "username", "password", "quantity"}
    _only(table, keys | {"key", "scale", "feeds", "stale_s", "interval_s"}, where)
    if not isinstance(table.get("name"), str) or not table["name"]:
        raise MeterError(f"{where}.name: the rail's name, a text")
    if bool(table.get("file")) == bool(table.get("topic")):
        raise MeterError(f"{where}: give either file or topic")
    file = str(table.get("file", ""))
    if file and not file.startswith("/"):
        raise MeterError(f"{where}.file: an absolute path, not {file!r}")
    if table.get("quantity", "watts") not in ("watts", "joules"):
        raise MeterError(f"{where}.quantity: watts or joules, not {table['quantity']!r}")
    feeds = table.get("feeds", ["input"])
    if not isinstance(feeds, list) or not feeds or not all(f in FEEDS for f in feeds):
        raise MeterError(f"{where}.feeds: a list of {', '.join(FEEDS)}, not {feeds!r}")
    port = table.get("port", MQTT_PORT)
    if not isinstance(port, int) or not 0 < port < 65536:
        raise MeterError(f"{where}.port: 1 to 65535, not {port!r}")
    texts = {k: str(table[k]) for k in ("broker", "username", "password", "key") if k in table}
    return External(
        name=table["name"],
        file=file,
        topic=str(table.get("topic", "")),
        port=port,
        quantity=str(table.get("quantity", "watts")),
        scale=_number(table, "scale", where, default=1.0, sign=True),
        feeds=tuple(feeds),
        stale_s=_number(table, "stale_s", where, default=10.0, above=0.0),
        interval_s=_number(table, "interval_s", where, default=1.0, above=0.0),
        **texts,
    )


def _radio(table: Any, where: str) -> RadioSettings:
    _only(table, {"interface", "watts_up", "joules_per_byte", "tail_joules", "tail_s"}, where)
    interface = table.get("interface")
    if not isinstance(interface, str) or not interface or "/" in interface:
        raise MeterError(f"{where}.interface: the network interface's name, as wwan0")
    tail_j = _number(table, "tail_joules", where, default=0.0)
    tail_s = _number(table, "tail_s", where, default=0.0)
    if (tail_j > 0) != (tail_s > 0):
        raise MeterError(f"{where}: tail_joules and tail_s belong together")
    watts_up = _number(table, "watts_up", where, default=0.0)
    per_byte = _number(table, "joules_per_byte", where, default=0.0)
    return RadioSettings(interface, watts_up, per_byte, tail_j, tail_s)


def _only(table: Any, keys: set[str], where: str) -> None:
    if not isinstance(table, Mapping):
        raise MeterError(f"{where}: a table")
    for key in table:
        if key not in keys:
            near = difflib.get_close_matches(str(key), sorted(keys), n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(keys))}"
            raise MeterError(f"{where}.{key}: no such setting; {hint}")


def _number(
    table: Mapping[str, Any],
    key: str,
    where: str,
    *,
    default: float,
    above: float | None = None,
    sign: bool = False,
) -> float:
    value = table.get(key, default)
    real = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not real or (not sign and value < 0) or (above is not None and value <= above):
        raise MeterError(f"{where}.{key}: a number{'' if sign else ', not negative'}: {value!r}")
    return float(value)
