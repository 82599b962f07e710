"""Every setting of the daemon and its API, once: default, kind, meaning, and whether a reload
applies it.

The reader, `edged validate`, `edged run`'s flags, docs/config.md and the commented
deploy/edged.toml all come from these classes.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from edged.config import kinds
from edged.config.kinds import Kind

SNAPSHOT_BYTES = 512 << 20
"""As `edged.beat.heart`'s, which this package does not import: the API reads settings too."""
LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class Setting:
    """What is known of one key."""

    key: str
    """`section.name`."""
    kind: Kind
    text: str
    default: Any
    example: str
    """A value as TOML, for documentation, where the default shows no use of it."""
    live: bool
    """A reload applies it; else the next start does."""
    credential: str
    """Name of the systemd credential that stands in for it where nothing else is set."""


def _setting(
    kind: Kind,
    default: Any,
    text: str,
    *,
    example: str = "",
    live: bool = False,
    credential: str = "",
) -> Any:
    told = {"kind": kind, "text": text, "example": example, "live": live, "credential": credential}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=told)
    return field(default=default, metadata=told)


@dataclass(frozen=True)
class Device:
    """Who this device is."""

    name: str = _setting(
        kinds.text(), "", "Name under which the centre knows this device.  Empty: the host's name.",
        example='"turbine-7"',
    )  # fmt: skip

    @property
    def called(self) -> str:
        """The name that counts."""
        return self.name or socket.gethostname()


@dataclass(frozen=True)
class StoreSection:
    """What is durable."""

    directory: str = _setting(
        kinds.path(), "/var/lib/edged", "Directory of the durable state; created if missing."
    )
    bytes_max: int = _setting(
        kinds.size(), 0,
        "Bytes that the store may take; sources wait when it is full.  0: what the disk holds.",
        example='"8GiB"',
    )  # fmt: skip
    snapshot_bytes: int = _setting(
        kinds.size(1 << 16), SNAPSHOT_BYTES,
        "Log between snapshots of the state; bounds the time that recovery takes.",
    )  # fmt: skip


@dataclass(frozen=True)
class RunSection:
    """The daemon."""

    workers: int = _setting(
        kinds.integer(0, 1024), 0, "Kernel threads.  0: one for each core.", example="2"
    )
    jobs: tuple[str, ...] = _setting(
        kinds.paths(), (), "Job documents to run: files, or patterns such as jobs.d/*.toml.",
        example='["jobs.d/*.toml"]', live=True,
    )  # fmt: skip
    door: str = _setting(
        kinds.path(), "", "Unix socket for control.  Empty: `door` in store.directory.",
        example='"/run/edged/door"',
    )  # fmt: skip
    trace: str = _setting(
        kinds.path(), "", "File to which one JSON line a beat is appended: sizes and stage times.",
        example='"/var/log/edged/trace.jsonl"',
    )  # fmt: skip


@dataclass(frozen=True)
class UplinkSection:
    """The way to the centre."""

    url: str = _setting(
        kinds.url(), "", "URL of the collector.  Empty: pages stay in the store.",
        example='"https://centre.example:7500"',
    )  # fmt: skip
    token_file: str = _setting(
        kinds.path(), "", "File with this device's token.", example='"/etc/edged/uplink-token"',
        credential="uplink-token",
    )  # fmt: skip
    ca: str = _setting(
        kinds.path(), "", "Certificates (PEM) that the collector's must be signed by.",
        example='"/etc/edged/centre.pem"',
    )  # fmt: skip


@dataclass(frozen=True)
class EnergySection:
    """The energy side."""

    board: str = _setting(
        kinds.text(), "/",
        "The board's tree (/: this machine's own), simulated:NAME (kept in the store), or none.",
        example='"simulated:orin-nano"',
    )  # fmt: skip
    policy: str = _setting(
        kinds.text(), "hands_off", "Who decides on clocks; see docs/energy.md.",
        example='"race_to_idle"', live=True,
    )  # fmt: skip
    settings: Mapping[str, Any] = _setting(
        kinds.table(), {}, "The policy's settings.", example="{ watts = 5.0 }", live=True
    )
    allow: tuple[str, ...] = _setting(
        kinds.names(), (),
        "What is set only if asked for: emc, offline:WATTS, gpu_pm, uclamp; see docs/energy.md.",
        example='["emc"]',
    )  # fmt: skip
    meters: Mapping[str, Any] = _setting(
        kinds.table(), {},
        "What is known of the board's meters: labels, external meters, the radio; see "
        "docs/energy.md.", example='{ labels = { "6-0040/1" = "POM_5V_CPU" } }',
    )  # fmt: skip
    helper: str = _setting(
        kinds.path(), "/run/edged/governor.sock",
        "Socket of the root helper that sets limits.",
    )  # fmt: skip


