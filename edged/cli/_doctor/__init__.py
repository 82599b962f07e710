"""The checks of `edged doctor`.  Each module registers its own with `@check`.

A check looks at one thing of this machine and returns findings: what works, what does not and why,
and the command that mends it.  It changes nothing, needs no root, and takes at most some seconds.
"""
