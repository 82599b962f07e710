"""The benchmarks: `edged bench …`.  Each module that names a `command` is one of them.

    e2e     producers → daemon → collector over loopback sockets, checked against DuckDB
    idle    what an almost idle daemon costs
    spark   Spark reading pages against Spark reading Parquet

    rig     starts and measures the processes        load    the load generator, a process
    verify  the independent join, and the order-free hash of result rows

Figures are ratios or come with what limits them: the machines they run on are noisy.
"""