@dataclass(frozen=True)
class ApiSection:
    """The REST API and the status page."""

    socket: str = _setting(
        kinds.path(), "/run/edged/api.sock", "Unix socket, where systemd does not pass one."
    )
    group: str = _setting(kinds.text(), "edged", "Group that may open the socket (mode 0660).")
    listen: str = _setting(
        kinds.address(), "",
        "TCP address beside the socket.  Empty: none.  Needs TLS and tokens or client "
        "certificates, unless it is this machine's loopback.", example='"0.0.0.0:7443"',
    )  # fmt: skip
    tls_cert: str = _setting(
        kinds.path(), "", "Certificate chain (PEM) of `listen`.",
        example='"/etc/edged/api.pem"', credential="api-tls-cert",
    )  # fmt: skip
    tls_key: str = _setting(
        kinds.path(), "", "Its private key (PEM).", example='"/etc/edged/api.key"',
        credential="api-tls-key",
    )  # fmt: skip
    client_ca: str = _setting(
        kinds.path(), "", "Certificates (PEM) that clients' must be signed by.",
        example='"/etc/edged/clients.pem"',
    )  # fmt: skip
    client_names: tuple[str, ...] = _setting(
        kinds.names(), (), "Names in clients' certificates that are let in.",
        example='["console.example"]',
    )  # fmt: skip
    tokens_file: str = _setting(
        kinds.path(), "", "File of hashed bearer tokens.", example='"/etc/edged/api-tokens.json"',
        credential="api-tokens",
    )  # fmt: skip
    hosts: tuple[str, ...] = _setting(
        kinds.names(), (), "Host names that requests over TCP may be addressed to.",
        example='["turbine-7.example"]',
    )  # fmt: skip
    origins: tuple[str, ...] = _setting(
        kinds.names(), (), "Origins from which browsers may change anything.",
        example='["https://console.example"]',
    )  # fmt: skip
    body_bytes_max: int = _setting(kinds.size(1 << 10), 64 << 10, "Largest request.")
    ingest_bytes_max: int = _setting(kinds.size(1 << 10), 16 << 20, "Largest request with tuples.")
    concurrency_max: int = _setting(
        kinds.integer(1, 1024), 64, "Requests served at a time; more are answered with 503."
    )
    door: str = _setting(kinds.path(), "", "The daemon's control socket.  Empty: run.door.",
                         example='"/run/edged/door"')  # fmt: skip


@dataclass(frozen=True)
class MetricsSection:
    """For Prometheus."""

    listen: str = _setting(
        kinds.address(), "127.0.0.1:9464", "Address of the read-only metrics.  Empty: none."
    )


@dataclass(frozen=True)
class TelemetrySection:
    """What the device tells the centre of itself."""

    interval_s: float = _setting(
        kinds.number(0, 86400), 30.0, "Seconds between two reports.  0: none.", live=True
    )
    bytes_max: int = _setting(kinds.size(1 << 10), 16 << 10, "Largest report.", live=True)
    first: bool = _setting(
        kinds.boolean(), False, "Reports go ahead of data that waits.", live=True
    )


@dataclass(frozen=True)
class LogSection:
    """What is said to the journal, or on standard error."""

    level: str = _setting(kinds.choice(LEVELS), "info", "The least level that is said.", live=True)


SECTIONS: Mapping[str, type[Any]] = {
    "device": Device,
    "store": StoreSection,
    "run": RunSection,
    "uplink": UplinkSection,
    "energy": EnergySection,
    "api": ApiSection,
    "metrics": MetricsSection,
    "telemetry": TelemetrySection,
    "log": LogSection,
}


def _settings(section: str, kind: type[Any]) -> dict[str, Setting]:
    empty = kind()
    return {
        f"{section}.{f.name}": Setting(
            f"{section}.{f.name}", default=getattr(empty, f.name), **f.metadata
        )
        for f in fields(kind)
    }


SETTINGS: Mapping[str, Setting] = {
    key: setting
    for section, kind in SECTIONS.items()
    for key, setting in _settings(section, kind).items()
}
"""By key, in the order of documentation."""


def credential(setting: Setting, environ: Mapping[str, str]) -> str:
    """The file that systemd passed for the setting (systemd.exec, LoadCredential=), or nothing."""
    directory = environ.get("CREDENTIALS_DIRECTORY", "")
    if not directory or not setting.credential:
        return ""
    file = os.path.join(directory, setting.credential)  # noqa: PTH118
    return file if os.path.exists(file) else ""  # noqa: PTH110
