"""Bearer tokens of the API: a file of their hashes, which `edged token` writes and the API reads.

A token is `edged_<id>_<secret>`: an id of eight hex digits, and 256 random bits.  The file holds
the SHA-256 of the secret.  A slow hash (scrypt) protects guessable passwords; 256 random bits
cannot be guessed, and requests with wrong tokens would make a small device spend that cost.

    {"tokens": [{"id": "1f0c9a2e", "name": "grafana", "scopes": ["read"], "sha256": "…",
                 "created_us": …, "expires_us": … or null, "revoked_us": … or null}]}

Scopes: `read` shows everything, `control` changes the daemon, `ingest` sends tuples; none includes
another.  The file is replaced as a whole, under a lock file, and read again when it changes: the
next request with a revoked token is refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from edged.errors import ConfigError

SCOPES = ("read", "control", "ingest")
TOKENS_MAX = 10_000
TOKEN_BYTES_MAX = 256
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,62}")
_TOKEN = re.compile(r"edged_([0-9a-f]{8})_([A-Za-z0-9_-]{43})")
_NOBODY = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True)
class Token:
    """The record of a token.  Times are wall clock in microseconds since 1970; None: never."""

    id: str
    name: str
    scopes: tuple[str, ...]
    sha256: str
    created_us: int
    expires_us: int | None = None
    revoked_us: int | None = None

    def state(self, now_us: int) -> str:
        """`valid`, `expired` or `revoked`."""
        if self.revoked_us is not None:
            return "revoked"
        return "expired" if self.expires_us is not None and self.expires_us <= now_us else "valid"


class TokenFile:
    """The file at `path`; a missing file holds no tokens."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._stamp: tuple[int, int, int] | None = None
        self._tokens: dict[str, Token] = {}

    def tokens(self) -> list[Token]:
        """All tokens, oldest first.  Raises ConfigError if the file cannot be read or trusted."""
        self._read()
        return list(self._tokens.values())

    def find(self, secret: str) -> Token | None:
        """The record of a token, valid or not; takes equally long for an unknown token.

        Raises ConfigError if the file cannot be read or trusted.
        """
        self._read()
        parts = _TOKEN.fullmatch(secret[:TOKEN_BYTES_MAX])
        token = self._tokens.get(parts[1]) if parts else None
        digest = hashlib.sha256(parts[2].encode() if parts else b"-").hexdigest()
        same = hmac.compare_digest(token.sha256 if token else _NOBODY, digest)
        return token if same else None

    def of_id(self, id: str) -> Token | None:
        """The record of this id.  Raises ConfigError as `find` does."""
        self._read()
        return self._tokens.get(id)

    def create(
        self, name: str, scopes: Sequence[str], now_us: int, expires_us: int | None
    ) -> tuple[Token, str]:
        """A new record and the token's text, which is stored nowhere.  Raises ConfigError."""
        _check(name, scopes)
        with self._changing() as tokens:
            if len(tokens) >= TOKENS_MAX:
                raise ConfigError(f"{self.path} holds {TOKENS_MAX} tokens; remove old ones from it")
            id, secret = secrets.token_hex(4), secrets.token_urlsafe(32)
            while id in tokens:
                id = secrets.token_hex(4)
            digest = hashlib.sha256(secret.encode()).hexdigest()
            ordered = tuple(s for s in SCOPES if s in scopes)
            tokens[id] = Token(id, name, ordered, digest, now_us, expires_us)
        return tokens[id], f"edged_{id}_{secret}"

    def revoke(self, who: str, now_us: int) -> list[Token]:
        """Revoke the token of this id, or all of this name.  Raises ConfigError for none."""
        with self._changing() as tokens:
            found = [t for t in tokens.values() if who in (t.id, t.name)]
            if not found:
                raise ConfigError(f"no token {who!r} in {self.path}; `edged token list` shows them")
            revoked = [t if t.revoked_us else replace(t, revoked_us=now_us) for t in found]
            tokens.update({t.id: t for t in revoked})
        return revoked

    @contextlib.contextmanager
    def _changing(self) -> Iterator[dict[str, Token]]:
        """The tokens, to be changed; written if the block raises nothing."""
        try:
            with open(f"{self.path}.lock", "w", opener=_private) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._read()
                tokens = dict(self._tokens)
                yield tokens
                self._write(tokens)
        except OSError as problem:
            raise ConfigError(f"{self.path} cannot be written: {problem.strerror}") from problem

    def _write(self, tokens: dict[str, Token]) -> None:
        text = json.dumps({"tokens": [asdict(t) for t in tokens.values()]}, indent=1) + "\n"
        mode = self.path.stat().st_mode & 0o640 if self.path.exists() else 0o640
        with tempfile.NamedTemporaryFile("w", dir=self.path.parent, delete=False) as file:
            file.write(text)
            os.fchmod(file.fileno(), mode)
            with contextlib.suppress(OSError):  # keeps the group of an existing file
                if self.path.exists():
                    os.fchown(file.fileno(), -1, self.path.stat().st_gid)
            file.flush()
            os.fsync(file.fileno())
        Path(file.name).replace(self.path)

    def _read(self) -> None:
        try:
            facts = self.path.stat()
            stamp = (facts.st_mtime_ns, facts.st_ino, facts.st_size)
            if stamp == self._stamp:
                return
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            self._stamp, self._tokens = None, {}
            return
        except (OSError, UnicodeDecodeError) as problem:
            raise ConfigError(f"{self.path} cannot be read: {problem}") from problem
        if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ConfigError(f"others may write {self.path}; chmod 640 it, and look what it holds")
        self._tokens, self._stamp = _parse(text, self.path), stamp


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o640)


def _check(name: str, scopes: Sequence[str]) -> None:
    if not NAME.fullmatch(name):
        raise ConfigError(f"{name!r} cannot name a token: letters, digits and . _ @ -, at most 63")
    unknown = [s for s in scopes if s not in SCOPES]
    if unknown or not scopes:
        raise ConfigError(f"scopes {', '.join(unknown) or 'none'}: there are {', '.join(SCOPES)}")


def _parse(text: str, path: Path) -> dict[str, Token]:
    try:
        tokens = [_token(row) for row in json.loads(text)["tokens"]]
    except (ValueError, KeyError, TypeError) as problem:
        raise ConfigError(f"{path} is not a file of tokens: {problem!r}") from problem
    return {token.id: token for token in tokens}


def _token(row: dict[str, Any]) -> Token:
    token = Token(**{**row, "scopes": tuple(row["scopes"])})
    _check(token.name, token.scopes)
    if not re.fullmatch(r"[0-9a-f]{64}", token.sha256):
        raise ValueError(f"token {token.id}: sha256 is not 64 hex digits")
    return token
