"""Compilation of everything that a daemon runs as machine code, with its progress.

Shared by `edged compile`, `edged run`, `edged up`, the demo, the calibration and the benches.  A
first start compiles for a minute or more; later ones load from the cache.  On a terminal the
progress is a bar; elsewhere a line every few seconds.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

from edged.job.plan import JobPlan

LINE_S = 5.0
"""Interval of the lines; a compilation that is shorter writes none."""
TICK_S = 1.0

Say = Callable[[str], object]


def compile_kernels(
    quiet: bool,
    plans: Iterable[JobPlan] = (),
    on_step: Say = lambda _: None,
    say: Say | None = None,
) -> tuple[int, float]:
    """Compile or load every kernel, the calls of the TCP source, and the expressions of `plans`;
    make the libraries for processes without a compiler (`kernels.ahead`).

    `on_step` is called every second with the state, on another thread.  `say` writes the lines;
    None: standard error, with a bar where that is a terminal.  With `quiet` there are neither.
    Returns the number of kernels and the seconds.  Raises KernelError.
    """
    from edged.expressions import cache
    from edged.job.check import generated
    from edged.sources import _tcp_calls
    from kernels import ahead, registry

    if not ahead.active():
        registry.load_all()
    texts = [text for plan in plans for text in generated(plan)]
    total = 0 if ahead.active() else len(registry.KERNELS)
    silent: Say = lambda _: None  # noqa: E731
    terminal = not quiet and say is None and sys.stderr.isatty() and total + len(texts) > 0
    lines = silent if quiet or terminal else say or _to_stderr
    report = CompileReport(total + len(texts), on_step, lines)
    with report, _bar(report) if terminal else nullcontext():
        if not ahead.active():
            for name in registry.compile_all():
                report.ready(name)
            _tcp_calls.prepare()
            _make_libraries(lines)
        for text in texts:
            cache.kernel(text)  # a child process compiles it
            report.ready("an expression")
    return len(registry.KERNELS), report.seconds()


def _make_libraries(say: Say) -> None:
    """The libraries of kernels, for later starts; says why where there are none."""
    from edged.platform.libraries import loops
    from kernels.ahead.build import build_all
    from kernels.ahead.elf import LinkError
    from kernels.ahead.wrappers import UnsupportedType

    try:
        build_all(loops())
    except (LinkError, UnsupportedType, OSError) as problem:
        say(f"kernels: no library for later starts: {problem}")


class CompileReport:
    """Reports how many of `total` kernels are ready while it is entered.

    `on_step` is called every TICK_S and `say` every LINE_S, both on a thread of the report: a
    single kernel may take longer than either.
    """

    def __init__(
        self, total: int, on_step: Say, say: Say, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.total, self.done, self.last = total, 0, ""
        self._on_step, self._say, self._clock = on_step, say, clock
        self._began_s = self._said_s = clock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="edged-compile", daemon=True)

    def ready(self, name: str) -> None:
        """One more is ready."""
        self.done, self.last = self.done + 1, name

    def seconds(self) -> float:
        """Time since the begin."""
        return self._clock() - self._began_s

    def text(self) -> str:
        """The state as a line."""
        return (
            f"kernels: {self.done} of {self.total} ready after {self.seconds():.0f} s; "
            "only a first start compiles them"
        )

    def tick(self) -> None:
        """Report what is due."""
        self._on_step(self.text())
        if self._clock() - self._said_s >= LINE_S:
            self._said_s = self._clock()
            self._say(self.text())

    def __enter__(self) -> CompileReport:
        self._on_step(self.text())
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(TICK_S):
            self.tick()


def _bar(report: CompileReport) -> AbstractContextManager[Any]:
    """A bar on standard error; it vanishes at the end."""
    from rich.console import Console
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    def picture() -> Table:
        row = Table.grid(padding=(0, 1))
        count = f"{report.done}/{report.total}, {report.seconds():.0f} s"
        row.add_row("compiling kernels", ProgressBar(report.total, report.done, 32), count)
        if report.seconds() >= LINE_S:
            row.add_row("", report.last.rpartition(".")[2], "only at a first start")
        return row

    console = Console(stderr=True)
    return Live(console=console, get_renderable=picture, transient=True, refresh_per_second=4)


def _to_stderr(text: str) -> None:
    sys.stderr.write(f"edged: {text}\n")
    sys.stderr.flush()
