"""The gateway: a collector whose pages go into a daemon, for its source `pages`.

    python -m edged.central.gateway

reads its configuration, a line of JSON, from standard input, and ends with it:

    {"listener": descriptor, "socket": path, "directory": path, "tokens", "tls_cert", "tls_key",
     "streams": {stream of the daemon: {"stream": of the devices, "schema": JSON}, ...}}

`directory` is shared with the daemon's uplink process (`edged.uplink.forwarder`):

    schemas/<stream>@<version>.json   columns of the devices' streams
    desired/<device>.json             what the centre wants of a device, of a forwarded answer
    refused/<device>.json             SHA-256 of the token that the centre has refused, and why
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from edged.central.collector import BODY_BYTES_MAX, Collector
from edged.central.desired import DesiredStates
from edged.central.gateway_intake import GatewayIntake, Taken
from edged.central.listener import BoundedListener, bounded
from edged.central.schemas import SchemaRegistry, valid_id
from edged.central.serve import COALESCE_US, http_server, run_on
from edged.central.tokens import Tokens
from edged.data.schema import Schema
from edged.errors import CentralError, SchemaMismatch
from edged.events.journal import log_to
from edged.http.wake_coalescing import CoalescingSelector
from edged.uplink.telemetry import STREAM as TELEMETRY

REFUSED_S = 60.0
"""How long a refusal of the centre counts without being repeated."""


class GatewayRegistrations:
    """Schemas and desired states of a gateway (`edged.central.landing.Registrations`)."""

    def __init__(self, directory: Path, taken: dict[str, Taken], rest: Taken | None) -> None:
        self._schemas = SchemaRegistry(directory)
        self._desired = DesiredStates(directory / "desired")
        self._taken, self._rest = taken, rest
        self._fitting: dict[tuple[str, int], str] = {}
        """Registered schemas that the daemon takes."""

    def register(self, stream: str, version: int, text: str) -> None:
        """Register a schema durably.  Raises SchemaMismatch for one that the daemon cannot take."""
        try:
            misfit = self._misfit(stream, text)
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise CentralError(f"{stream}@{version} has no schema: {problem}") from None
        if misfit:
            raise SchemaMismatch(misfit)
        self._schemas.register(stream, version, text)

    def schema(self, stream: str, version: int) -> str | None:
        """The registered schema's JSON text; None also for one that this job cannot take.

        The files outlive the job: one before it may have taken the stream, or other columns.
        """
        text = self._fitting.get((stream, version))
        if text is None:
            text = self._schemas.get(stream, version)
            if text is None or self._misfit(stream, text):
                return None
            self._fitting[stream, version] = text
        return text

    def _misfit(self, stream: str, text: str) -> str:
        """Why the daemon cannot take this schema of a stream; empty if it can."""
        taken = self._taken.get(stream)
        if taken is None:
            if self._rest is not None or stream == TELEMETRY:
                return ""
            known = ", ".join(sorted(self._taken))
            return f"this gateway takes no stream {stream}; it takes {known}"
        if _columns(Schema.from_json(text)) != _columns(taken.schema):
            columns = taken.schema.to_json()
            return f"stream {taken.stream} of this gateway has other columns: {columns}"
        return ""

    def desired(self, device: str, known: int = 0) -> Any:
        """What the centre wanted of the device when it last answered."""
        return self._desired.of(device, known)

    def largest_share(self) -> float:
        """No device has a share of its own."""
        return 0.0


def _columns(schema: Schema) -> list[tuple[str, str, bool]]:
    return [(f.name, f.dtype.name, f.nullable) for f in schema]


class GatewayTokens:
    """The tokens file, if there is one, and the centre's refusals."""

    def __init__(self, file: str | None, refused: Path) -> None:
        self._tokens = None if file is None else Tokens(file)
        self._refused = refused

    def allows(self, device: str, token: str) -> bool:
        """Whether the token is the device's, and the centre has not refused it lately."""
        if self._tokens is not None and not self._tokens.allows(device, token):
            return False
        if not valid_id(device):
            return True  # it is refused for its name
        path = self._refused / f"{device}.json"
        try:
            if time.time() - path.stat().st_mtime > REFUSED_S:
                return True
            digest = json.loads(path.read_bytes())["token"]
        except (OSError, ValueError, KeyError, TypeError):
            return True
        return bool(digest != hashlib.sha256(token.encode()).hexdigest())


async def _serve(config: dict[str, Any], selector: CoalescingSelector) -> CentralError | None:
    """Serve until the process ends."""
    taken: dict[str, Taken] = {}
    rest: Taken | None = None
    for stream, given in config["streams"].items():
        found = Taken(stream, Schema.from_json(given["schema"]))
        if given["stream"]:
            taken[given["stream"]] = found
        else:
            rest = found
    directory = Path(config["directory"])
    registrations = GatewayRegistrations(directory, taken, rest)
    collector = Collector(
        registrations,
        GatewayTokens(config["tokens"], directory / "refused"),
        lambda *_: GatewayIntake(config["socket"], taken, rest, registrations.schema),
        body_bytes_max=BODY_BYTES_MAX,
    )
    listener = BoundedListener(fileno=int(config["listener"]))
    listener.setblocking(False)
    server = http_server(collector, selector, config["tls_cert"], config["tls_key"])
    server.on_ready = lambda: None
    try:
        await server.serve(sockets=[bounded(listener)])
    finally:
        collector.close()
    return None


def _end_with_input() -> None:
    """End the process when standard input ends; devices send again what is not answered."""
    while os.read(sys.stdin.fileno(), 1 << 16):
        pass
    os._exit(0)


def main() -> None:
    """See the module's docstring."""
    config = json.loads(_line(sys.stdin.fileno()))
    log_to("edged", "info")
    threading.Thread(target=_end_with_input, daemon=True).start()
    selector = CoalescingSelector(COALESCE_US / 1e6)
    run_on(selector, _serve(config, selector))


def _line(fd: int) -> bytes:
    """The first line, no byte more."""
    data = bytearray()
    while not data.endswith(b"\n"):
        byte = os.read(fd, 1)
        if not byte:
            raise SystemExit(64)
        data += byte
    return bytes(data)


if __name__ == "__main__":
    main()
