"""Keeping the open pages of a job within its memory, at the end of each beat."""

from __future__ import annotations

from collections.abc import Mapping

from edged.beat.record import JobFacts
from edged.data.flow import BeatContext
from edged.pages.sealed import SealedPage
from edged.sinks.base import Sink


def seal_early(
    beat: BeatContext, facts: JobFacts, sinks: Mapping[str, Sink], shares: Mapping[str, int]
) -> list[SealedPage]:
    """Seal pages of the `sinks` whose open pages take more than their share of the memory.

    A replay repeats what the record says, so that another share gives the same pages.
    """
    if facts.sealed_early is None:
        facts.sealed_early = {n: most for n, most in shares.items() if sinks[n].exceeds(most)}
    pages: list[SealedPage] = []
    for name, most in facts.sealed_early.items():
        pages += sinks[name].seal_early(beat, most)
    return pages
