"""The parts of a running daemon, as the composition root hands them to those that need several."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from edged.beat.committer import Committer
from edged.beat.heart import Heart
from edged.beat.inputs import Inputs
from edged.beat.jobs import JobRegistry
from edged.beat.recover import Recovered
from edged.beat.stats import Stats
from edged.daemon.graph_records import GraphRecords
from edged.daemon.job_host import DaemonJobHost
from edged.daemon.job_states import JobStates
from edged.daemon.settings import DaemonSettings
from edged.daemon.systemd import SystemdService
from edged.daemon.uplink_control import UplinkControl
from edged.data.workers import Workers
from edged.energy.policy_store import PolicyStore
from edged.energy.runtime import EnergyGovernor
from edged.events.log import Events
from edged.events.publisher import EventPublisher
from edged.platform.clock import Clock
from edged.platform.event_loop import EventLoop
from edged.sinks.base import SinkContext
from edged.store import Store


@dataclass(frozen=True)
class Parts:
    """All parts, built once (`edged.daemon.daemon`)."""

    settings: DaemonSettings
    clock: Clock
    started_us: int
    """Monotonic clock of the start."""
    started_wall_us: int
    service: SystemdService
    workers: Workers
    event_loop: EventLoop
    store: Store
    events: Events
    publisher: EventPublisher
    energy: EnergyGovernor | None
    policy_store: PolicyStore
    """Keeps the policy that a command chose."""
    graphs: GraphRecords
    states: JobStates
    sink_context: SinkContext
    recovered: Recovered
    stats: Stats
    uplink: UplinkControl
    committer: Committer
    inputs: Inputs
    job_host: DaemonJobHost
    heart: Heart
    planner: ThreadPoolExecutor
    """One thread that builds jobs and writes files: work that a beat must not wait for."""
    door: Path
    """The control door's socket."""

    @property
    def registry(self) -> JobRegistry:
        """The jobs."""
        return self.recovered.registry
