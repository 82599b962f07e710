"""Suggestions for mistyped words: the one place that compares words."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The known word most similar to `word`; empty where none is similar."""
    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)), "")


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """Advice for an unknown word: the closest known one, else `otherwise`, else all of them, a set
    sorted."""
    names = sorted(known) if isinstance(known, set | frozenset) else list(known)
    if near := closest(word, names):
        return f"did you mean {near}?"
    return otherwise or (f"there are {', '.join(names)}" if names else "there is none")
