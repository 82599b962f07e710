"""The heartbeat: idle → wake → race → commit → idle.

batcher   when to wake                     sans-IO
times     watermarks, idleness, lateness   sans-IO
take      how much of each stream to take  sans-IO
record    what a beat writes into the log
runtime   one job's stagings, operators and sinks, built and run
committer the thread that makes a beat durable and lets the acks go
recover   snapshot and log back into a runtime; a replaced job's carry-over
heart     the loop itself
"""
