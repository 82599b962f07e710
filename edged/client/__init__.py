"""Sending rows to edged: the producer's side of the wire.  Needs pyarrow, nothing else.

`frames` says what the wire is, `docs/producers.md` how to do without this package.
"""

from __future__ import annotations

from edged.client.messages import Prepared
from edged.client.producer import Producer

__all__ = ["Prepared", "Producer"]
