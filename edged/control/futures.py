"""Answers that are resolved later, from another thread: helpers for `concurrent.futures.Future`."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from edged.errors import CommandError, EdgedError

A = TypeVar("A")
B = TypeVar("B")


def mapped(future: Future[A], convert: Callable[[A], B]) -> Future[B]:
    """A future with the converted result of `future`, or with its exception."""
    result: Future[B] = Future()

    def on_done(done: Future[A]) -> None:
        if (problem := done.exception()) is not None:
            result.set_exception(problem)
        else:
            resolve(result, lambda: convert(done.result()))

    future.add_done_callback(on_done)
    return result


def resolve(future: Future[A], call: Callable[[], A]) -> None:
    """Set the future to the result of `call`, or to the error that it raises.

    A defect becomes a CommandError: it must not end a thread of the daemon.
    """
    try:
        future.set_result(call())
    except EdgedError as problem:
        future.set_exception(problem)
    except Exception as problem:
        future.set_exception(CommandError("failed", f"{type(problem).__name__}: {problem}"))
