"""The GPU as one tenant of several: when joins keep off it, and when its clocks are not edged's.

A look reads two figures of the kernel or of NVML.  It is made where a beat may use the GPU or a
policy may set its clock, at most every GPU_LOOK_US; an idle daemon makes none.  The time of
operators while their kernel is one of a GPU counts as edged's own use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from edged.beat.runtime import JobRuntime
from edged.energy.policies import Publish
from edged.placement.gpu_share import GPU_LOOK_US, GpuShare
from governors.gpu_tenants import GpuTenants


class GpuTenancy:
    """The GPU of one daemon; the heart's thread only."""

    def __init__(
        self, tenants: GpuTenants, limit: float, now_us: Callable[[], int], publish: Publish
    ) -> None:
        self.share = GpuShare(limit)
        self._tenants, self._now_us, self._publish = tenants, now_us, publish
        self._jobs: Sequence[JobRuntime] = ()
        self._looked_us: int | None = None
        self._spent_ns: dict[tuple[str, str], int] = {}
        self._own_us = 0.0

    def attach(self, jobs: Sequence[JobRuntime]) -> None:
        """Set the running jobs."""
        self._jobs = jobs
        for placer in (placer for job in jobs for placer in job.placers.values()):
            placer.keeps_off = self.keeps_off
            placer.shares = bool(self._tenants.name) and self.share.limit < 1.0

    def keeps_off(self) -> bool:
        """Whether joins must not run on the GPU now."""
        self._look()
        return self.share.away

    def shared(self) -> bool:
        """Whether another process uses the GPU, so that its clocks are left alone."""
        self._look()
        return self.share.shared(self._now_us())

    def describe(self) -> dict[str, Any]:
        """For the status."""
        self._look()
        share = self.share
        others = None if share.others is None else round(share.others, 4)
        return {
            "gpu": self._tenants.name, "limit": share.limit, "others": others,
            "away": share.away, "reason": share.reason, "moves": share.moves,
        }  # fmt: skip

    def _look(self) -> None:
        now_us = self._now_us()
        if not self._tenants.name or (
            self._looked_us is not None and now_us - self._looked_us < GPU_LOOK_US
        ):
            return
        self._looked_us = now_us
        was = self.share.away
        away = self.share.look(now_us, self._tenants.load(), self._own(), self._tenants.memory())
        facts = {"others": self.share.others, "moves": self.share.moves}
        if away and not was:
            text = f"joins keep off the GPU: {self.share.reason}"
            self._publish("gpu.left", "info", text, facts)
        elif was and not away:
            self._publish("gpu.returned", "info", "joins may use the GPU again", facts)

    def _own(self) -> float:
        """Time (µs) so far of operators whose kernel was one of a GPU."""
        for job in self._jobs:
            spent = job.spent_ns
            for name, placer in job.placers.items():
                key, now = (job.plan.name, name), spent.get(name, 0)
                before = self._spent_ns.get(key, now)
                self._spent_ns[key] = now
                if placer.on_gpu:
                    self._own_us += max(0, now - before) / 1e3
        return self._own_us
