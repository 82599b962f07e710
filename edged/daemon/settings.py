"""The settings of a daemon, made from its configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from edged.config.sections import SNAPSHOT_BYTES, TelemetrySection
from edged.energy.settings import NO_BOARD, EnergySettings
from edged.job.confinement import Confinement
from edged.platform.cpus import worker_count
from edged.platform.disk import filesystem_bytes
from edged.store.store import SEGMENT_BYTES


@dataclass(frozen=True)
class DaemonSettings:
    """Settings that do not change while the daemon runs."""

    directory: Path
    device: str
    workers: int = field(default_factory=worker_count)
    door: Path | None = None
    uplink_url: str | None = None
    uplink_token: str = ""
    uplink_ca: str | None = None
    store_bytes_max: int | None = None
    snapshot_bytes: int = SNAPSHOT_BYTES
    files: Path = Path()
    """Where relative paths of sources and sinks start."""
    confinement: Confinement = field(default_factory=Confinement)
    """Of job documents that come over the control door."""
    trace: Path | None = None
    telemetry: TelemetrySection = field(default_factory=TelemetrySection)
    energy: EnergySettings = field(default_factory=lambda: EnergySettings(NO_BOARD))

    def segment_bytes(self) -> int:
        """Size of a log segment: at most a sixteenth of the store's limit or of the disk."""
        held = self.store_bytes_max or filesystem_bytes(str(self.directory))[1]
        return max(1 << 20, min(SEGMENT_BYTES, held // 16))
