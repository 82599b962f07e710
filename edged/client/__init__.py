"""Sending rows to edged: the producer's side of the wire.  Needs pyarrow, nothing else.

`edged.client.frames` defines the wire; docs/producers.md shows producers without this package.
"""

from __future__ import annotations

from edged.client.messages import Prepared
from edged.client.producer import Producer

__all__ = ["Prepared", "Producer"]
