"""Pairs of a sensor's edge with its valve's, and how long the valve took: operators 7 to 9 of the
DEBS Grand Challenge of 2012.  By the column `pair` of `edges.py`.

A valve's edge answers the sensor's of the same direction, if no other edge of the sensor came in
between.  What is left over is unmatched.
"""


class State:
    open: bool
    up: bool
    since: int64
    first_ns: int64
    first_at: timestamp


class Outputs:
    class delays:
        time: timestamp
        pair: int64
        up: bool
        delay_ns: int64

    class unmatched:
        time: timestamp
        pair: int64
        valve: bool

    class alarms:
        time: timestamp
        pair: int64
        delay_ns: int64
        first_ns: int64


class Parameters:
    growth: float64 = 0.01
    within_us: int64 = 86_400_000_000


def on_row(row, state, out, parameters):
    if not row.valve:
        if state.open:
            out.unmatched(time=row.time, pair=row.pair, valve=False)
        state.open = True
        state.up = row.up
        state.since = row.ts
        return
    if not state.open or row.up != state.up:
        out.unmatched(time=row.time, pair=row.pair, valve=True)
        return
    delay = row.ts - state.since
    state.open = False
    out.delays(time=row.time, pair=row.pair, up=row.up, delay_ns=delay)
    if state.first_ns == 0 or row.time - state.first_at > parameters.within_us:
        state.first_ns = delay
        state.first_at = row.time
    elif delay > state.first_ns * (1 + parameters.growth):
        out.alarms(time=row.time, pair=row.pair, delay_ns=delay, first_ns=state.first_ns)
