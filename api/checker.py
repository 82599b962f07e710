"""Checks of job documents in a child process (`edged.job.check`).

Parsing untrusted documents and compiling expressions takes milliseconds to minutes of a core; none
of it runs in this process.  There is one child, with one request at a time.  It starts with the
first request and ends after IDLE_S without another, since a warm compiler takes 150 MB.  A request
that takes longer than its limit or kills the child is answered with a fault of the document; the
next request starts a new child.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from anyio import fail_after

from api.problems import ApiProblem, ProblemFault

IDLE_S = 60.0
SECONDS_MAX = 600.0
"""For a document that is compiled, which takes minutes of a small core."""
READ_SECONDS_MAX = 30.0
"""For a document that is only checked or explained."""
WAITING_MAX = 16
"""Requests that may wait."""
LINE_BYTES_MAX = 64 << 20

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class CheckResult:
    """Result of a check; `document` and `plan` are set only without faults."""

    faults: tuple[ProblemFault, ...]
    warnings: tuple[str, ...]
    name: str | None
    document: dict[str, Any] | None
    plan: dict[str, Any] | None

    def insist(self) -> dict[str, Any]:
        """The document.  Raises ApiProblem 422 if it has faults."""
        if self.document is None:
            count = "one fault" if len(self.faults) == 1 else f"{len(self.faults)} faults"
            raise ApiProblem("invalid", f"the job document has {count}", errors=self.faults)
        return self.document


class Checker:
    """Sends requests to the child, which it starts and ends; each may take `seconds_max`."""

    def __init__(self, seconds_max: float = SECONDS_MAX) -> None:
        self._seconds_max = seconds_max
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._child: Process | None = None
        self._rest: asyncio.TimerHandle | None = None

    async def ask(
        self, text: str, format: str, progress: Progress, *, compile: bool, explain: bool = False
    ) -> CheckResult:
        """The result for a document of `format` (`json`, `toml`).  Raises ApiProblem 503 if too
        many requests wait."""
        if self._waiting >= WAITING_MAX:
            raise ApiProblem(
                "unavailable", f"{self._waiting} documents wait to be checked", retry_after_s=5
            )
        self._waiting += 1
        try:
            async with self._turn:
                request = {"text": text, "format": format, "compile": compile, "explain": explain}
                return await self._answer(request, progress)
        finally:
            self._waiting -= 1

    async def close(self) -> None:
        """End the child."""
        if self._rest is not None:
            self._rest.cancel()
        if self._child is not None:
            await self._bury(self._child)

    async def _answer(self, request: dict[str, Any], progress: Progress) -> CheckResult:
        child = await self._ready()
        try:
            with fail_after(self._seconds_max):
                return await _exchange(child, request, progress)
        except (OSError, ValueError) as problem:
            await self._bury(child)
            slow = isinstance(problem, TimeoutError)
            what = f"takes longer than {self._seconds_max:.0f} s" if slow else "cannot be checked"
            fault = ProblemFault("document", what, "make it smaller, or try `edged validate`")
            return CheckResult((fault,), (), None, None, None)
        except asyncio.CancelledError:
            await self._bury(child)  # its answer would be taken for the next request's
            raise
        finally:
            self._rest = asyncio.get_running_loop().call_later(IDLE_S, self._dismiss)

    async def _ready(self) -> Process:
        if self._rest is not None:
            self._rest.cancel()
        if self._child is None or self._child.returncode is not None:
            self._child = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "edged.platform.libraries", "edged.job.check",
                stdin=PIPE, stdout=PIPE, stderr=DEVNULL, limit=LINE_BYTES_MAX,
            )  # fmt: skip
        return self._child

    def _dismiss(self) -> None:
        """End an idle child by closing its input."""
        if self._child is not None and not self._turn.locked():
            assert self._child.stdin is not None
            self._child.stdin.close()
            self._child = None

    async def _bury(self, child: Process) -> None:
        self._child = None
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()


async def _exchange(child: Process, request: dict[str, Any], progress: Progress) -> CheckResult:
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(json.dumps(request).encode() + b"\n")
    await child.stdin.drain()
    while line := await child.stdout.readline():
        reply = json.loads(line)
        if "verdict" in reply:
            return _check_result(reply["verdict"])
        step = reply["progress"]
        progress(step["step"], step["done"], step["of"])
    raise ConnectionResetError("the child died")


def _check_result(reply: dict[str, Any]) -> CheckResult:
    faults = tuple(ProblemFault(f["path"], f["problem"], f["advice"]) for f in reply["faults"])
    return CheckResult(
        faults, tuple(reply["warnings"]), reply["name"], reply["document"], reply["plan"]
    )
