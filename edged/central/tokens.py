"""Devices' tokens: a file of lines `<device> <sha256 of the token, as hex>`.

A device may have several lines, so that its token can be replaced without interruption.  Blank
lines and lines that begin with `#` are ignored.  The file is read again when it changes; if any
line is invalid, the new file is rejected and the old content stays in force.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
from pathlib import Path

from edged.central.schemas import valid_id
from edged.errors import ConfigError

_LOG = logging.getLogger(__name__)
_HEX = re.compile(r"[0-9a-f]{64}")
_NO_DIGEST = bytes(32)


def new_token() -> str:
    """A new token: 256 random bits, URL-safe text."""
    return secrets.token_urlsafe(32)


def token_line(device: str, token: str) -> str:
    """The line that admits `device` with `token`."""
    if not valid_id(device):
        raise ConfigError(
            f"{device!r} is not a valid device name: a-z, then a-z 0-9 _ -, at most 63"
        )
    return f"{device} {hashlib.sha256(token.encode()).hexdigest()}"


def parse_tokens(text: str, name: str) -> dict[str, list[bytes]]:
    """Digests per device; ConfigError names the invalid line."""
    found: dict[str, list[bytes]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2 or not valid_id(words[0]) or not _HEX.fullmatch(words[1].lower()):
            raise ConfigError(f"{name} line {number}: expected `<device> <sha256 hex>`")
        found.setdefault(words[0], []).append(bytes.fromhex(words[1]))
    return found


class Tokens:
    """A tokens file.  Raises ConfigError if it cannot be read initially."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._stamp: tuple[int, int, int] | None = None
        self._digests: dict[str, list[bytes]] = {}
        try:
            self._read()
        except OSError as problem:
            raise ConfigError(f"tokens file {self._path}: {problem.strerror}") from problem

    def _read(self) -> None:
        stat = self._path.stat()
        stamp = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
        if stamp != self._stamp:
            self._stamp = stamp
            self._digests = parse_tokens(self._path.read_text(encoding="utf-8"), self._path.name)

    def allows(self, device: str, token: str) -> bool:
        """Whether `token` belongs to `device`.  Takes as long for an unknown device."""
        try:
            self._read()
        except (OSError, UnicodeDecodeError, ConfigError) as problem:
            _LOG.error(
                "the tokens file was not reloaded; the old content stays in force: %s", problem
            )
        digest = hashlib.sha256(token.encode()).digest()
        matches = [hmac.compare_digest(d, digest) for d in self._digests.get(device, [_NO_DIGEST])]
        return any(matches) and device in self._digests
