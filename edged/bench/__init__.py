"""The benchmarks: `edged bench …`. Each module that defines a `command` is one benchmark.

    compress links that compress, by data, mode and speed of the link
    cost    CPU time of the daemon by beat, row and message
    e2e     producers → daemon → collector over loopback sockets, checked against DuckDB
    energy  the ecoJoin paper's experiments on the simulated Nano; nothing is measured
    equipment  jobs that watch machines, written in three ways, 1 to 32 in a daemon
    fleet   a collector's CPU time, latency and gaps with up to 10 000 devices
    idle    CPU time, wakeups and memory of an almost idle daemon
    join    the join family in steady state, compared with each other and with the roofline
    promise beats that miss their latency promise, by promise and load
    relay   packets through three daemons; concurrent jobs among them
    shuffle the shuffle family against a copy of the same bytes, its ablations, and its peers
    staircase  backpressure over three daemons
    spark   Spark reading pages, compared with Spark reading Parquet

    rig     starts and measures the processes        load    the load generator, a process
    verify  the reference join, and the order-free hash of result rows

    join_data, join_measure, join_peers, join_pages, join_report   the parts of `join`
    shuffle_grid, shuffle_measure, shuffle_check, shuffle_ablations, shuffle_peers, shuffle_report,
    shuffle_plot                                                   the parts of `shuffle`
    relay_packets, relay_load, relay_chain, relay_sink, relay_daemon, relay_tally, relay_raw,
    relay_jobs, relay_report                                       the parts of `relay`
    compress_data, equipment_data, shaper, tukey                   the parts of `compress`
    equipment_jobs, equipment_load, equipment_check                the parts of `equipment`
    energy_service, energy_memory, energy_ecojoin, energy_gpu, energy_published, energy_arms,
    energy_report                                                  the parts of `energy`

Shared machines are noisy: each figure is a ratio or names the resource that limits it.
"""
