"""The settings of the daemon and its API: default, kind, meaning, effect of a reload.

This is the only table of settings.  The reader, `edged validate`, the flags of `edged run`,
docs/config.md and the commented deploy/edged.toml are made from these classes.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from edged.config import kinds
from edged.config.kinds import ValueKind

SNAPSHOT_BYTES = 512 << 20
"""Log bytes after which a snapshot is due; they bound the recovery time."""
REMOTE_LISTEN = ("127.0.0.1:1024-65535", "[::1]:1024-65535", "localhost:1024-65535")
LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class Setting:
    """One key."""

    key: str
    """`section.name`."""
    kind: ValueKind
    text: str
    default: Any
    example: str
    """A TOML value for the documentation, where the default is empty."""
    live: bool
    """Whether a reload applies a change; else the next start does."""
    credential: str
    """The systemd credential that is used where nothing else sets the key."""


def _setting(
    kind: ValueKind,
    default: Any,
    text: str,
    *,
    example: str = "",
    live: bool = False,
    credential: str = "",
) -> Any:
    metadata = {
        "kind": kind, "text": text, "example": example, "live": live, "credential": credential,
    }  # fmt: skip
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class DeviceSection:
    """The device."""

    name: str = _setting(
        kinds.text(), "", "The device's name at the centre.  Empty: the host name.",
        example='"turbine-7"',
    )  # fmt: skip

    @property
    def effective_name(self) -> str:
        """The configured name, or the host name."""
        return self.name or socket.gethostname()


@dataclass(frozen=True)
class StoreSection:
    """The durable state."""

    directory: str = _setting(
        kinds.path(), "/var/lib/edged", "Directory of the store; created if missing."
    )
    bytes_max: int = _setting(
        kinds.size(), 0,
        "Upper bound of the store; sources wait when it is full.  0: the disk's size.",
        example='"8GiB"',
    )  # fmt: skip
    snapshot_bytes: int = _setting(
        kinds.size(1 << 16), SNAPSHOT_BYTES,
        "Log between two snapshots of operator state; bounds the time of recovery.",
    )  # fmt: skip


@dataclass(frozen=True)
class RunSection:
    """The daemon."""

    workers: int = _setting(
        kinds.integer(0, 1024), 0,
        "Kernel threads.  0: one for each CPU that the daemon may use, and no more than its "
        "control group has time for (cpu.max).", example="2",
    )  # fmt: skip
    cpus: str = _setting(
        kinds.text(), "",
        "CPUs that the daemon and its processes run on.  Empty: those that it may use.",
        example='"2-5"',
    )  # fmt: skip
    jobs: tuple[str, ...] = _setting(
        kinds.paths(), (), "Job documents: files, or patterns such as jobs.d/*.toml.",
        example='["jobs.d/*.toml"]', live=True,
    )  # fmt: skip
    door: str = _setting(
        kinds.path(), "", "The daemon's control socket.  Empty: `door` in store.directory.",
        example='"/run/edged/door"',
    )  # fmt: skip
    files: str = _setting(
        kinds.path(), "",
        "Directory where relative paths of `file` sources and sinks start.  Empty: the directory "
        "in which edged was started.", example='"/srv/edged"',
    )  # fmt: skip
    remote_files: tuple[str, ...] = _setting(
        kinds.paths(), (),
        "Directories that jobs defined over the REST API or by the centre may read and write, "
        "beside `files` in store.directory and run.files if it is set.",
        example='["/srv/edged/shared"]',
    )  # fmt: skip
    remote_listen: tuple[str, ...] = _setting(
        kinds.names(), REMOTE_LISTEN,
        "Addresses, HOST:PORT, HOST:FIRST-LAST or *:PORT, that such jobs may listen on.",
        example='["*:7400-7499"]',
    )  # fmt: skip
    remote_connect: tuple[str, ...] = _setting(
        kinds.names(), (), "Addresses that such jobs may connect to.",
        example='["broker.example:8883"]',
    )  # fmt: skip
    operators: str = _setting(
        kinds.path(), "",
        "Directory of the code of `kernel` and `python` operators; it and its files belong to root "
        "or to the daemon's user, and no other may write them.  Empty: /etc/edged/operators.",
        example='"/etc/edged/operators"',
    )  # fmt: skip
    trace: str = _setting(
        kinds.path(), "", "File that gets one JSON line per beat: sizes and stage times.",
        example='"/var/log/edged/trace.jsonl"',
    )  # fmt: skip


@dataclass(frozen=True)
class UplinkSection:
    """The connection to the centre."""

    url: str = _setting(
        kinds.url(), "", "URL of the collector.  Empty: pages stay in the store.",
        example='"https://centre.example:7500"',
    )  # fmt: skip
    token_file: str = _setting(
        kinds.path(), "", "File with this device's token.", example='"/etc/edged/uplink-token"',
        credential="uplink-token",
    )  # fmt: skip
    ca: str = _setting(
        kinds.path(), "", "Certificate authorities (PEM) for the collector's certificate.",
        example='"/etc/edged/centre.pem"',
    )  # fmt: skip
    plain_token: bool = _setting(
        kinds.boolean(), False,
        "Whether the token may leave this machine without TLS, to a `url` with http://.",
    )  # fmt: skip


@dataclass(frozen=True)
class EnergySection:
    """Board, meters and policy."""

    board: str = _setting(
        kinds.text(), "/",
        "Root of the board's file tree (/: this machine), simulated:NAME, or none; "
        "`edged board --list` lists the names.",
        example='"simulated:orin-nano"',
    )  # fmt: skip
    power_model: str = _setting(
        kinds.text(), "",
        "Board profile whose figures stand in where this machine has none; its joules are "
        "another machine's, and labelled modelled.",
        example='"generic-x86"',
    )  # fmt: skip
    policy: str = _setting(
        kinds.text(), "hands_off", "The energy policy; `edged governor policies` lists them.",
        example='"race_to_idle"', live=True,
    )  # fmt: skip
    max_celsius: float = _setting(
        kinds.number(0, 150), 0.0,
        "Highest temperature of any thermal zone, °C, which every policy obeys: clocks bend, then "
        "races wait, and results are late. 0: no limit.", example="85.0", live=True,
    )  # fmt: skip
    settings: Mapping[str, Any] = _setting(
        kinds.table(), {}, "Settings of the policy; see docs/config.md, Settings of policies.",
        example="{ watts = 5.0 }", live=True,
    )  # fmt: skip
    allow: tuple[str, ...] = _setting(
        kinds.names(), (),
        "Opt-in settings: emc, offline:WATTS, gpu_pm, uclamp; see docs/energy.md, Policies.",
        example='["emc"]',
    )  # fmt: skip
    meters: Mapping[str, Any] = _setting(
        kinds.table(), {},
        "Additions to the board's meters: labels, external meters, the radio; see "
        "docs/config.md, Settings of meters.", example='{ labels = { "6-0040/1" = "POM_5V_CPU" } }',
    )  # fmt: skip
    gpu_share: float = _setting(
        kinds.number(0, 1), 0.5,
        "Share of the GPU's time that other processes may use before joins keep off it; 1: no "
        "limit.", example="0.3",
    )  # fmt: skip
    suspend: str = _setting(
        kinds.choice(("off", "freeze", "mem")), "off",
        "Suspend the machine between beats, for jobs whose sources all poll: to idle, or to "
        "memory; see docs/energy.md, Suspend.", example='"mem"',
    )  # fmt: skip
    suspend_watts: float = _setting(
        kinds.number(0, 1000), 0.0,
        "Watts of the whole input while suspended, as you measured them.  0: the profile's.",
        example="0.15",
    )  # fmt: skip
    helper: str = _setting(
        kinds.path(), "/run/edged/governor.sock",
        "Socket of the root helper that sets limits of clocks.",
    )  # fmt: skip


@dataclass(frozen=True)
class ApiSection:
    """The REST API and the status page."""

    socket: str = _setting(
        kinds.path(), "/run/edged/api.sock", "Unix socket, unless systemd passes one."
    )
    group: str = _setting(kinds.text(), "edged", "Group that may open the socket (mode 0660).")
    listen: str = _setting(
        kinds.address(), "",
        "TCP address beside the socket.  Empty: none.  Beyond loopback it needs TLS, and "
        "tokens or client certificates.", example='"0.0.0.0:7443"',
    )  # fmt: skip
    tls_cert: str = _setting(
        kinds.path(), "", "Certificate chain (PEM) of `listen`.",
        example='"/etc/edged/api.pem"', credential="api-tls-cert",
    )  # fmt: skip
    tls_key: str = _setting(
        kinds.path(), "", "Private key (PEM) of `tls_cert`.", example='"/etc/edged/api.key"',
        credential="api-tls-key",
    )  # fmt: skip
    client_ca: str = _setting(
        kinds.path(), "", "Certificate authorities (PEM) for clients' certificates.",
        example='"/etc/edged/clients.pem"',
    )  # fmt: skip
    client_names: tuple[str, ...] = _setting(
        kinds.names(), (), "Names in clients' certificates that are accepted.",
        example='["console.example"]',
    )  # fmt: skip
    tokens_file: str = _setting(
        kinds.path(), "", "File of hashed bearer tokens.", example='"/etc/edged/api-tokens.json"',
        credential="api-tokens",
    )  # fmt: skip
    hosts: tuple[str, ...] = _setting(
        kinds.names(), (), "Host names accepted in requests over TCP.",
        example='["turbine-7.example"]',
    )  # fmt: skip
    origins: tuple[str, ...] = _setting(
        kinds.names(), (), "Origins of web pages that may make changes.",
        example='["https://console.example"]',
    )  # fmt: skip
    docs: bool = _setting(
        kinds.boolean(), True, "Whether `/docs` shows the reference of the API: docs/api.md."
    )
    body_bytes_max: int = _setting(kinds.size(1 << 10), 64 << 10, "Largest request.")
    ingest_bytes_max: int = _setting(kinds.size(1 << 10), 16 << 20, "Largest request with tuples.")
    concurrency_max: int = _setting(
        kinds.integer(1, 1024), 64, "Requests served at a time; further ones are answered with 503."
    )
    door: str = _setting(kinds.path(), "", "The daemon's control socket.  Empty: run.door.",
                         example='"/run/edged/door"')  # fmt: skip


@dataclass(frozen=True)
class MetricsSection:
    """The metrics for Prometheus."""

    listen: str = _setting(
        kinds.address(), "127.0.0.1:9464", "Address of the read-only listener.  Empty: none."
    )


@dataclass(frozen=True)
class TelemetrySection:
    """The device's reports to the centre."""

    interval_s: float = _setting(
        kinds.number(0, 86400), 30.0, "Seconds between two reports.  0: no reports.", live=True
    )
    bytes_max: int = _setting(kinds.size(1 << 10), 16 << 10, "Largest report.", live=True)
    first: bool = _setting(
        kinds.boolean(), False, "Whether reports go before waiting pages.", live=True
    )


@dataclass(frozen=True)
class LogSection:
    """The log: the journal, or standard error."""

    level: str = _setting(
        kinds.choice(LEVELS), "info", "The lowest level that is logged.", live=True
    )


SECTIONS: Mapping[str, type[Any]] = {
    "device": DeviceSection,
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
    """Path of the setting's systemd credential (systemd.exec, LoadCredential=), or nothing."""
    directory = environ.get("CREDENTIALS_DIRECTORY", "")
    if not directory or not setting.credential:
        return ""
    file = os.path.join(directory, setting.credential)  # noqa: PTH118
    return file if os.path.exists(file) else ""  # noqa: PTH110
