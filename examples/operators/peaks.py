"""Records of a machine around peaks of its power, as the DEBS Grand Challenge of 2012 asks in query
2: where the relative variation of a phase within a second is above the limit, all records from 20 s
before that second to 70 s after its begin.  The records before wait in a ring.  A record of
state has at most 64 KiB, so that the three powers share a word."""

SIZE = 2560
BASE = 1_000_000


class State:
    second: int64
    rows: int64
    sums: int64[3]
    least: int64[3]
    most: int64[3]
    until: timestamp
    seen: int64
    passed: int64
    times: int64[2560]
    powers: int64[2560]


class Outputs:
    class raw:
        time: timestamp
        mf01: int64
        mf02: int64
        mf03: int64


class Parameters:
    limit: float64 = 0.3
    before_us: int64 = 20_000_000
    after_us: int64 = 70_000_000


def on_row(row, state, out, parameters):
    second = row.time // 1_000_000
    if state.rows > 0 and second != state.second:
        peak = False
        for k in range(3):
            spread = (state.most[k] - state.least[k]) * state.rows
            if spread > parameters.limit * state.sums[k]:
                peak = True
        state.rows = 0
        if peak:
            start = state.second * 1_000_000
            state.until = start + parameters.after_us
            for n in range(max(state.passed, state.seen - SIZE), state.seen):
                i = n % SIZE
                if state.times[i] >= start - parameters.before_us:
                    powers = state.powers[i]
                    out.raw(
                        time=state.times[i],
                        mf01=powers // BASE // BASE,
                        mf02=powers // BASE % BASE,
                        mf03=powers % BASE,
                    )
            state.passed = state.seen
    state.second = second
    powers = 0
    for k in range(3):
        power = row.mf01 if k == 0 else row.mf02 if k == 1 else row.mf03
        if power < 0 or power >= BASE:
            raise ValueError("a power does not fit")
        powers = powers * BASE + power
        if state.rows == 0:
            state.sums[k] = power
            state.least[k] = power
            state.most[k] = power
        else:
            state.sums[k] += power
            state.least[k] = min(state.least[k], power)
            state.most[k] = max(state.most[k], power)
    state.rows += 1
    i = state.seen % SIZE
    state.times[i] = row.time
    state.powers[i] = powers
    state.seen += 1
    if row.time <= state.until:
        out.raw(time=row.time, mf01=row.mf01, mf02=row.mf02, mf03=row.mf03)
        state.passed = state.seen
