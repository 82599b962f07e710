"""What a job promises: times, memory, and what a crash or a full store may lose."""

from __future__ import annotations

from dataclasses import dataclass

from edged.job.durability import EXACTLY_ONCE, THROUGH, logs

BLOCK, REJECT, DROP_OLDEST = WHEN_FULL = ("block", "reject", "drop_oldest")


@dataclass(frozen=True)
class Promises:
    """Promises of a job: `latency_us` from arrival to sealed page, `ack_within_us` (at most
    `latency_us`) from arrival to a producer's ack, the memory cap, and what a crash may lose."""

    latency_us: int = 1_000_000
    ack_within_us: int = 1_000_000
    memory_bytes: int = 512 << 20
    durability: str = EXACTLY_ONCE
    upload_within_us: int = 0
    """Longest time that sealed pages may wait to be sent with others; 0: they are sent at once."""
    telemetry_first: bool = False
    """Whether the device's reports are sent before waiting pages while the job runs."""
    when_full: str = BLOCK
    """What happens to the job's senders and waiting pages while the store is full."""

    @property
    def logs(self) -> bool:
        """Whether beats of the job leave records."""
        return logs(self.durability)

    @property
    def forwards(self) -> bool:
        """Whether a batch is acknowledged when the receivers of what was made of it have it."""
        return self.durability == THROUGH
