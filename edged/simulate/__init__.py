"""`edged simulate`: the cost of a job on a board that is not there.

    work.py      cost of a beat of the job on the board's cores
    gpu.py       cost of the join's kernels on its GPU, by the data sheet
    rows.py      kernel times on that board: calibrated, converted or modelled
    device.py    the board: clocks, energy, sleep states
    engine.py    discrete events in virtual time, with the daemon's batcher, placer and policies
    bounds.py    the rate that each resource allows
    report.py    the answer as JSON, table and figure

The simulation is deterministic: it reads no real clock, and equal settings and seeds give equal
answers.
"""
