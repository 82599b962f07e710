"""The loopback interface, whose traffic no other machine can read.

A bearer token that crosses a network without TLS belongs to every machine on the way, so that each
side that holds one asks `require_tls` first.
"""

from __future__ import annotations

import ipaddress

from edged.errors import ConfigError


def is_loopback(host: str) -> bool:
    """Whether a host name or an IP address, in brackets or not, is this machine's loopback."""
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return host == "localhost"


def require_tls(what: str, host: str, do: str) -> None:
    """Raise ConfigError where a token would go to `host` in plain text and beyond loopback.

    `what` names the setting with its value, `do` says what to change.
    """
    if not is_loopback(host):
        raise ConfigError(
            f"{what}: the token would cross the network without TLS, readable on the way; {do}"
        )
