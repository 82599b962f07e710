"""How much of requests' bodies is in memory at once: whoever wants some waits for its turn."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Room:
    """`size` bytes, of which one device has `share` at most: bodies are announced at once and may
    come slowly, and those of one device must not keep all others waiting.  On one event loop."""

    def __init__(self, size: int, share: int) -> None:
        self._free, self._share = size, share
        self._held: Counter[str] = Counter()
        self._waiting: deque[tuple[str, int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def take(self, device: str, size: int) -> AsyncIterator[None]:
        """Hold `size` bytes for `device`, which come in the order of asking."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((device, size, turn))
        self._grant()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give(device, size)
            raise
        try:
            yield
        finally:
            self._give(device, size)

    def _give(self, device: str, size: int) -> None:
        self._free += size
        self._held[device] -= size
        if self._held[device] <= 0:
            del self._held[device]
        self._grant()

    def _grant(self) -> None:
        """Let those go on for whom there is room; whose device has its share is passed over."""
        passed: list[tuple[str, int, asyncio.Future[None]]] = []
        while self._waiting:
            device, size, turn = self._waiting[0]
            if not turn.done():
                held = self._held[device]
                if held and held + size > self._share:
                    passed.append(self._waiting.popleft())
                    continue
                if size > self._free:
                    break
                self._free -= size
                self._held[device] += size
                turn.set_result(None)
            self._waiting.popleft()
        self._waiting.extendleft(reversed(passed))
