"""A daemon of the relay benchmarks: `python -m edged.bench.relay_daemon TALLY [OPTIONS] run JOB …`.

It is `edged` with the sink `packet_tally`, and counts the time of Python's garbage collector in the
file TALLY.  `--single`: each message is a beat of its own.  `--fresh`: memory of columns is
allocated for each beat.  `--network NAME`: it runs in that network namespace.
"""

from __future__ import annotations

import gc
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import edged.bench.relay_sink  # noqa: F401  registers it
from edged.beat.batcher import Batcher
from edged.bench.relay_shaped import enter_network
from edged.bench.relay_tally import Tally
from edged.data.scratch import Scratch
from edged.data.staging import Staging
from edged.links.page_memory import PageMemory


def one_row(_: Batcher) -> int:
    """Rows of a beat where each packet has a race of its own."""
    return 1


def count_collections(tally: Tally) -> None:
    """Count the time of the garbage collector from now on."""
    began = 0

    def on_collection(phase: str, _: dict[str, Any]) -> None:
        nonlocal began
        if phase == "start":
            began = time.perf_counter_ns()
        else:
            tally.collected(time.perf_counter_ns() - began)

    gc.callbacks.append(on_collection)


def main() -> None:
    """Run the command line."""
    count_collections(Tally(Path(sys.argv.pop(1))))
    if sys.argv[1] == "--fresh":
        del sys.argv[1]
        Scratch.reuse = Staging.reuse = PageMemory.reuse = False
    if sys.argv[1] == "--single":
        del sys.argv[1]
        Batcher.rows_max = one_row  # type: ignore[assignment,method-assign]
    if sys.argv[1] == "--network":
        enter_network(sys.argv[2])
        del sys.argv[1:3]
    runpy.run_module("edged", run_name="__main__")


if __name__ == "__main__":
    main()
