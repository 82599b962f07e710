"""Runs a collector: the listening socket, uvicorn, and an orderly shutdown.

SIGTERM and SIGINT: no new connections, requests in flight are finished and committed, exit 0. A
failed landing: requests in flight get 503, exit 75, or 78 where another version wrote it.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from edged.central.collector import BODY_BYTES_MAX, Collector, application
from edged.central.compaction_metrics import CompactionMetrics
from edged.central.fleet import Fleet
from edged.central.group_commit import GroupCommitter
from edged.central.landing import DirectoryLanding
from edged.central.landing_quota import SHARE
from edged.central.listener import BoundedListener, listen
from edged.central.metrics import DurationHistogram
from edged.central.metrics import listen as listen_metrics
from edged.central.segments import SEGMENT_BYTES
from edged.central.tokens import Tokens
from edged.errors import CentralError, ConfigError
from edged.http.llhttp_protocol import LlhttpProtocol
from edged.http.request_timeouts import handshakes_in_time
from edged.http.wake_coalescing import CoalescingSelector
from edged.metrics.central import DEVICES_MAX

_GRACE_SECONDS = 10
_KEEP_ALIVE_SECONDS = 75
_Failure = CentralError | None
COALESCE_US = 60_000
"""The pause between two wakes while many devices send (`edged.http.wake_coalescing`)."""


@dataclass(frozen=True, slots=True)
class CollectorSettings:
    """The options of `edged central collect`."""

    landing: Path
    host: str = "127.0.0.1"
    port: int = 7500
    tokens: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    segment_bytes: int = SEGMENT_BYTES
    body_bytes_max: int = BODY_BYTES_MAX
    device_share: float = SHARE
    group_commit_us: int = 0
    coalesce_us: int = COALESCE_US
    devices_max: int = DEVICES_MAX
    metrics: tuple[str, int] | None = None
    """Address and port of the metrics; None: not served."""


class HttpServer(uvicorn.Server):
    """Calls `on_ready` when it listens."""

    on_ready: Callable[[], None]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        handshakes_in_time(asyncio.get_running_loop())
        await super().startup(sockets=sockets)
        self.on_ready()


def serve(settings: CollectorSettings, on_ready: Callable[[str, str], None]) -> None:
    """Collect until a signal; `on_ready` gets the address as `host:port`, and that of the metrics.

    Raises ConfigError for invalid settings, CentralError if the landing failed.
    """
    tokens = None if settings.tokens is None else Tokens(settings.tokens)
    listener, syncs = listen(settings.host, settings.port), DurationHistogram()
    try:
        landing = DirectoryLanding(
            settings.landing,
            segment_bytes=settings.segment_bytes,
            device_share=settings.device_share,
            on_sync=syncs.observe,
        )
    except OSError as problem:
        listener.close()
        raise CentralError(f"landing {settings.landing} cannot be opened: {problem}") from problem
    early: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        # uvicorn replaces the handler while it runs, and raises a caught signal again at its end
        signal.signal(number, lambda caught, _: early.append(caught))
    try:
        selector = CoalescingSelector(settings.coalesce_us / 1e6)
        failed = run_on(
            selector, _serve(settings, landing, syncs, tokens, listener, on_ready, early, selector)
        )
    finally:
        landing.close()
        listener.close()
    if failed is not None:
        raise type(failed)(f"landing {settings.landing} failed; the log says why")


def run_on(selector: CoalescingSelector, main: Coroutine[Any, Any, _Failure]) -> _Failure:
    """`asyncio.run` on a loop with `selector`."""
    loop = asyncio.SelectorEventLoop(selector)
    try:
        return loop.run_until_complete(main)
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def http_server(
    collector: Collector,
    selector: CoalescingSelector,
    tls_cert: str | Path | None,
    tls_key: str | Path | None,
) -> HttpServer:
    """The server of a collector's routes, on an event loop with `selector`."""
    return HttpServer(
        uvicorn.Config(
            application(collector, selector.hurry),
            loop="asyncio",
            http=LlhttpProtocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            proxy_headers=False,  # no address of a client is used
            log_config=None,  # logged like everything else
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_GRACE_SECONDS,
            ssl_certfile=tls_cert,
            ssl_keyfile=tls_key,
        )
    )


async def _serve(
    settings: CollectorSettings,
    landing: DirectoryLanding,
    syncs: DurationHistogram,
    tokens: Tokens | None,
    listener: BoundedListener,
    on_ready: Callable[[str, str], None],
    early: list[int],
    selector: CoalescingSelector,
) -> _Failure:
    """Why the landing failed; `early` holds signals that came before uvicorn listened."""
    collector = Collector(
        landing,
        tokens,
        lambda failed, commit: GroupCommitter(landing, failed, settings.group_commit_us, commit),
        body_bytes_max=settings.body_bytes_max,
        fleet=Fleet(settings.landing, settings.devices_max),
        syncs=syncs,
        devices_max=settings.devices_max,
        compaction=CompactionMetrics(settings.landing),
    )
    metrics, close = "", _nothing
    if settings.metrics is not None:
        try:
            metrics, close = listen_metrics(*settings.metrics, collector.exposition)
        except ConfigError:
            collector.close()
            raise
    server = http_server(collector, selector, settings.tls_cert, settings.tls_key)
    host, port = listener.getsockname()[:2]

    def ready() -> None:
        on_ready(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", metrics)
        server.should_exit = server.should_exit or bool(early)

    server.on_ready = ready
    watch = asyncio.create_task(_end_when_failed(collector, server))
    try:
        await server.serve(sockets=[listener])
    finally:
        watch.cancel()
        close()
        collector.close()
    return collector.failure


def _nothing() -> None:
    return


async def _end_when_failed(collector: Collector, server: uvicorn.Server) -> None:
    await collector.failed.wait()
    server.should_exit = True
