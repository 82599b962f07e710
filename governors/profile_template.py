"""The skeleton of a board profile, from a report of that board.

    skeleton(read(data))          the text of a profile that `profile_reader.parse` reads

What the report has is filled in with its source; all else is `unknown`, with the comment that says
what to look for.  A skeleton is a valid profile.  A simulated board needs the idle watts of the
rails that its sensor shows besides.  Where the kernel shows no table, the range of the clock
stands.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

from governors.board_report import BoardReport, ClockFacts, RailFacts
from governors.meters.rail_labels import rail
from governors.suspend import MEM

UNKNOWN = '"unknown"'
UNREAD = "not read"
"""Where the format wants a word."""
WHOLE = "board"
"""Name of the input where the board has no rail of it."""
_TERMS = """
# Terms of the power model (governors/power.py).  Each has value, error (one standard deviation),
# unit and source, and belongs to one rail.  Leave out what is not known:
#
#   [[power.core_dynamic]]      W/(GHz V2) of a busy core; W/(GHz (V/Vmax)2) with [power.volts]
#   [[power.core_busy]]         W of a busy core at any clock
#   [[power.awake]]             W while any core is awake
#   [[power.gpu_awake]]         W while the GPU is powered
#   [[power.gpu_dynamic]]       W/GHz of a busy GPU
#   [[power.memory_clock]]      W/GHz of the memory's clock
#   [[power.memory_traffic]]    W/(GB/s)
#   [[power.wake]]              J of a wake-up
#
# `edged calibrate --store DIR --minutes 20` measures time and watts at each clock of the board.
# A reading with all cores asleep is `idle`; what busy cores add to it is `core_dynamic`.
# [thermal.throttle] and [[thermal.node]] describe its heat (governors/thermal.py).
# A part that was seen on the board gets a line in [measured], with its source:
#
#   [measured]
#   clocks = "report of issue N"
"""


def skeleton(report: BoardReport) -> str:
    """The profile's text."""
    source = f"report of a board, kernel {report.system.kernel or UNREAD}, edged {report.edged}"
    lines = [*_head(report), *_clusters(report, source), *_gpu(report, source)]
    lines += [*_memory(report, source), *_idle_states(report, source), *_changes(report, source)]
    lines += [*_rails(report, source), *_power(report), _TERMS.rstrip(), "", *_suspend(report)]
    lines += _table("[uplink]", {
        "fixed_joules": UNKNOWN, "joules_per_byte": UNKNOWN, "tail_joules": UNKNOWN,
        "source": _text("depends on the radio that is plugged in"),
    })  # fmt: skip
    return "\n".join(lines).rstrip() + "\n"


def name_of(report: BoardReport) -> str:
    """The profile's name: the detected board's, else one made of the model."""
    if report.board.name not in ("unknown", "x86"):
        return report.board.name
    made = re.sub(r"[^a-z0-9]+", "-", report.board.model.lower()).strip("-")
    return made or "new-board"


def _head(report: BoardReport) -> Iterator[str]:
    board = report.board
    zones = [zone.name for zone in report.zones]
    lowest: dict[str, float] = {}
    for zone in report.zones:
        for kind, celsius in zone.trips_celsius.items():
            lowest[kind] = min(celsius, lowest.get(kind, celsius))
    drivers = [clock.driver for clock in report.clocks if clock.kind == "cpu"]
    made = "made by `edged board --template`; `unknown` is to be filled in"
    yield f"# {_plain(board.model) or name_of(report)}: {made}."
    yield "format = 1"
    inputs = _inputs(report)
    yield from _pairs({
        "name": _text(name_of(report)), "title": _text(board.model or name_of(report)),
        "soc": _text(board.soc or report.system.machine or UNREAD),
        "release": _text(board.release.partition(".")[0]),
        "notes": _texts(["A skeleton: what its kernel shows, without watts."]),
        "input": _texts(inputs), "input_is": _text("say what the input covers"),
    })  # fmt: skip
    yield ""
    yield from _table("[tree]", {
        "model": _text(board.model), "compatible": _texts(board.compatible),
        "cpufreq_driver": _text(drivers[0] if drivers else ""), "thermal_zones": _texts(zones),
        "trips_celsius": "{" + ", ".join(f"{_text(k)} = {v}" for k, v in lowest.items()) + "}",
        "memory_clock": str(any(c.kind == "memory" for c in report.clocks)).lower(),
    })  # fmt: skip


