"""The heartbeat: idle → wake → race → commit → idle.

batcher   when to wake                     sans-IO
times     watermarks, idleness, lateness   sans-IO
take      how much of each stream to take  sans-IO
left      what a beat leaves to later ones   sans-IO
steering  what the governor is told, and wants
record    what a beat writes into the log
runtime   one job's stagings, operators and sinks, built and run
committer the thread that makes a beat durable and lets the acks go
snapshotting  when a snapshot is due, and its writing beside commits
changes   jobs that come, change and go between two beats
recover   snapshot and log back into a runtime; a replaced job's carry-over
heart     the loop itself
"""
