"""The heartbeat: idle → wake → race → commit → idle.

batcher           when to wake                                            no I/O
watermarks        watermarks, idle producers, lateness                    no I/O
stream_alignment  how many rows of each stream a beat takes               no I/O
pending_work      work that a beat leaves to later ones                   no I/O
governor_hooks    calls of the governor around a race
record            the log record of a beat
runtime           one job's stagings, operators and sinks
jobs              the registry of jobs, their versions and states
inputs            the running sources
committer         the thread that makes a beat durable and sends the acks
disk_full_gate    what waits for disk space
snapshots         when a snapshot is due, and its writing beside commits
changes           changes of the jobs between two beats
recover           from snapshot and log back to running jobs
crash_counter     processes that died in a race
quarantine        files of rows that killed the process
stats             counters and histograms
heart             the loop
"""