def _clusters(report: BoardReport, source: str) -> Iterator[str]:
    for clock in report.clocks:
        if clock.kind == "cpu":
            yield from _table("[[cluster]]", {
                "name": _text(clock.name), "cores": str(list(clock.cores)),
                "core": _text(report.system.core or UNREAD),
                "opps_khz": str([hz // 1000 for hz in _table_hz(clock)]), "volts": UNKNOWN,
                "continuous": str(not clock.table_hz).lower(),
                "floor_khz": str((clock.floor_hz or clock.min_hz) // 1000),
                "l1d_bytes": UNKNOWN, "l2_bytes": UNKNOWN, "l3_bytes": UNKNOWN,
                "source": _text(source),
            })  # fmt: skip


def _gpu(report: BoardReport, source: str) -> Iterator[str]:
    for clock in report.clocks:
        if clock.name == "gpu":
            delay = report.railgate_delay_ms
            yield from _table("[gpu]", {
                "name": _text("gpu"), "opps_hz": str(list(_table_hz(clock))), "volts": UNKNOWN,
                "multiprocessors": UNKNOWN,
                "railgate_delay_ms": UNKNOWN if delay is None else str(delay),
                "source": _text(source),
            })  # fmt: skip


def _memory(report: BoardReport, source: str) -> Iterator[str]:
    gib = report.system.memory_gib
    rates = next((c.table_hz for c in report.clocks if c.kind == "memory"), ())
    yield from _table("[memory]", {
        "bytes": UNKNOWN if gib is None else str(int(gib * (1 << 30))),
        "table_hz": str(list(rates)) if rates else UNKNOWN, "peak_gbytes_per_s": UNKNOWN,
        "source": _text(f"{source}; the peak is in the data sheet"),
    })  # fmt: skip


def _idle_states(report: BoardReport, source: str) -> Iterator[str]:
    for state in report.idle_states:
        yield from _table("[[idle_state]]", {
            "name": _text(state.name), "exit_us": _number(state.exit_us),
            "residency_us": _number(state.residency_us), "source": _text(source),
        })  # fmt: skip


def _changes(report: BoardReport, source: str) -> Iterator[str]:
    times = [c.change_us for c in report.clocks if c.kind == "cpu" and c.change_us]
    yield from _table("[[transition]]", {
        "kind": _text("cpu"), "us": _number(times[0] if times else None), "joules": UNKNOWN,
        "source": _text(source),
    })  # fmt: skip


def _inputs(report: BoardReport) -> list[str]:
    present = {r.rail for r in report.rails if r.meter != "rapl"}
    wholes = [name for name in sorted(present) if rail(name, present).part_of is None]
    fed = [name for name in wholes if "input" in rail(name, present).feeds]
    return fed or wholes or [WHOLE]


def _rails(report: BoardReport, source: str) -> Iterator[str]:
    present = {r.rail for r in report.rails}
    inputs = _inputs(report)
    for name in inputs:
        if name == WHOLE:
            yield from _table("[[rail]]", {"name": _text(WHOLE), "feeds": _texts(["input"])})
    for row in _distinct(report.rails):
        known = rail(row.rail, present)
        above = known.part_of or _above(row, present, inputs)
        fields = {"name": _text(row.rail), "feeds": _texts(known.feeds)}
        yield from _table("[[rail]]", fields | ({"part_of": _text(above)} if above else {}))
    meters = [r.meter for r in report.rails]
    steps = _text(f"{source}; refresh_ms, lsb_mw and noise_mw are in the sensor's data sheet")
    yield from _table("[sensor]", {
        "meter": _text(meters[0] if meters else "none"), "refresh_ms": UNKNOWN,
        "lsb_mw": UNKNOWN, "noise_mw": UNKNOWN, "source": steps,
    })  # fmt: skip
    for row in _distinct(report.rails):
        yield from _table("[[sensor.channel]]", {
            "rail": _text(row.rail), "device": _text(row.device), "index": str(row.index),
            "volts": _number(row.volts), "shunt_uohm": _number(row.shunt_uohm),
        })  # fmt: skip


def _above(row: RailFacts, present: set[str], inputs: list[str]) -> str | None:
    """The rail that includes one of RAPL's."""
    if row.meter != "rapl":
        return None
    package = row.rail.partition("/")[0]
    return package if package != row.rail and package in present else inputs[0]


def _distinct(rails: Iterable[RailFacts]) -> Iterator[RailFacts]:
    seen: set[str] = set()
    for row in rails:
        if row.rail not in seen:
            seen.add(row.rail)
            yield row


def _power(report: BoardReport) -> Iterator[str]:
    yield from _table("[power.volts]", {
        "knee": "0.34", "floor": "0.77", "source": _text(
            "assumed: the shape of Tegra210's EUCM2 table; drop it where the clusters have volts"),
    })  # fmt: skip
    figure = {"value": UNKNOWN, "error": UNKNOWN, "unit": _text("W")}
    yield from _table(
        "[power.residual]", figure | {"source": _text("the error of the model is not measured")}
    )
    for name in dict.fromkeys([*_inputs(report), *(row.rail for row in report.rails)]):
        yield from _table("[[power.idle]]", {
            "rail": _text(name), **figure,
            "source": _text("all cores asleep at the lowest clocks: not measured"),
        })  # fmt: skip


def _suspend(report: BoardReport) -> Iterator[str]:
    if MEM in report.suspend.states:
        sources = {"watts": ("W", "not measured"), "enter": ("s", "not timed"),
                   "leave": ("s", "not timed; the daemon times its suspends")}  # fmt: skip
        yield from _table("[suspend]", {
            name: f'{{value = {UNKNOWN}, error = {UNKNOWN}, unit = "{unit}", source = "{source}"}}'
            for name, (unit, source) in sources.items()
        })  # fmt: skip


def _table_hz(clock: ClockFacts) -> tuple[int, ...]:
    return clock.table_hz or (clock.min_hz, clock.max_hz)


def _table(title: str, pairs: dict[str, str]) -> Iterator[str]:
    yield title
    yield from _pairs(pairs)
    yield ""


def _pairs(pairs: dict[str, str]) -> Iterator[str]:
    yield from (f"{key} = {value}" for key, value in pairs.items())


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:g}"


def _plain(text: str) -> str:
    return "".join(c for c in text if c.isprintable())


def _text(text: str) -> str:
    """A basic string of TOML: JSON's escapes are a part of its own."""
    return json.dumps(text)


def _texts(texts: Iterable[str]) -> str:
    return f"[{', '.join(map(_text, texts))}]"
