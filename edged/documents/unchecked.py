"""What a check of a job document leaves open where no daemon is asked."""

from collections.abc import Sequence

UNCHECKED = (
    "whether a daemon has what it names: other jobs' names, streams and pages, addresses, files",
    "whether the store has room for its memory",
    "whether the state of the job that it replaces carries over",
)


def unchecked_line(unchecked: Sequence[str], do: str) -> str:
    """What was not checked, and what does, as a line."""
    return f"not checked: {'; '.join(unchecked)} ({do})"
