"""Numbers of keys in the order of their first rows, in plain Python."""

from __future__ import annotations


def find_slots(keys):
    """The number of each row's key."""
    known = {}
    return [known.setdefault(key, len(known)) for key in keys]
