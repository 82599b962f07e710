"""Compilation of everything that a daemon runs as machine code, with a progress bar.

Shared by `edged compile`, `edged run`, the demo and the benches.
"""

from __future__ import annotations

import time
from collections.abc import Callable


def compile_kernels(
    quiet: bool, on_ready: Callable[[str], None] = lambda _: None
) -> tuple[int, float]:
    """Compile or load every kernel and the TCP source's calls.

    `on_ready` is called with `kernel NAME` for each kernel.  Returns the number of kernels and the
    seconds.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from edged.sources import _tcp_calls
    from kernels import registry

    started = time.monotonic()
    registry.load_all()
    total = len(registry.KERNELS)
    columns = (
        TextColumn("kernels"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[name]}"),
    )
    with Progress(*columns, console=Console(stderr=True), disable=quiet, transient=True) as bar:
        task = bar.add_task("compile", total=total, name="")
        for name in registry.compile_all():
            bar.update(task, advance=1, name=name)
            on_ready(f"kernel {name}")
        _tcp_calls.prepare()
    return total, time.monotonic() - started
