"""Sending rows to edged: the producer's side of the wire.  Needs pyarrow, nothing else.

`edged.client.frames` defines the wire; docs/producers.md shows producers without this package.
`frames` and `connection`, which the uplink process uses too, do without pyarrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edged.client.messages import Prepared
    from edged.client.producer import Producer

__all__ = ["Prepared", "Producer"]


def __getattr__(name: str) -> Any:
    """A public class, imported when it is first named."""
    if name == "Producer":
        from edged.client.producer import Producer

        return Producer
    if name == "Prepared":
        from edged.client.messages import Prepared

        return Prepared
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
