"""The decoders of request bodies: a thread for small ones, child processes for large ones.

A body of INLINE_BYTES_MAX is decoded within milliseconds, whatever it holds.  A larger one goes to
a child (`api.ingest.decoder_child`), which is ended and replaced where it takes longer than
SECONDS_MAX or dies.  Children start when they are needed and end after IDLE_S without a request.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from anyio import fail_after

from api.checker import IDLE_S
from api.problems import ApiProblem, ProblemFault

if TYPE_CHECKING:
    import pyarrow as pa

INLINE_BYTES_MAX = 64 << 10
DECODERS = 2
"""Children at a time."""
SECONDS_MAX = 30.0
"""The largest body takes a tenth of it on a small board."""
_COMMAND = (sys.executable, "-m", "api.ingest.decoder_child")


class Decoders:
    """Decodes bodies; `close` ends what runs."""

    def __init__(
        self, seconds_max: float = SECONDS_MAX, command: tuple[str, ...] = _COMMAND
    ) -> None:
        self._seconds_max, self.command = seconds_max, command
        self._thread = ThreadPoolExecutor(1, "decode")
        self._turns = asyncio.Semaphore(DECODERS)
        self._idle: list[Process] = []
        self._children: set[Process] = set()
        self._rest: asyncio.TimerHandle | None = None

    async def decode(self, body: bytes, media_type: str, schema: pa.Schema) -> pa.RecordBatch:
        """The rows of a body.  Raises ApiProblem."""
        from api.ingest.decode import decode

        if len(body) <= INLINE_BYTES_MAX:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._thread, decode, body, media_type, schema)
        async with self._turns:
            child = self._idle.pop() if self._idle else await self._start()
            try:
                with fail_after(self._seconds_max):
                    told, made = await _exchange(child, body, media_type, schema)
            except TimeoutError:
                await self._end(child)
                what = f"decoding the rows takes longer than {self._seconds_max:g} s"
                raise ApiProblem("too-large", what) from None
            except (OSError, EOFError, ValueError):
                await self._end(child)
                raise ApiProblem("too-large", "decoding the rows ended a decoder") from None
            except asyncio.CancelledError:  # its answer would be taken for the next request's
                await self._end(child)
                raise
            self._idle.append(child)
            self._rest_later()
        return _batch(told, made)

    async def close(self) -> None:
        """End all children."""
        if self._rest is not None:
            self._rest.cancel()
        await asyncio.gather(*(self._end(child) for child in list(self._children)))
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _start(self) -> Process:
        environ = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"}  # reserves no more
        child = await asyncio.create_subprocess_exec(
            *self.command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=environ
        )
        self._children.add(child)
        return child

    async def _end(self, child: Process) -> None:
        self._children.discard(child)
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()

    def _rest_later(self) -> None:
        if self._rest is not None:
            self._rest.cancel()
        self._rest = asyncio.get_running_loop().call_later(IDLE_S, self._dismiss)

    def _dismiss(self) -> None:
        """End idle children by closing their input."""
        while self._idle:
            child = self._idle.pop()
            self._children.discard(child)
            assert child.stdin is not None
            child.stdin.close()


async def _exchange(
    child: Process, body: bytes, media_type: str, schema: pa.Schema
) -> tuple[dict[str, Any], bytes]:
    """The answer's header and body.  Raises OSError and EOFError where the child has ended."""
    from api.ingest.decoder_child import FRAME

    assert child.stdin is not None and child.stdout is not None
    coded = base64.b64encode(schema.serialize().to_pybytes()).decode()
    header = json.dumps({"media_type": media_type, "schema": coded}).encode()
    child.stdin.writelines([FRAME.pack(len(header), len(body)), header, body])
    await child.stdin.drain()
    header_bytes, body_bytes = FRAME.unpack(await child.stdout.readexactly(FRAME.size))
    told: dict[str, Any] = json.loads(await child.stdout.readexactly(header_bytes))
    return told, await child.stdout.readexactly(body_bytes)


def _batch(told: dict[str, Any], made: bytes) -> pa.RecordBatch:
    """The batch of an answer.  Raises ApiProblem, and RuntimeError for a defect."""
    import pyarrow as pa

    if "defect" in told:
        raise RuntimeError(f"in a decoder: {told['defect']}")
    if "problem" in told:
        wrong = told["problem"]
        faults = tuple(ProblemFault(f["where"], f["what"], f["do"]) for f in wrong["errors"])
        raise ApiProblem(wrong["kind"], wrong["detail"], wrong["do"], faults)
    with pa.ipc.open_stream(pa.py_buffer(made)) as reader:
        return reader.read_next_batch()
