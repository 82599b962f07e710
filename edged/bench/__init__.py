"""The benchmarks: `edged bench …`.  Each module that names a `command` is one of them.

    e2e     producers → daemon → collector over loopback sockets, checked against DuckDB
    energy  the ecoJoin paper's experiments on the simulated Nano: nothing is measured
    idle    what an almost idle daemon costs
    join    the join family in steady state, against each other and against the memory
    spark   Spark reading pages against Spark reading Parquet

    rig     starts and measures the processes        load    the load generator, a process
    verify  the independent join, and the order-free hash of result rows

    join_data, join_measure, join_peers, join_pages, join_report   the parts of `join`
    energy_service, energy_memory, energy_ecojoin, energy_gpu, energy_published, energy_arms,
    energy_report                                                  the parts of `energy`

Figures are ratios or come with what limits them: the machines they run on are noisy.
"""
