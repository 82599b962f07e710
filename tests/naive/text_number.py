"""Floats from texts and as texts, said plainly."""

from __future__ import annotations

import math
import re

_DIGITS = r"\d+(?:_\d+)*"
_NUMBER = r"(?:D\.?(?:D)?|\.D)(?:e[+-]?D)?".replace("D", _DIGITS)
_FLOAT = re.compile(
    rf"[ \t-\r]*\+?(-?(?:infinity|inf|nan)|(-?{_NUMBER}))(\(\w*\))?[ \t-\r]*",
    re.IGNORECASE | re.ASCII,
)


def plain_float(text):
    """The float in a text, as pyarrow reads it; None where there is none."""
    match = _FLOAT.fullmatch(text)
    if match is None or (match[3] and not match[1].lower().endswith("nan")):
        return None
    return match[1].replace("_", "")


def float_layout(x):
    """Python's text of a float, which has the same digits, and a sign of NaN."""
    if math.isnan(x):
        return "-nan" if math.copysign(1, x) < 0 else "nan"
    return repr(x)
