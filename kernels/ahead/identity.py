"""What machine code depends on beside its source, read without numba and LLVM."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import sys
from importlib.util import find_spec
from pathlib import Path

_CPU = re.compile(
    r"^(vendor_id|cpu family|model|flags|CPU implementer|CPU architecture|CPU variant|CPU part"
    r"|Features)\s*:.*$",
    re.MULTILINE,
)
_VARIABLES = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES")


@functools.cache
def identity() -> bytes:
    """The digest of Python, numba, llvmlite and the processor."""
    facts = (
        platform.python_version(),
        sys.implementation.cache_tag,
        platform.machine(),
        _version_file("numba"),
        _version_file("llvmlite"),
        _cpu(),
        [os.environ.get(name, "") for name in _VARIABLES],
    )
    return hashlib.sha256(repr(facts).encode()).digest()


@functools.cache
def numba_version() -> str:
    """The version of numba; empty where it is not installed."""
    found = re.search(r'"version": "([^"]+)"', _version_file("numba"))
    return found[1] if found else ""


def _version_file(package: str) -> str:
    """The text of a package's `_version.py`; the package is not imported."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return ""
    return Path(spec.origin).with_name("_version.py").read_text()


def _cpu() -> list[str]:
    """The kernel's description of the first processor."""
    text = Path("/proc/cpuinfo").read_text()
    first = text.partition("\n\n")[0]
    return [line.group() for line in _CPU.finditer(first)]
