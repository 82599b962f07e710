"""Long requests as resources with progress, `/v1/operations/{id}`.

A request that finishes within its wait is answered like a short one.  Otherwise the response is 202
with the operation and its Location, where the client polls for the result.  `Prefer: wait=N` (RFC
7240) sets the wait in seconds, `Prefer: respond-async` sets it to 0; the default is WAIT_S.  The
last KEPT operations that have ended are kept; a restart of the API forgets all.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import Header
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from api.answers import validated
from api.problems import ApiProblem, defect, of_status
from edged.rest.answers import Operation

WAIT_S = 10.0
LOOK_S = 1
"""Polling interval for running operations."""
KEPT = 256
RUNNING_MAX = 32
WAITING_MAX = 64
"""Operations that only wait, for days if the centre is away, and do not count as running."""
_WAIT = re.compile(r"\bwait=([0-9]{1,3})\b")

Prefer = Annotated[
    str | None,
    Header(max_length=64, description="`wait=N` seconds, or `respond-async`: then an operation"),
]

Work = Callable[["Progress"], Awaitable[Response]]


class Progress:
    """Progress of a running operation, called by its work."""

    def __init__(self) -> None:
        self.step, self.done, self.of = "waiting", 0, 0

    def __call__(self, step: str, done: int, of: int) -> None:
        """Report `done` of `of` parts of `step`."""
        self.step, self.done, self.of = step, done, of


class _Running:
    def __init__(self, kind: str, waits: bool) -> None:
        self.id, self.kind, self.waits = secrets.token_hex(8), kind, waits
        self.started_us = time.time_ns() // 1000
        self.ended_us: int | None = None
        self.progress = Progress()
        self.response: Response | None = None
        self.task: asyncio.Task[None] | None = None


class OperationStore:
    """Running operations, and those that ended last."""

    def __init__(self) -> None:
        self._all: dict[str, _Running] = {}

    async def run(self, kind: str, prefer: str | None, work: Work, waits: bool = False) -> Response:
        """`work`'s response, if it comes within the wait; else 202 and the operation.

        `waits`: the work only waits for the daemon.  Raises ApiProblem 503 if too many such
        operations, or too many others, are running.
        """
        most = WAITING_MAX if waits else RUNNING_MAX
        if sum(o.ended_us is None and o.waits == waits for o in self._all.values()) >= most:
            raise ApiProblem("unavailable", f"{most} operations run already", retry_after_s=5)
        one = _Running(kind, waits)
        self._all[one.id] = one
        self._forget()
        one.task = asyncio.create_task(self._work(one, work))
        await asyncio.wait([one.task], timeout=_wait_s(prefer))
        if one.response is not None:
            return one.response
        return JSONResponse(
            self.get(one.id),
            202,
            {"Location": f"/v1/operations/{one.id}", "Retry-After": str(LOOK_S)},
        )

    def get(self, id: str) -> Operation:
        """The operation's resource.  Raises ApiProblem 404."""
        one = self._all.get(id)
        if one is None:
            raise ApiProblem(
                "not-found", f"there is no operation {id}",
                f"the last {KEPT} are remembered until the API ends; repeat the request",
            )  # fmt: skip
        return _resource(one)

    def list(self) -> list[Operation]:
        """All operations, newest first."""
        return [_resource(one) for one in reversed(self._all.values())]

    async def close(self) -> None:
        """Cancel running operations."""
        tasks = [one.task for one in self._all.values() if one.task and not one.task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, one: _Running, work: Work) -> None:
        try:
            one.response = await work(one.progress)
        except ApiProblem as problem:
            one.response = problem.response()
        except HTTPException as problem:
            one.response = of_status(problem.status_code, str(problem.detail)).response()
        except Exception as problem:
            one.response = defect(f"operation {one.kind}", problem).response()
        finally:
            one.ended_us = time.time_ns() // 1000

    def _forget(self) -> None:
        ended = [id for id, one in self._all.items() if one.ended_us is not None]
        for id in ended[: max(0, len(ended) - KEPT)]:
            del self._all[id]


def is_long(prefer: str | None) -> bool:
    """Whether the Prefer header asks for the end of the request or for an operation."""
    return prefer is not None and ("respond-async" in prefer or bool(_WAIT.search(prefer)))


def _resource(one: _Running) -> Operation:
    state, result, problem = "running", None, None
    if one.response is not None:
        body = _json(one.response)
        if one.response.status_code < 400:
            state, result = "done", body
        else:
            state, problem = "failed", body
    return validated(Operation,
        {
            "id": one.id,
            "kind": one.kind,
            "state": state,
            "progress": {
                "step": one.progress.step, "done": one.progress.done, "of": one.progress.of
            },
            "started_us": one.started_us,
            "ended_us": one.ended_us,
            "result": result,
            "problem": problem,
        }
    )  # fmt: skip


def _json(response: Response) -> Any:
    return json.loads(bytes(response.body))


def _wait_s(prefer: str | None) -> float:
    if prefer is None:
        return WAIT_S
    if "respond-async" in prefer:
        return 0.0
    found = _WAIT.search(prefer)
    return min(WAIT_S, float(found[1])) if found else WAIT_S
