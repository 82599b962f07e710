"""Records of a manufacturing machine in the shape of the DEBS Grand Challenge of 2012, generated.

A record has 66 fields and comes every 10 ms: time (ns), index, electrical power of three phases,
which changes in 83 % of the records, pressures and currents, three additive sensors with their
release valves, and booleans and counters that rarely change.  A valve follows its sensor after 2 to
24 ms, 10 in the median.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

FIELDS = 66
STEP_NS = 10_000_000
START_NS = 1_330_300_800 * 10**9
"""2012-02-27."""
POWER = {"mf01": (12_000, 18_000), "mf02": (13_000, 20_000), "mf03": (7_000, 9_000)}
CHANGED = 0.83
SPREAD = 0.001
"""Standard deviation of power within a hundred records, as a part of its mean."""
ANALOG = ("pc13", "pc14", "pc15", "pc25", "pc26", "pc27", "res")
SENSORS = {"bm05": "bm08", "bm06": "bm09", "bm07": "bm10"}
SENSOR_PERIOD_ROWS = 150
COUNTERS = 8
FAULTS = {"none": 0.94, "late": 0.02, "missed": 0.02, "double": 0.02}
"""What a valve does at an edge of its sensor, with its probability."""
LATE = 5
"""A late valve takes so many times its delay."""
DRIFT = 0.5
"""So much longer than at first are delays at the end, as a part."""
PEAK = 1.6
"""A peak multiplies the power of the second phase in one record."""
PEAK_PERIOD_ROWS, PEAK_ROW = 60_000, 5_000
"""Records from one peak to the next, and the first."""


def equipment_records(rows: int, seed: int = 1) -> pa.RecordBatch:
    """So many records."""
    dice = np.random.default_rng([seed, FIELDS])
    ns = START_NS + STEP_NS * np.arange(rows, dtype=np.int64)
    columns: dict[str, Any] = {
        "time": pa.array(ns // 1000, pa.int64()).cast(pa.timestamp("us", tz="UTC")),
        "ts": pa.array(ns),
        "index": pa.array(np.arange(rows, dtype=np.int64)),
    }
    for name, (low, high) in POWER.items():
        columns[name] = pa.array(_power(dice, rows, low, high))
    for name in ANALOG:
        columns[name] = pa.array(_held(dice, rows, 0.05, 0, 40).astype(np.int32))
    for sensor, valve in SENSORS.items():
        columns[sensor], columns[valve] = _pair(dice, rows)
    for i in range(COUNTERS):
        columns[f"count{i:02d}"] = pa.array(np.cumsum(dice.random(rows) < 0.01).astype(np.int32))
    for i in range(FIELDS - len(columns) + 1):  # `time` is `ts` once more, for event time
        columns[f"flag{i:02d}"] = pa.array(_held(dice, rows, 0.002, 0, 2).astype(np.bool_))
    return pa.record_batch(columns)


def faulty_equipment_records(rows: int, seed: int = 1) -> tuple[pa.RecordBatch, pa.Table]:
    """So many records whose valves have faults, whose delays grow and whose power has peaks, and
    the truth apart: what each edge of a sensor met (`pair`, `ts`, `fault`: none, late, missed or
    double)."""
    records = _with_peaks(equipment_records(rows, seed))
    dice = np.random.default_rng([seed, FIELDS, 1])
    truth = []
    for pair, (sensor, valve) in enumerate(SENSORS.items()):
        states = records[sensor].to_numpy(zero_copy_only=False)
        edges = np.flatnonzero(states[1:] != states[:-1]) + 1
        fault = dice.choice(len(FAULTS), edges.size, p=list(FAULTS.values()))
        at = records.schema.get_field_index(valve)
        moved = pa.array(_moved(dice, states, edges, fault))
        records = records.set_column(at, valve, moved)
        truth.append(pa.table({
            "pair": np.full(edges.size, pair), "ts": records["ts"].to_numpy()[edges],
            "fault": pa.DictionaryArray.from_arrays(fault, list(FAULTS)).cast(pa.string()),
        }))  # fmt: skip
    return records, pa.concat_tables(truth)


def _with_peaks(records: pa.RecordBatch) -> pa.RecordBatch:
    """Records with peaks of the second phase's power."""
    name = list(POWER)[1]
    power = records[name].to_numpy().copy()
    power[PEAK_ROW::PEAK_PERIOD_ROWS] = power[PEAK_ROW::PEAK_PERIOD_ROWS] * PEAK
    at = records.schema.get_field_index(name)
    return records.set_column(at, records.schema.field(name), pa.array(power))


def _moved(dice: np.random.Generator, states: Any, edges: Any, fault: Any) -> npt.NDArray[np.bool_]:
    """A valve's states: it takes the sensor's after a delay, or never, or twice."""
    rows, (_, late, missed, double) = states.size, range(len(FAULTS))
    delay = np.clip(dice.lognormal(np.log(10), 0.35, edges.size), 2, 24) * 1e6 / STEP_NS
    delay *= (1 + DRIFT * edges / rows) * np.where(fault == late, LATE, 1)
    first = edges + np.ceil(delay).astype(np.int64)
    parts = [(first[fault != missed], states[edges][fault != missed])]
    again = fault == double
    parts += [(first[again] + 1, ~states[edges][again]), (first[again] + 2, states[edges][again])]
    at, level = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(at, kind="stable")
    at, level = np.append(-1, at[order]), np.append(states[:1], level[order])
    found: npt.NDArray[np.bool_] = level[np.searchsorted(at, np.arange(rows), "right") - 1]
    return found


def _power(dice: np.random.Generator, rows: int, low: int, high: int) -> npt.NDArray[np.int32]:
    """A level that wanders, with noise, which holds its value in 17 % of the records."""
    level = low + (high - low) * (0.5 + 0.4 * np.sin(np.arange(rows) / 5000 + dice.random()))
    noisy = np.rint(level * (1 + SPREAD * dice.normal(size=rows)))
    at = np.where(dice.random(rows) < CHANGED, np.arange(rows), 0)
    held: npt.NDArray[np.int32] = noisy[np.maximum.accumulate(at)].astype(np.int32)
    return held


def _held(
    dice: np.random.Generator, rows: int, changes: float, low: int, high: int
) -> npt.NDArray[np.int64]:
    """Values that change in a part of the records."""
    values = dice.integers(low, high, rows)
    at = np.where(dice.random(rows) < changes, np.arange(rows), 0)
    held: npt.NDArray[np.int64] = values[np.maximum.accumulate(at)]
    return held


def _pair(dice: np.random.Generator, rows: int) -> tuple[pa.Array, pa.Array]:
    """A sensor's states, and its valve's a delay later."""
    count = max(1, rows // SENSOR_PERIOD_ROWS)
    edges = np.sort(dice.integers(0, rows, count))
    delay_ms = np.clip(dice.lognormal(np.log(10), 0.35, count), 2, 24)
    moved = np.minimum(rows, edges + np.ceil(delay_ms * 1e6 / STEP_NS).astype(np.int64))
    found = []
    for at in (edges, np.sort(moved)):
        steps = np.zeros(rows + 1, np.int64)
        np.add.at(steps, at, 1)
        found.append(pa.array((np.cumsum(steps)[:rows] % 2).astype(np.bool_)))
    return found[0], found[1]
