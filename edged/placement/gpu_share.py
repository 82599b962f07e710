"""Whether joins may run on a GPU that other processes use too.  Sans-IO.

Each look takes the GPU's load, the time for which edged's own kernels ran since the look before,
and the share of the GPU's memory that others hold:

    others = load - own time / elapsed time         the mean of the last looks, the newest by half

Above the limit (`energy.gpu_share`), or above MEMORY_MAX of its memory, joins keep off the GPU.
They may return when others have been below half the limit for a while: RETURN_US, and twice as long
after each stay that was shorter than STAY_US, up to RETURN_US_MAX.  A load that comes and goes
therefore moves a join a bounded number of times: twice for each doubling of the wait, and then at
most twice in RETURN_US_MAX.

A load that cannot be read (no driver, a GPU that is suspended) keeps nothing off.
"""

from __future__ import annotations

GPU_LOOK_US = 1_000_000
"""Shortest time between two looks."""
MEMORY_MAX = 0.9
RETURN_US, RETURN_US_MAX = 30_000_000, 960_000_000
STAY_US = 300_000_000
RETURN_PART = 0.5
"""Part of the limit below which others must stay."""
WEIGHT = 0.5
"""Weight of the newest look."""
TENANT_MIN = 0.05
"""Below this share of load there is no other tenant: a rest is the error of the subtraction."""


class GpuShare:
    """One GPU; times are monotonic microseconds."""

    def __init__(self, limit: float) -> None:
        """`limit`: share of the GPU's time that others may use before joins keep off; 1: no
        limit."""
        self.limit = limit
        self.away = False
        """Whether joins keep off."""
        self.moves = 0
        """How often that changed."""
        self.others: float | None = None
        """Share of time for which others use it; None: not known."""
        self.reason = ""
        """Why joins keep off."""
        self._looked: tuple[int, float] | None = None
        """Time of the last look, and edged's own time on the GPU by then."""
        self._changed_us: int | None = None
        self._calm_us: int | None = None
        """Since when others are below the lower limit."""
        self._wait_us = RETURN_US
        self._tenant_us: int | None = None

    def look(
        self, now_us: int, load: float | None, own_us: float, memory: float | None = None
    ) -> bool:
        """Whether joins must keep off; `own_us`: time of edged's kernels so far, `memory`: share
        that others hold."""
        before, self._looked = self._looked, (now_us, own_us)
        if before is None or now_us <= before[0]:
            own = 0.0
        else:
            own = min(1.0, max(0.0, own_us - before[1]) / (now_us - before[0]))
        self.others = self._smoothed(load, own)
        if self.others is not None and self.others >= TENANT_MIN:
            self._tenant_us = now_us
        why = self._excess(memory)
        if not self.away and why:
            self._leave(now_us, why)
        elif self.away:
            self._consider(now_us, why, memory)
        return self.away

    def shared(self, now_us: int) -> bool:
        """Whether another process has used the GPU lately: its clocks are not edged's then."""
        return self._tenant_us is not None and now_us - self._tenant_us < RETURN_US

    def _smoothed(self, load: float | None, own: float) -> float | None:
        if load is None:
            return None
        fresh = max(0.0, load - own)
        if self.others is None:
            return fresh
        return self.others + WEIGHT * (fresh - self.others)

    def _excess(self, memory: float | None, part: float = 1.0) -> str:
        """Why the GPU is not for joins at `part` of the limits; empty where it is."""
        if self.others is not None and self.limit < 1.0 and self.others > part * self.limit:
            return f"others use {self.others:.0%} of its time, above {part * self.limit:.0%}"
        if memory is not None and self.limit < 1.0 and memory > MEMORY_MAX:
            return f"others hold {memory:.0%} of its memory, above {MEMORY_MAX:.0%}"
        return ""

    def _leave(self, now_us: int, why: str) -> None:
        stayed_us = STAY_US if self._changed_us is None else now_us - self._changed_us
        back = self.moves > 0 and stayed_us < STAY_US
        self._wait_us = min(RETURN_US_MAX, 2 * self._wait_us) if back else RETURN_US
        self._change(now_us, True, why)

    def _consider(self, now_us: int, why: str, memory: float | None) -> None:
        """Return after a calm while."""
        if why or self._excess(memory, RETURN_PART):
            self.reason, self._calm_us = why or self.reason, None
            return
        if self._calm_us is None:
            self._calm_us = now_us
        if now_us - self._calm_us >= self._wait_us:
            self._change(now_us, False, "")

    def _change(self, now_us: int, away: bool, why: str) -> None:
        self.away, self.reason = away, why
        self.moves += 1
        self._changed_us, self._calm_us = now_us, None
