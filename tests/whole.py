"""How much of a campaign a run does: a slice of it, or all with `--whole`.

The assertions are the same in both.  A slice finds what breaks a way altogether, the whole what
breaks it rarely.
"""

import os

WHOLE = "EDGED_WHOLE"
"""Set by `--whole`, for the tests that run pytest in a process of their own too."""
SHARE, EXAMPLES_MIN = 5, 10
"""A slice tries a property with a fifth of its examples, and with so many at least."""


def count(of_slice, of_whole):
    """What this run does of two counts, or of two collections of cases."""
    return of_whole if os.environ.get(WHOLE) else of_slice


def examples(of_whole):
    """How many examples of a property this run tries."""
    return count(min(of_whole, max(EXAMPLES_MIN, of_whole // SHARE)), of_whole)
