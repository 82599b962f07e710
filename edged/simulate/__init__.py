"""`edged simulate`: what a job would cost on a board that is not there.

    work.py      what a beat of the job takes on that board's cores
    gpu.py       what the join's kernels would take on its GPU, by the data sheet
    rows.py      times of kernels on that board: calibrated, converted or modelled
    device.py    the board: clocks that the kernel or a policy sets, joules, sleep
    engine.py    discrete events in virtual time, with the daemon's batcher, placer and policies
    bounds.py    which resource bounds the rate
    report.py    the answer as JSON, table and plot

Nothing here reads a clock; the same settings and seed give the same answer, to the last digit.
"""
