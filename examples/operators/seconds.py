"""Power of a machine's three phases by the second: mean and relative variation, as the DEBS Grand
Challenge of 2012 asks in query 2.  A second comes out with the first record behind it."""


class State:
    second: int64
    rows: int64
    sums: int64[3]
    least: int64[3]
    most: int64[3]


class Outputs:
    class seconds:
        time: timestamp
        mean1: float64
        mean2: float64
        mean3: float64
        variation1: float64
        variation2: float64
        variation3: float64


def on_row(row, state, out):
    second = row.time // 1_000_000
    if state.rows > 0 and second != state.second:
        mean1 = state.sums[0] / state.rows
        mean2 = state.sums[1] / state.rows
        mean3 = state.sums[2] / state.rows
        out.seconds(
            time=state.second * 1_000_000,
            mean1=mean1,
            mean2=mean2,
            mean3=mean3,
            variation1=(state.most[0] - state.least[0]) / mean1,
            variation2=(state.most[1] - state.least[1]) / mean2,
            variation3=(state.most[2] - state.least[2]) / mean3,
        )
        state.rows = 0
    state.second = second
    for k in range(3):
        power = row.mf01 if k == 0 else row.mf02 if k == 1 else row.mf03
        if state.rows == 0:
            state.sums[k] = power
            state.least[k] = power
            state.most[k] = power
        else:
            state.sums[k] += power
            state.least[k] = min(state.least[k], power)
            state.most[k] = max(state.most[k], power)
    state.rows += 1
