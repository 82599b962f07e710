"""A link's instances as lines: where each goes, its state and why, and what it has in flight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def link_line(link: Mapping[str, Any]) -> str:
    """One instance of a link, from the status document."""
    state = str(link["state"]).replace("_", " ")
    why = f": {link['problem']}" if link["problem"] else ""
    sent = f"{link['rows']:,} rows, {link['bytes']:,} bytes sent"
    return f"{state}, {sent}, {link['in_flight_bytes']:,} bytes in flight{why}"


def address_of(link: Mapping[str, Any]) -> str:
    """Where it goes; an instance that the link no longer has goes nowhere."""
    return str(link["to"] or f"instance {link['instance']}")
