"""`hands_off`: observes and sets nothing.  The default where control is not permitted, and the
baseline of comparisons: the same batching under the kernel's governor."""

from __future__ import annotations

from governors.policies.base import Decision, Observation, Policy, policy

_LEAVE = Decision("the kernel's governor decides")


@policy
class HandsOff(Policy):
    """Sets no clock, requests no sleep and uses the whole tolerance."""

    name = "hands_off"
    plans = False
    needs_model = False

    def race(self, observed: Observation) -> Decision:
        """Set nothing."""
        return _LEAVE

    def idle(self, observed: Observation) -> Decision:
        """Set nothing."""
        return _LEAVE
