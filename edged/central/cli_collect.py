"""`edged central collect`: runs a collector."""

from __future__ import annotations

import json
from pathlib import Path

import click

from edged.central.local_directory import local_directory
from edged.errors import ConfigError
from edged.metrics.central import DEVICES_MAX
from edged.platform.loopback import is_loopback

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def parse_listen(text: str, option: str = "--listen") -> tuple[str, int]:
    """`host:port` or `[v6]:port` as (host, port); ConfigError for anything else."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{option} {text}: expected ADDRESS:PORT, e.g. 127.0.0.1:7500")
    return host, int(port)


@click.command("collect")
@click.option(
    "--landing",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory where pages land; created if missing. Collectors may share it.",
)
@click.option(
    "--listen",
    default="127.0.0.1:7500",
    show_default=True,
    help="Address and port; port 0 takes a free one.",
)
@click.option("--tokens", type=_FILE, help="Devices' tokens: see `edged central token`.")
@click.option("--tls-cert", type=_FILE, help="Certificate chain (PEM).")
@click.option("--tls-key", type=_FILE, help="Its private key (PEM).")
@click.option(
    "--plain",
    is_flag=True,
    help="Listen without TLS on an address that is not "
    "loopback: only behind a proxy that ends TLS.",
)
@click.option(
    "--segment-bytes",
    default=64 << 20,
    show_default=True,
    type=click.IntRange(4096),
    help="Size at which a segment is closed.",
)
@click.option(
    "--body-bytes",
    default=32 << 20,
    show_default=True,
    type=click.IntRange(1 << 16),
    help="Largest request.",
)
@click.option(
    "--device-share",
    default=0.5,
    show_default=True,
    type=click.FloatRange(0, 1, min_open=True),
    help="Share of the landing's file system that one device's pages may use; 1: no limit.",
)
@click.option(
    "--group-commit-ms",
    default=0.0,
    show_default=True,
    type=click.FloatRange(0, 1000),
    help="How long a commit waits for further pages; pages that arrive during a commit are "
    "committed together in any case.",
)
@click.option(
    "--coalesce-ms",
    default=60.0,
    show_default=True,
    type=click.FloatRange(0, 1000),
    help="While eight devices or more send in a quarter of a second, requests are read so often at "
    "most: a fraction of the CPU time for up to twice this latency.  0: at once.",
)
@click.option(
    "--devices-max",
    default=DEVICES_MAX,
    show_default=True,
    type=click.IntRange(1, 1 << 20),
    help="Devices of the fleet's view, the metrics and the counters: those seen last. Pages of "
    "all devices land.",
)
@click.option(
    "--metrics",
    metavar="ADDRESS:PORT",
    help="Serve metrics for Prometheus here, at /metrics: this collector's and the fleet's.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the ready message as a line of JSON.")
def command(
    landing: Path,
    listen: str,
    tokens: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    plain: bool,
    segment_bytes: int,
    body_bytes: int,
    device_share: float,
    group_commit_ms: float,
    coalesce_ms: float,
    devices_max: int,
    metrics: str | None,
    as_json: bool,
) -> None:
    """Receive devices' pages, verify them, and land each exactly once."""
    from edged.central.serve import CollectorSettings, serve
    from edged.events.journal import log_to

    local_directory(str(landing), "--landing")
    log_to("edged", "info")
    host, port = parse_listen(listen)
    if (tls_cert is None) != (tls_key is None):
        raise ConfigError("--tls-cert and --tls-key belong together")
    if not is_loopback(host) and (tokens is None or (tls_cert is None and not plain)):
        raise ConfigError(
            f"--listen {listen} is not a loopback address: give --tokens, and --tls-cert and "
            "--tls-key (or --plain behind a proxy that ends TLS)"
        )

    def ready(address: str, metrics_address: str) -> None:
        line = {
            "ready": True,
            "listen": address,
            "metrics": metrics_address,
            "landing": str(landing),
        }
        text = f"collecting on {address} into {landing}" + (
            f", metrics on {metrics_address}" if metrics_address else ""
        )
        click.echo(json.dumps(line) if as_json else text)

    settings = CollectorSettings(
        landing=landing, host=host, port=port, tokens=tokens, tls_cert=tls_cert, tls_key=tls_key,
        segment_bytes=segment_bytes, body_bytes_max=body_bytes, device_share=device_share,
        group_commit_us=int(group_commit_ms * 1000), coalesce_us=int(coalesce_ms * 1000),
        devices_max=devices_max,
        metrics=None if metrics is None else parse_listen(metrics, "--metrics"),
    )  # fmt: skip
    serve(settings, ready)
