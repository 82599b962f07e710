"""`python -m edged.bench.start_kernels`: kernels of numba beside those of the library, as JSON.

Both are in one process and are called by turns on the same memory: operators over a million rows on
one thread, and hashes of one row, which show the cost of a call.  By name, the least CPU time of
numba's over the library's; above 1 the library is faster.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from edged.expressions import cache
from edged.platform.libraries import loops
from kernels import ahead, registry
from kernels.ahead.library import Library

ROUNDS, CALLS = 30, 20_000
JOIN_WINDOW, JOIN_ROWS = 100_000, 20_000


class Either:
    """A kernel in both forms."""

    form = 0
    """Which one is called: 0 numba's, 1 the library's."""

    def __init__(self, *forms: Any) -> None:
        self.forms = forms

    def __call__(self, *arguments: Any) -> Any:
        return self.forms[Either.form](*arguments)


def main() -> None:
    """Measure and print."""
    sys.stdout.write(json.dumps(_ratios(_cases())) + "\n")


def _cases() -> dict[str, Callable[[], object]]:
    from edged.bench import kernels
    from edged.calibration.join_data import BeatFeed, draw
    from edged.calibration.join_measure import MemberDriver
    from edged.data.hashing import hash_columns
    from edged.data.scratch import Scratch
    from edged.data.workers import Workers
    from edged.joins.base import find_join

    registry.load_all()
    _take_either()
    workers, batch, scratch = Workers(1), kernels.rows(1000), Scratch()
    window, chained = kernels.window(workers), kernels.chained(workers, 0.0)
    member = find_join("chain")
    assert member is not None
    feed = BeatFeed(draw(JOIN_WINDOW, 0.01, "uniform", (JOIN_ROWS,)), JOIN_ROWS)
    join = MemberDriver(member, feed, 1)

    def joined() -> None:
        if not feed.ready():
            feed.turn()
        join.step()

    one = batch.slice(0, 1)

    def hashed() -> None:
        for _ in range(CALLS):
            hash_columns(one, ["k"], scratch)

    return {
        "filter and map": lambda: kernels.run(chained, batch, workers, 0),
        "sum by key": lambda: kernels.run([window], batch, workers, 0),
        "hash": lambda: hash_columns(batch, ["k", "x"], scratch),
        "calls": hashed,
        "join": joined,
    }


def _take_either() -> None:
    """Put both forms of each kernel, and of each expression to come, where numba's is."""
    library = Library(ahead.library_paths(loops())[ahead.KERNELS])
    found = {
        id(row.dispatcher): Either(row.dispatcher, library.function(row.name))
        for row in registry.KERNELS.values()
        if row.device == "cpu" and not isinstance(row.dispatcher, registry.Task)
    }
    for module in [m for name, m in sys.modules.items() if name.startswith(("edged", "kernels"))]:
        for name, value in list(vars(module).items()):
            if id(value) in found:
                setattr(module, name, found[id(value)])
    loaded = cache.kernel

    def kernel(source: str, child: bool = True) -> Either:
        made = loaded(source, child)
        return Either(made, Library(cache.library_of(source)).function(cache.FUNCTION))

    setattr(cache, "kernel", kernel)  # noqa: B010


def _ratios(cases: dict[str, Callable[[], object]]) -> dict[str, float]:
    found = {}
    for name, case in cases.items():
        spent: tuple[list[int], list[int]] = ([], [])
        for turn in range(-1, ROUNDS):
            for form in (0, 1) if turn % 2 else (1, 0):
                Either.form = form
                before = time.process_time_ns()
                case()
                spent[form].append(time.process_time_ns() - before)
        found[name] = round(min(spent[0][1:]) / min(spent[1][1:]), 3)
    return found


if __name__ == "__main__":
    main()
