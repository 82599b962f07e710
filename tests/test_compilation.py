"""The progress of a compilation: its text, its receivers and its interval."""

from __future__ import annotations

import os
import threading

import pytest

from edged.daemon import compilation
from edged.daemon.compilation import LINE_S, CompileReport, compile_kernels
from edged.errors import KernelError
from edged.expressions import cache
from edged.job.builder import Job, generator
from edged.job.plan import load_kinds
from kernels import registry


class FakeTime:
    """Seconds that a test sets."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


def test_a_line_is_written_every_few_seconds_and_the_state_each_time():
    now, lines, states = FakeTime(), [], []
    report = CompileReport(70, states.append, lines.append, now)
    for second in range(1, 14):
        now.now_s = second
        report.ready(f"kernels.cpu.k{second}")
        report.tick()
    assert LINE_S == 5
    assert [line.partition(";")[0] for line in lines] == [
        "kernels: 5 of 70 ready after 5 s",
        "kernels: 10 of 70 ready after 10 s",
    ]
    assert "only a first start compiles them" in lines[0]
    assert len(states) == 13


def test_a_kernel_that_takes_long_does_not_silence_the_report(monkeypatch):
    """The thread of the report ticks while the main thread compiles."""
    monkeypatch.setattr(compilation, "TICK_S", 0.01)
    monkeypatch.setattr(compilation, "LINE_S", 0.02)
    said = threading.Event()
    with CompileReport(1, lambda _: None, lambda _: said.set()):
        assert said.wait(120)


@pytest.fixture
def one_kernel(monkeypatch):
    """A registry of one kernel, so that nothing is compiled; imports register in the real one."""
    registry.load_all()
    load_kinds()
    monkeypatch.setattr(registry, "load_all", lambda: None)
    monkeypatch.setattr(registry, "KERNELS", {"kernels.cpu.one": None})
    monkeypatch.setattr(registry, "compile_all", lambda: iter(["kernels.cpu.one"]))


def test_expressions_of_jobs_are_compiled_and_counted(one_kernel, monkeypatch):
    compiled, states = [], []
    monkeypatch.setattr(cache, "kernel", compiled.append)
    made = Job("j")
    stream = made.stream("s", generator(5), {"t": "timestamp", "x": "float64"}, time="t")
    stream.filter("some", "x > 0.5").pages("p")
    count, _ = compile_kernels(False, [made.plan()], states.append, lambda _: None)
    assert count == 1 and len(compiled) == 1
    assert states[0].startswith("kernels: 0 of 2 ready")


def test_the_report_ends_where_a_kernel_does_not_compile(one_kernel, monkeypatch):
    def fails():
        yield "kernels.cpu.one"
        raise KernelError("no")

    monkeypatch.setattr(registry, "compile_all", fails)
    with pytest.raises(KernelError):
        compile_kernels(quiet=True)
    assert "edged-compile" not in [thread.name for thread in threading.enumerate()]


def test_a_terminal_shows_a_bar_with_counts(one_kernel, monkeypatch):
    """On a real terminal; without one nothing is drawn."""
    mine, theirs = os.openpty()
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        monkeypatch.setenv("TERM", "xterm")
        compile_kernels(quiet=False)
        shown = os.read(mine, 65536).decode()
    os.close(mine)
    assert "compiling kernels" in shown and "1/1" in shown
