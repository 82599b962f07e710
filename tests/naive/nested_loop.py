"""The nested-loop kernels over lists of rows (time, tag, number)."""

from __future__ import annotations


def probe(rows, window, back, ahead):
    """All pairs (number of a row, number of an entry of the window)."""
    return [
        (row, met)
        for time, tag, row in rows
        for when, other, met in window
        if tag == other and -back <= when - time <= ahead
    ]


def append(window, rows):
    """Rows go to the window's end."""
    window.extend(rows)


def evict(window, bound, everything):
    """The oldest arrivals leave while they are below the bound."""
    while window and (everything or window[0][0] < bound):
        window.pop(0)
