"""A team of threads, done one after the other."""

from __future__ import annotations


def run(calls):
    """What each call (function, argument) answers, in order."""
    return [function(argument) for function, argument in calls]
