"""The energy side of a running daemon: the board, its meters and its policy, between the beats.

settings   what was asked for on the command line
board      the board's tree, its profile, its meters; a simulated board's work
law        what races cost, learnt from races
watch      meters on their own timer, joules so far, the ledger
limits     the limits that a policy sets, owned and given back
runtime    the governor that the heart calls: a policy that runs, and what it is told
show       the section of the status; text: in lines for people
predict    what a job would cost on a board, beside what a running daemon measured

Through the door (`edged.control.door.ask`):

    ask(door, "governor")                              what runs
    ask(door, "governor", policy=NAME, settings={})    go on with another policy

answers, the second at once, between two beats

    {"policy": NAME, "was": NAME, "settings": {...}, "reason": "...", "forecast": "...",
     "problem": "..."}

`policy` is what runs now: `hands_off` with a `problem` where the one that was asked for may not set
anything here.  An unknown policy or setting is an error, and the old one goes on.

    ask(door, "energy")                                cumulative figures, for differences

    {"at_us": ..., "tuples": ..., "beats": ..., "policy": NAME, "idle_watts": W or null,
     "lag_us": ...,
     "input": {"rail", "covers", "joules", "provenance", "since_us", "until_us", "gap_us"} or null,
     "rails": [{"meter", "rail", "part_of", "feeds", "joules", "provenance", "since_us",
                "until_us", "gap_us", "problem"}, ...]}

Times are the daemon's monotonic µs.  Joules are of `since_us` to `until_us` without the gaps;
`tuples` and `beats` were counted at `at_us`, the time of the last reading (now, where nothing is
read).  Joules that are counted later than `lag_us` after a change of the input's power are all of
what it is now.  Everything starts at 0 with the process.
"""
