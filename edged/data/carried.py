"""The columns of a stream whose rows are pages of devices, as a gateway receives them."""

from __future__ import annotations

from edged.data.schema import BINARY, STRING, TIMESTAMP, Field, Schema

CARRIED_COLUMNS = ("device", "session", "token", "page")
"""Device, `counter:nonce` of its session, its token or an empty text, the page's bytes."""
ARRIVED = "at"
"""The event time: when the gateway received the page, by its own clock."""


def carried_schema() -> Schema:
    """All columns."""
    return Schema.of(
        [
            Field(ARRIVED, TIMESTAMP, False),
            *(Field(name, STRING, False) for name in CARRIED_COLUMNS[:-1]),
            Field(CARRIED_COLUMNS[-1], BINARY, False),
        ]
    )
