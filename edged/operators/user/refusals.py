"""What numba's refusals mean, and what to write instead."""

from __future__ import annotations

import re

_KNOWN = (
    (r"built-in function setitem", "elements of this cannot be assigned",
     "an input's columns are read only: write columns.x.copy()"),
    (r"[Cc]annot unify", "a variable has values of several types",
     "give it one type: float(...) or int(...)"),
    (r"built-in function (\w+)", "the operands of {0} have types that do not go together",
     "convert one: float(...), int(...), or a comparison for True and False"),
    (r"Function\(<(?:function|ufunc) '?(\w+)", "{0} does not take arguments of these types",
     "convert them: float(...) or int(...)"),
    (r"[Uu]ndefined variable|not defined before|referenced before", "a variable may have no value",
     "assign it on every way to this line"),
)  # fmt: skip


def refusal(reason: str) -> tuple[str, str]:
    """The fault and the remedy of a reason that numba gives."""
    for pattern, what, do in _KNOWN:
        if found := re.search(pattern, reason):
            return what.format(*found.groups()), do
    return reason, ""
