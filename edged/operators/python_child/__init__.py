"""The child process of a `python` operator: `python -m edged.operators.python_child FD`.

It shares two areas of memory with the daemon, and one socket for frames (`channel`):

    daemon ── inbox: rows sorted by partition, an Arrow stream ──► child
    daemon ◄─ outbox: partition in work, outputs and states ────── child

The user's code runs under limits (`sandbox`), one instance a partition (`instances`).  It imports
pyarrow and nothing else of edged.
"""
