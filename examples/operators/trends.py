"""Trend of the delays of a machine's valves: least squares over spans of time, by the column `pair`
of `pairs.py`.  A span comes out with the first delay behind it."""


class State:
    span: int64
    rows: int64
    x: float64
    y: float64
    xx: float64
    xy: float64


class Outputs:
    class trends:
        time: timestamp
        pair: int64
        rows: int64
        slope: float64


class Parameters:
    span_us: int64 = 86_400_000_000


def on_row(row, state, out, parameters):
    span = row.time // parameters.span_us
    if state.rows > 0 and span != state.span:
        spread = state.rows * state.xx - state.x * state.x
        if spread > 0.0:
            slope = (state.rows * state.xy - state.x * state.y) / spread
            start = state.span * parameters.span_us
            out.trends(time=start, pair=row.pair, rows=state.rows, slope=slope)
        state.rows = 0
        state.x = 0.0
        state.y = 0.0
        state.xx = 0.0
        state.xy = 0.0
    state.span = span
    x = (row.time - span * parameters.span_us) / 1e6
    y = row.delay_ns / 1e9
    state.rows += 1
    state.x += x
    state.y += y
    state.xx += x * x
    state.xy += x * y
