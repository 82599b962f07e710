"""Graphs: one document for a stream job that spans several daemons.

    document ─► GraphPlan (checked) ─► stages, exchanges ─► placement ─► a job for each instance

`document` reads it, `keys` checks what is partitioned by key, `stages` cuts it where rows leave a
daemon, `placement` chooses daemons, `jobs` writes the job documents, `latency` adds up what they
promise, and `rollout` brings them to the daemons.
"""
