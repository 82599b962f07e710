"""`hands_off`: observe and leave everything to the kernel.  The default where control is not
permitted, and the baseline of every comparison: the same batching, no clock touched."""

from __future__ import annotations

from governors.policies.base import Decision, Observation, Policy, policy

_LEAVE = Decision("the kernel's governor decides")


@policy
class HandsOff(Policy):
    """Sets nothing, asks for no sleep, uses the whole tolerance."""

    name = "hands_off"
    plans = False
    needs_model = False

    def race(self, observed: Observation) -> Decision:
        """Leave it."""
        return _LEAVE

    def idle(self, observed: Observation) -> Decision:
        """Leave it."""
        return _LEAVE
