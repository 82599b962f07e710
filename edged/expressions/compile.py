"""`python -m edged.expressions.compile MODULE...`: compile generated kernels into numba's cache."""

from __future__ import annotations

import sys
from pathlib import Path


def main(paths: list[str]) -> None:
    """Compile each module's kernel."""
    from edged.expressions import cache

    for path in paths:
        cache.load(Path(path))


if __name__ == "__main__":
    main(sys.argv[1:])
