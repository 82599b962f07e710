"""`edged-api`: the REST API as a process of its own.

    configuration ─► listeners ─► application ─► a server each ─► ready ─► SIGTERM ─► close

It starts and runs without the daemon, and answers 503 while the daemon is down.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from api.app import build
from api.context import Context
from api.door_client import DoorClient
from api.ingest import Ingest
from api.listeners import ApiListener, addresses, open_listeners
from api.metrics import App, open_listener
from api.server import Server
from edged.config import CONFIG, Config, load
from edged.config.code_directories import set_code_directories
from edged.errors import EdgedError
from edged.events.journal import log_to, report_error
from edged.platform.notify import Notifier
from edged.platform.processes import NICENESS


@click.command(name="edged-api")
@click.option(
    "--config", "path", type=click.Path(dir_okay=False, path_type=Path),
    help=f"Configuration file.  [default: {CONFIG}, where it exists]",
)  # fmt: skip
@click.option("--door", type=click.Path(path_type=Path), help="run.door: the daemon's socket.")
@click.option("--socket", type=click.Path(path_type=Path), help="api.socket")
@click.option("--listen", help="api.listen, HOST:PORT")
@click.option("--json", "as_json", is_flag=True, help="Say `ready` as JSON on standard output.")
def command(
    path: Path | None, door: Path | None, socket: Path | None, listen: str | None, as_json: bool
) -> None:
    """Serve the REST API of an edged daemon until SIGTERM."""
    given = {"run.door": ("--door", door), "api.socket": ("--socket", socket),
             "api.listen": ("--listen", listen)}  # fmt: skip
    flags = {key: (flag, str(value)) for key, (flag, value) in given.items() if value is not None}
    if path is None and CONFIG.exists():
        path = CONFIG
    config = load(path, flags=flags)
    set_code_directories(config)
    os.nice(NICENESS)
    _log(config.log.level)
    asyncio.run(serve(config, os.environ, as_json))


async def serve(config: Config, environ: Mapping[str, str], as_json: bool = False) -> None:
    """Serve until SIGTERM or SIGINT.  Raises ConfigError if it cannot start."""
    door = DoorClient(str(config.door))
    context = Context(config.api, door, Ingest(door, keys_file(config, environ)))
    app = build(context)
    listeners = open_listeners(config.api, environ)
    servers = [Server(app, listener) for listener in listeners]
    metrics = open_listener(config.metrics.listen)
    if metrics is not None:
        servers.append(Server(App(door), metrics))
        listeners.append(metrics)
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    running = [asyncio.create_task(server.run_until_stopped()) for server in servers]
    notifier = Notifier(environ)
    _announce_ready(listeners, notifier, as_json)
    stopped = asyncio.create_task(over.wait())
    await asyncio.wait({stopped, *running}, return_when=asyncio.FIRST_COMPLETED)
    notifier.send(STOPPING=1)
    context.live.close()
    for server in servers:
        server.stop()
    await asyncio.gather(*running)
    await context.close()
    notifier.close()
    for listener in listeners:
        if listener.trusted and environ.get("LISTEN_PID") != str(os.getpid()):
            Path(listener.address).unlink(missing_ok=True)


def keys_file(config: Config, environ: Mapping[str, str]) -> Path:
    """File of HTTP ingest's idempotency keys: in systemd's state directory, else in the store's."""
    directory = environ.get("STATE_DIRECTORY", "").partition(":")[0] or config.store.directory
    return Path(directory) / "http-ingest.sqlite"


def _announce_ready(listeners: list[ApiListener], notifier: Notifier, as_json: bool) -> None:
    where = addresses(listeners)
    notifier.send(READY=1, STATUS=f"listens on {where}")
    logging.getLogger("edged.api").info("listens on %s", where)
    if as_json:
        ready = {"ready": True, "pid": os.getpid(), "listens": [one.address for one in listeners]}
        click.echo(json.dumps(ready))
        sys.stdout.flush()


def _log(level: str) -> None:
    log_to("edged-api", level)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def main() -> None:
    """Entry point: expected errors become one line and an exit code."""
    try:
        command.main(standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as problem:
        problem.show()
        sys.exit(64)
    except EdgedError as problem:
        report_error(problem, "edged-api")
        sys.exit(problem.exit_code)
