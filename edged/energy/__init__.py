"""Energy governor of a running daemon: the board, its meters and the power policy.

settings            energy settings from flags
board               the board's tree, profile and meters; work of a simulated board
cost_fit            cost of races, fitted to past races
metering            meters on their own timer, joules so far, the ledger
limits              clock limits that a policy sets, with their restoration
policies            which policy runs, and its origin
runtime             the governor that the heart calls
status, render      the status section, and its text form
predict             predicted cost of a job on a board, next to a running daemon's

Commands of the control socket (`edged.control.door.ask`):

    ask(door, "governor")                              the running policy
    ask(door, "governor", policy=NAME, settings={})    switch the policy, between two beats

Both return

    {"policy": NAME, "was": NAME, "settings": {...}, "reason": "...", "forecast": "...",
     "problem": "..."}

`policy` is the running one: `hands_off` with a `problem` where the requested policy may not set
anything on this board.  An unknown policy or setting is an error and changes nothing.

    ask(door, "energy")                                cumulative figures, for differences

    {"at_us": ..., "tuples": ..., "beats": ..., "policy": NAME, "idle_watts": W or null,
     "lag_us": ...,
     "input": {"rail", "covers", "joules", "provenance", "since_us", "until_us", "gap_us"} or null,
     "rails": [{"meter", "rail", "part_of", "feeds", "joules", "provenance", "since_us",
                "until_us", "gap_us", "problem"}, ...]}

Times are the daemon's monotonic µs.  Joules cover `since_us` to `until_us` without the gaps;
`tuples` and `beats` were counted at `at_us`, the time of the last reading (now, where there is no
meter). Joules read later than `lag_us` after a change of the input power reflect the new power
only.  All figures start at 0 with the process.
"""
