"""Edges of a machine's additive sensors and of their release valves: operators 1 to 6 of the DEBS
Grand Challenge of 2012.  One row in for each record of 66 fields, one row out for each change.

Valves come before sensors: a valve answers a sensor of an earlier record."""


class State:
    known: bool
    sensors: int64[3]
    valves: int64[3]


class Outputs:
    class edges:
        time: timestamp
        ts: int64
        pair: int64
        valve: bool
        up: bool


def on_row(row, state, out):
    for k in range(3):
        valve = row.bm08 if k == 0 else row.bm09 if k == 1 else row.bm10
        if state.known and valve != (state.valves[k] != 0):
            out.edges(time=row.time, ts=row.ts, pair=k, valve=True, up=valve)
        state.valves[k] = int(valve)
    for k in range(3):
        sensor = row.bm05 if k == 0 else row.bm06 if k == 1 else row.bm07
        if state.known and sensor != (state.sensors[k] != 0):
            out.edges(time=row.time, ts=row.ts, pair=k, valve=False, up=sensor)
        state.sensors[k] = int(sensor)
    state.known = True
