"""The equipment job as documents: with built-in operators, with kernels row by row, and with SQL
expressions where they reach.

All have the same results, named as the sinks are:

    edges    changes of the additive sensors and of their valves
    delays   a sensor's edge and the first edge of its valve in the same direction, in a later
             record and up to that of the sensor's next edge
    alarms   delays more than 1 % above the first of their pair within a day
    trends   slope of the delays by least squares, by pair and span of SPAN
    seconds  mean and (max - min) / mean of the power of each phase, by the second

With kernels there is also `raw`: the power of all records around a second whose relative variation
is above a limit.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from edged.bench.equipment_data import POWER, SENSORS

KERNEL = "kernel"
WRITTEN = ("builtin", KERNEL, "sql")
SINKS = ("edges", "delays", "alarms", "trends", "seconds")
RAW = "raw"
STREAM = "records"
SPAN_S = 60
"""Of a trend.  The challenge has a day, which is longer than the data."""
GROWTH = 1.01
PEAK_VARIATION, AROUND_S = 0.3, (20, 70)
"""Of a second, and what is kept before it and after its begin."""
SWITCHES = (*SENSORS, *SENSORS.values())
_Operators = dict[str, dict[str, Any]]


def sinks_of(written: str) -> tuple[str, ...]:
    """The sinks of a form."""
    return (*SINKS, RAW) if written == KERNEL else SINKS


def equipment_job(
    written: str, name: str, address: str, directory: str, schema: pa.Schema, promises: Any
) -> dict[str, Any]:
    """A job of its own connection that writes its results below a directory."""
    operators, inputs = _FORMS[written]()
    sinks = {
        f"{sink}_out": {
            "type": "file",
            "input": inputs[sink],
            "path": f"{directory}/{sink}",
            "every": "1h",
        }
        for sink in sinks_of(written)
    }
    stream = {
        "source": {"type": "tcp", "listen": address}, "columns": _columns(schema), "time": "time",
        "idle_after": "60s",
    }  # fmt: skip
    return {
        "name": name, "promises": promises, "streams": {STREAM: stream}, "operators": operators,
        "sinks": sinks,
    }  # fmt: skip


def _columns(schema: pa.Schema) -> dict[str, str]:
    return {
        f.name: "timestamp" if pa.types.is_timestamp(f.type) else str(f.type) for f in schema
    }  # fmt: skip


def _builtin() -> tuple[_Operators, dict[str, str]]:
    lag = {"type": "lag", "input": STREAM, "order": "arrival", "columns": _before()}
    operators: _Operators = {"edges": {**lag, "changes_only": list(SWITCHES)}}
    operators |= _pairs() | _alarms() | _seconds()
    return operators, {sink: sink for sink in SINKS}


def _sql() -> tuple[_Operators, dict[str, str]]:
    """Edges by a condition over each record and the one before; the rest as built in."""
    lag = {"type": "lag", "input": "switches", "order": "arrival", "columns": _before()}
    narrow = {name: name for name in ("time", "ts", *SWITCHES)}
    changed = " OR ".join(f"{name} <> {name}_was" for name in SWITCHES)
    operators: _Operators = {
        "switches": {"type": "map", "input": STREAM, "columns": narrow},
        "paired": lag, "edges": {"type": "filter", "input": "paired", "where": changed},
    }  # fmt: skip
    operators |= _pairs() | _alarms() | _seconds()
    return operators, {sink: sink for sink in SINKS}


def _kernel() -> tuple[_Operators, dict[str, str]]:
    operators: _Operators = {
        "edges": {"type": "kernel", "input": STREAM, "file": "edges.py"},
        "pairs": {"type": "kernel", "input": "edges", "file": "pairs.py", "keys": ["pair"]},
        "trends": {
            "type": "kernel", "input": "pairs.delays", "file": "trends.py", "keys": ["pair"],
            "parameters": {"span_us": SPAN_S * 10**6}, "behind": f"{2 * SPAN_S}s",
        },
        "seconds": {"type": "kernel", "input": STREAM, "file": "seconds.py", "behind": "2s"},
        "peaks": {
            "type": "kernel", "input": STREAM, "file": "peaks.py", "behind": f"{AROUND_S[0] + 1}s",
            "parameters": {"limit": PEAK_VARIATION, "before_us": AROUND_S[0] * 10**6,
                           "after_us": AROUND_S[1] * 10**6},
        },
    }  # fmt: skip
    inputs = {"delays": "pairs.delays", "alarms": "pairs.alarms", RAW: f"peaks.{RAW}"}
    return operators, {**{s: s for s in SINKS}, **inputs}


_FORMS = {"builtin": _builtin, "kernel": _kernel, "sql": _sql}


def _before() -> dict[str, str]:
    return {f"{name}_was": name for name in SWITCHES}


def _pairs() -> _Operators:
    """A search for each sensor and direction, and the union of what they find."""
    operators: _Operators = {}
    for pair, (sensor, valve) in enumerate(SENSORS.items()):
        for up in (True, False):
            now, was = ("", "NOT ") if up else ("NOT ", "")
            name = f"pair{pair}{'up' if up else 'down'}"
            steps = [
                {"name": "sensor", "where": f"{now}{sensor} AND {was}{sensor}_was"},
                {"name": "valve", "where": f"{now}{valve} AND {was}{valve}_was",
                 "unless": f"{sensor} <> {sensor}_was"},
            ]  # fmt: skip
            columns = {"time": "valve.time", "since": "sensor.ts", "ts": "valve.ts"}
            operators[f"{name}_found"] = {
                "type": "detect", "input": "edges", "within": "1h", "steps": steps,
                "columns": columns,
            }  # fmt: skip
            delay = {
                "time": "time", "pair": f"{pair}::BIGINT", "up": str(up).upper(),
                "delay_ns": "ts - since", "delay_s": "(ts - since) / 1e9",
            }  # fmt: skip
            operators[name] = {"type": "map", "input": f"{name}_found", "columns": delay}
    found = [name for name, table in operators.items() if table["type"] == "map"]
    operators["delays"] = {"type": "union", "inputs": found}
    return operators


def _alarms() -> _Operators:
    """Delays beside the first of their pair within a day; and trends."""
    columns = {
        "time": "left.time", "pair": "left.pair", "delay_ns": "left.delay_ns",
        "first_ns": "right.delay_ns",
    }  # fmt: skip
    return {
        "firsts": {"type": "deduplicate", "input": "delays", "keys": ["pair"], "within": "1d"},
        "compared": {
            "type": "asof_join", "left": "delays", "right": "firsts", "on": ["pair"],
            "tolerance": "1d", "columns": columns,
        },
        "alarms": {
            "type": "filter", "input": "compared", "where": f"delay_ns > first_ns * {GROWTH}",
        },
        "trends": {
            "type": "window", "input": "delays", "keys": ["pair"], "size": f"{SPAN_S}s",
            "aggregates": {"rows": "count(*)", "slope": "regr_slope(delay_s, time)"},
        },
    }  # fmt: skip


def _seconds() -> _Operators:
    aggregates, columns = {}, {"time": "window_start"}
    for k, name in enumerate(POWER, 1):
        for kind in ("mean", "min", "max"):
            aggregates[f"{kind}{k}"] = f"{kind}({name})"
        mean = f"mean{k}_sum / mean{k}_count"
        columns |= {f"mean{k}": mean, f"variation{k}": f"(max{k} - min{k}) / ({mean})"}
    return {
        "power": {"type": "window", "input": STREAM, "size": "1s", "aggregates": aggregates},
        "seconds": {"type": "map", "input": "power", "columns": columns},
    }
