"""The memory budget of request bodies: a request waits until its body fits."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class BodyBudget:
    """`size` bytes, at most `share` of them for one device, because a body is reserved when
    announced and may arrive slowly.  For one event loop."""

    def __init__(self, size: int, share: int) -> None:
        self._free, self._share = size, share
        self._held: Counter[str] = Counter()
        self._waiting: deque[tuple[str, int, asyncio.Future[None]]] = deque()

    def take_at_once(self, device: str, size: int) -> bool:
        """Hold `size` bytes for `device` until `release`, if they are free; else False."""
        if self._waiting or size > self._free or self._exceeds_share(device, size):
            return False
        self._hold(device, size)
        return True

    def release(self, device: str, size: int) -> None:
        """Give back what is held."""
        self._free += size
        self._held[device] -= size
        if self._held[device] <= 0:
            del self._held[device]
        self._grant()

    @asynccontextmanager
    async def take(self, device: str, size: int) -> AsyncIterator[None]:
        """Hold `size` bytes for `device`; requests are served in order of arrival."""
        if not self.take_at_once(device, size):
            await self._wait(device, size)
        try:
            yield
        finally:
            self.release(device, size)

    async def _wait(self, device: str, size: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((device, size, turn))
        self._grant()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(device, size)
            raise

    def _exceeds_share(self, device: str, size: int) -> bool:
        held = self._held[device]
        return held > 0 and held + size > self._share

    def _hold(self, device: str, size: int) -> None:
        self._free -= size
        self._held[device] += size

    def _grant(self) -> None:
        """Resume waiting requests that fit; requests of a device at its share are skipped."""
        skipped: list[tuple[str, int, asyncio.Future[None]]] = []
        while self._waiting:
            device, size, turn = self._waiting[0]
            if not turn.done():
                if self._exceeds_share(device, size):
                    skipped.append(self._waiting.popleft())
                    continue
                if size > self._free:
                    break
                self._hold(device, size)
                turn.set_result(None)
            self._waiting.popleft()
        self._waiting.extendleft(reversed(skipped))
