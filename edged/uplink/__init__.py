"""The uplink: sends sealed pages to the centre from a process of its own.

    daemon ── Uplink (handle.py) ──socketpair, JSON lines──► python -m edged.uplink
                                                              Sender (sender.py): state machine
                                                              lanes (child.py): sending threads

Only the standard library is imported here: the child stays small (about 20 MB) and starts fast.
HTTP is `http.client` on blocking sockets, with one connection and one thread per lane.  An idle
lane sleeps in the kernel without timers, and a page goes from file to socket through one buffer.
httpx costs some 25 MB and 0.2 s at the start; aiohttp is another dependency.
"""

from edged.uplink.handle import Uplink

__all__ = ["Uplink"]
