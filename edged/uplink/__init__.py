"""The uplink: sends sealed pages to the centre from a process of its own.

    daemon ── Uplink (handle.py) ──socketpair, JSON lines──► python -m edged.uplink
                                                              Sender (sender.py): decides
                                                              lanes (child.py): threads that send

Only the standard library is imported here, so that the child stays small (about 20 MB) and starts
fast.  HTTP is `http.client` on blocking sockets, one connection and one thread a lane: a lane that
has nothing to do sleeps in the kernel without timers, and a page goes from file to socket through
one buffer.  httpx costs some 25 MB and 0.2 s of start for the same, aiohttp is one dependency more.
"""

from edged.uplink.handle import Uplink

__all__ = ["Uplink"]
