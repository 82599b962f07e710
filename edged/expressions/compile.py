"""`python -m edged.expressions.compile MODULE...`: compile generated kernels, into numba's cache
and into libraries."""

from __future__ import annotations

import sys
from pathlib import Path


def main(paths: list[str]) -> None:
    """Compile each module's kernel."""
    from edged.expressions import cache

    for path in paths:
        try:
            cache.make(Path(path))
        except cache.CompileError as problem:
            sys.stderr.write(problem.text)
            sys.exit(cache.REFUSED)


if __name__ == "__main__":
    main(sys.argv[1:])
