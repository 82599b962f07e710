"""The operators of a job that have a choice of kernels, and which kernels they run."""

from __future__ import annotations

from edged.errors import EdgedError, JobError
from edged.job.plan import JobPlan
from edged.operators.base import Operator, Placed
from edged.placement.placement import KernelProfile, Placer


class PlacedOperators:
    """The part of a running job that chooses kernels; the heart's thread only."""

    plan: JobPlan
    operators: dict[str, Operator]
    placers: dict[str, Placer]
    """The placer of every operator that has a choice of kernels."""

    def place_by(self, profile: KernelProfile | None) -> None:
        """Choose kernels by this machine's profile from now on."""
        self.placers = {}
        for name, operator in self.operators.items():
            if isinstance(operator, Placed):
                placer = Placer(profile, self.plan.promises.latency_us, operator.kernel)
                self.placers[name] = placer
                if operator.pinned:
                    placer.pin(operator.kernel)

    def place(self) -> float:
        """After a beat: switch to better kernels where there are some.  Returns how much longer the
        next race may take (µs)."""
        for name, placer in self.placers.items():
            if not placer.chooses:
                continue
            operator = self.operators[name]
            assert isinstance(operator, Placed)
            kernel = placer.beat(*operator.size())
            if kernel is None:
                continue
            try:
                operator.switch(kernel)
            except Exception as problem:  # device libraries raise anything: the old kernel runs on
                placer.refuse(kernel, operator.kernel, str(problem))
        return sum(placer.reserve_us for placer in self.placers.values())

    def pin(self, name: str, kernel: str | None) -> str:
        """Pin an operator's kernel, or unpin it with None; returns the kernel that runs then.

        Raises JobError where the operator has no choice, or the kernel cannot run.
        """
        operator = self.operators.get(name)
        if not isinstance(operator, Placed):
            choice = ", ".join(self.placers) or "none has a choice of kernels"
            raise JobError(f"operators.{name}", "has no choice of kernels", f"one of: {choice}")
        try:
            if kernel is not None:
                operator.switch(kernel)
        except EdgedError:
            raise
        except Exception as problem:  # device libraries raise anything: the old kernel runs on
            raise JobError(
                f"operators.{name}", f"cannot switch to {kernel}: {problem}"
            ) from problem
        self.placers[name].pin(kernel)
        return operator.kernel
