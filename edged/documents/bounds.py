"""Bounds of an untrusted document's text, checked before its parser reads it.

The parsers of TOML and JSON recurse once a level, and TOML's takes time in proportion to the square
of a dotted key's parts.  Both checks take time in proportion to the text, and accept every text
that could be a job.
"""

from __future__ import annotations

import re
from itertools import accumulate

from edged.errors import JobError

DEPTH_MAX = 32
"""Levels of a document; a job has at most eight."""
_ADVICE = "this is not a job document"
_TOML_TEXTS = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*"{0,5}|' + r"'''(?:[^']|'(?!''))*'{0,5}"
    r'|"(?:[^"\\\n]|\\.)*"?|' + r"'[^'\n]*'?|#[^\n]*",
    re.DOTALL,
)
"""Texts and comments of TOML, in which dots and brackets mean nothing.  A text without an end is
taken up to the text's end or the line's: no part of it is searched twice."""
_LONG_KEY = re.compile(
    rf"(?<![A-Za-z0-9_-])(?:[A-Za-z0-9_-]+[ \t]*\.[ \t]*){{{DEPTH_MAX}}}"
)  # begins at words only, or a long word would take quadratic time
_JSON_TEXTS = re.compile(r'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_STEPS = {"[": 1, "{": 1, "]": -1, "}": -1}
_NO_BRACKET = re.compile(r"[^\[\]{}]+")


def check_toml(name: str, text: str) -> None:
    """Raise JobError at `name` for a key of DEPTH_MAX parts, or brackets as deep."""
    bare = _TOML_TEXTS.sub(lambda found: "" if found[0][0] == "#" else "t", text)
    if _LONG_KEY.search(bare):
        raise JobError(name, f"has a key of more than {DEPTH_MAX} parts", _ADVICE)
    _check_depth(name, bare)


def check_json(name: str, text: str) -> None:
    """Raise JobError at `name` for values nested deeper than DEPTH_MAX."""
    _check_depth(name, _JSON_TEXTS.sub("", text))


def _check_depth(name: str, bare: str) -> None:
    brackets = _NO_BRACKET.sub("", bare)
    if max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > DEPTH_MAX:
        raise JobError(name, f"is nested deeper than {DEPTH_MAX} levels", _ADVICE)
