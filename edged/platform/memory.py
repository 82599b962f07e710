"""Gives back memory that only the start of a process needed.

Loading kernels runs through most of LLVM's machine code, and imports through much of that of
pyarrow and Python. These file pages stay in the process's resident set, although nothing runs them
again. The kernel takes them back under pressure only, by scanning. `release_code` unmaps them; a
page that is needed once more is mapped again from the page cache, 64 KiB at a time.

With it the almost idle daemon has 178 MB resident, without it 243 (docs/measurements/e2e.md).
"""

from __future__ import annotations

import ctypes
import re
import sys
from pathlib import Path

_MADV_DONTNEED = 4
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) r-xp \S+ \S+ [1-9]\d*\s+/", re.ASCII)
"""A file's machine code in /proc/self/maps. It is private and never written, so that dropping its
pages loses nothing; pages that relocation has changed lie in mappings without `x`."""


def release_code() -> int:
    """Unmap the machine code of all files that the process has mapped, and return free heap to the
    kernel.  Returns the bytes of the mappings; 0 where this is not Linux or not possible.

    Pages that run meanwhile, in this or another thread, are mapped again at their next use.
    """
    if not sys.platform.startswith("linux"):
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return 0
    if hasattr(libc, "malloc_trim"):  # glibc
        libc.malloc_trim(0)
    released = 0
    for found in filter(None, map(_MAPPING.match, lines)):
        start, end = (int(text, 16) for text in found.groups())
        if libc.madvise(start, end - start, _MADV_DONTNEED) == 0:
            released += end - start
    return released
