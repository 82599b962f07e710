"""The live view of `edged run` on a terminal: a child process beside the daemon.

    daemon ──── lines of standard error, a pipe ────► view ──► terminal
           ◄─── control socket, one status a second ──

Nothing of it runs in the daemon, whose interpreter belongs to the beat.  While the view runs, the
daemon's standard error is the pipe: its log lines appear above the figures.  The view ends with the
pipe; when it dies, standard error is the terminal again.

`python -m edged.cli._run_view DOOR` is the child; it draws on its standard output.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from edged.cli._run_report import counted
from edged.cli._top import LiveView, amount
from edged.control.door import watch
from edged.errors import CommandError
from edged.platform.processes import NICENESS
from edged.rest import LiveMessage

if TYPE_CHECKING:
    from edged.platform.event_loop import EventLoop

END_S = 5.0
"""Time for the view to draw its last lines."""
BAR_WIDTH = 24
PROGRESS = (("bytes_read", "bytes_total"), ("rows_done", "rows_total"))
"""Counters of a source that can end: how far it is, and its end."""


@contextlib.contextmanager
def live_view(door: Path, event_loop: EventLoop) -> Iterator[None]:
    """Run the view while the daemon runs.  Standard error leads through it meanwhile."""
    reading, writing = os.pipe()
    terminal = os.dup(2)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the daemon
    try:
        child = subprocess.Popen(
            [sys.executable, "-m", "edged.cli._run_view", str(door)],
            stdin=reading, stdout=terminal, stderr=terminal,
        )  # fmt: skip
    finally:
        signal.signal(signal.SIGINT, before)
        os.close(reading)
    process = os.pidfd_open(child.pid)

    def on_exit() -> None:
        event_loop.remove_control(process)
        os.dup2(terminal, 2)

    event_loop.add_control(process, on_exit)
    os.dup2(writing, 2)
    os.close(writing)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(terminal, 2)  # closes the pipe
        try:
            child.wait(END_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        os.close(process)
        os.close(terminal)


class RunView:
    """The figures of the newest status documents, as the terminal shows them."""

    def __init__(self) -> None:
        self._view = LiveView()
        self._status: dict[str, Any] | None = None

    def take(self, status: dict[str, Any]) -> None:
        """The next status document."""
        self._status = status
        self._view.on_message(LiveMessage("snapshot", status))

    def render(self) -> RenderableType:
        """The current picture."""
        if self._status is None:
            return Text("")
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        for justify in ("left", "left", "right", "right", "left"):
            table.add_column(justify=justify)
        bars = self._bars()
        for name, job in self._view.figures()["jobs"].items():
            for part in job["parts"]:
                table.add_row(*_row(name, part, bars.get((name, part["id"]), "")))
        return Group(table, self._foot())

    def _bars(self) -> dict[tuple[str, str], RenderableType]:
        """The bar of each source that can end, beside its first stream."""
        assert self._status is not None
        bars: dict[tuple[str, str], RenderableType] = {}
        for source in self._status["sources"]:
            for done, total in PROGRESS:
                if source.get(total) and source["streams"]:
                    rate = self._view.rate(partial(_processed, source["name"], done))
                    first = source["streams"][0]
                    at = _processed(source["name"], done, self._status)
                    bars[first["job"], first["stream"]] = _bar(at, source[total], rate)
        return bars

    def _foot(self) -> Text:
        status = self._status
        assert status is not None
        store, uplink = status["store"], status["uplink"]
        late = sum(s["late"] for job in status["jobs"].values() for s in job["streams"].values())
        backlog = counted(store["backlog_pages"], "page")
        words = [f"{counted(status['pages'], 'page')} sealed", f"{counted(late, 'row')} late"]
        words.append(f"backlog {backlog}, {amount(store['backlog_bytes'])}B")
        if uplink is not None:
            words.append(f"uplink {uplink['state']}")
        if store["full"]:
            words.append("the store is full")
        text = Text(" · ".join(words), style="dim")
        if status["state"] == "draining":
            text.append(f"\ndelivers: {_waits(status)}", style="yellow")
        return text


def _processed(name: str, counter: str, status: dict[str, Any]) -> float:
    """How much of what a source has read is processed: staged rows are not.  Raises KeyError where
    the source is not there."""
    for source in status["sources"]:
        if source["name"] == name:
            fed = [status["jobs"][f["job"]]["streams"][f["stream"]] for f in source["streams"]]
            rows = sum(s["rows"] for s in fed)
            read = rows + sum(s["staged"] for s in fed)
            return float(source[counter] * rows / read if read else 0)
    raise KeyError(name)


def _row(job: str, part: dict[str, Any], bar: RenderableType) -> tuple[RenderableType, ...]:
    rate = "" if part["rows_per_s"] is None else f"{amount(part['rows_per_s'])}/s"
    count = part.get("matches") if part["part"] == "operator" else part.get("rows")
    unit = "matches" if part["part"] == "operator" else "rows"
    details = [f"{part['late']:,} late"] if part.get("late") else []
    details += [counted(part[f"{k}s"], k) for k in ("page", "file") if part.get(f"{k}s")]
    details += ["ended"] if part.get("ended") else []
    shown = f"{count:,} {unit}" if count is not None else ""
    more: RenderableType = Text(", ".join(details), style="dim")
    if bar and not part.get("ended"):
        more = bar
    return Text(f"{job} {part['part']}", style="dim"), Text(part["id"]), shown, rate, more


def _bar(done: float, total: int, per_s: float | None) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    left = f", {_duration((total - done) / per_s)} left" if per_s and done < total else ""
    grid.add_row(ProgressBar(total, done, width=BAR_WIDTH), f"{100 * done / total:.0f} %{left}")
    return grid


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _waits(status: dict[str, Any]) -> str:
    """What a drain waits for."""
    staged = sum(s["staged"] for job in status["jobs"].values() for s in job["streams"].values())
    pages = status["store"]["backlog_pages"]
    words = [f"{counted(staged, 'row')} to process"] if staged else []
    if pages and status["uplink"] is not None:
        why = status["uplink"]["problem"]
        words.append(f"{counted(pages, 'page')} to the centre" + (f" ({why})" if why else ""))
    return ", ".join(words) or "the last commit"


def show(door: Path, lines: TextIO, console: Console) -> None:
    """Draw until `lines` ends."""
    messages: queue.SimpleQueue[dict[str, Any] | str | None] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(lines, messages), daemon=True).start()
    threading.Thread(target=_watch, args=(door, messages), daemon=True).start()
    view = RunView()
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while (message := messages.get()) is not None:
            if isinstance(message, str):
                live.console.print(message, markup=False, highlight=False, soft_wrap=True)
            else:
                view.take(message)
                live.update(view.render(), refresh=True)


def _read(lines: TextIO, messages: queue.SimpleQueue[dict[str, Any] | str | None]) -> None:
    for line in lines:
        messages.put(line.rstrip("\n"))
    messages.put(None)


def _watch(door: Path, messages: queue.SimpleQueue[dict[str, Any] | str | None]) -> None:
    with contextlib.suppress(CommandError):  # the daemon ends; the lines end after that
        for message in watch(door, timeout_s=3600.0):
            if "snapshot" in message:
                messages.put(message["snapshot"])


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    show(Path(sys.argv[1]), sys.stdin, Console())
