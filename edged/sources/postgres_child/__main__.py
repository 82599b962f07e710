"""`python -m edged.sources.postgres_child FD`: replicates for the source at the other end of a
socket, and ends with it."""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
from collections.abc import Sequence

from edged.sources.postgres_child.channel import SourceChannel
from edged.sources.postgres_child.replication import Replication


def _end_with(own: socket.socket) -> None:
    """End the process with the other end of its socket, whatever it waits for."""
    watch = select.poll()
    watch.register(own, 0)
    watch.poll()
    os._exit(0)


def main(arguments: Sequence[str]) -> None:
    """Replicate for the source at the other end of a socket."""
    own = socket.socket(fileno=int(arguments[0]))
    channel = SourceChannel(own)
    config = channel.config()
    threading.Thread(target=_end_with, args=(own,), daemon=True).start()
    Replication(channel, config).run()


if __name__ == "__main__":
    main(sys.argv[1:])
