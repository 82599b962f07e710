"""What the uplink process needs of each link (`edged.uplink.links`), made of the jobs' sinks.

A greeting is the schema message of a connection: its metadata names the stream, this producer, its
session, and as FROM_BLANK the first number that the sender can still send.  The producer's id is
`EPOCH/JOB/SINK/INSTANCE`, its session `COUNTER.NONCE.BASE`; see docs/links.md.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from edged.client.frames import FROM_KEY, PRODUCER_KEY, SESSION_KEY, STREAM_KEY, TOKEN_KEY
from edged.data.schema import Schema
from edged.links.target import LinkTarget
from edged.links.template import greeting_of
from edged.uplink.link_sender import FROM_BLANK

Numbers = Mapping[str, Sequence[int]]
"""The last number of each instance of each link."""


class LinkConfig:
    """The links of a daemon; `files` is where relative paths start.

    An instance's base is its last number when this process first serves it: what earlier sessions
    have made.
    """

    def __init__(self, epoch: int, session: tuple[int, int], files: str) -> None:
        self._epoch, self._session, self._files = epoch, session, Path(files)
        self._bases: dict[tuple[str, int], int] = {}

    def targets(
        self,
        links: Iterable[LinkTarget],
        schemas: Iterable[tuple[str, int, str]],
        numbers: Numbers,
    ) -> list[dict[str, Any]]:
        """The values of the command `links`; `schemas` are those of all pages that exist or may be
        made."""
        known: dict[str, dict[int, str]] = {}
        for name, version, text in schemas:
            known.setdefault(name, {})[version] = text
        return [self._target(link, known.get(link.name, {}), numbers) for link in links]

    def _target(
        self, link: LinkTarget, schemas: Mapping[int, str], numbers: Numbers
    ) -> dict[str, Any]:
        lasts = list(numbers.get(link.name, ()))
        count = max(len(link.to), len(lasts))
        lasts += [0] * (count - len(lasts))
        bases = [self._bases.setdefault((link.name, k), last) for k, last in enumerate(lasts)]
        token, problem = self._token(link)
        texts = {**schemas, link.version: link.schema}
        greetings = [
            {
                str(version): self._greeting(link, token, k, bases[k], text)
                for version, text in texts.items()
            }
            for k in range(count)
        ]
        ca = str(self._files / link.ca) if link.ca else ""
        return {
            "name": link.name, "to": list(link.to), "bases": bases, "version": link.version,
            "tls": link.tls, "ca": ca, "problem": problem, "greetings": greetings,
            "forwards": bool(link.forwards),
        }  # fmt: skip

    def _token(self, link: LinkTarget) -> tuple[str, str]:
        """The token, and why there is none."""
        if not link.token_file:
            return "", ""
        path = self._files / link.token_file
        try:
            return path.read_text(encoding="utf-8").strip(), ""
        except (OSError, ValueError) as problem:
            return "", f"the token file {path} cannot be read: {problem}"

    def _greeting(self, link: LinkTarget, token: str, instance: int, base: int, text: str) -> str:
        counter, nonce = self._session
        epoch = self._epoch if link.logs else nonce
        producer = link.forwards or f"{epoch:016x}/{link.job}/{link.sink}"
        metadata = {
            STREAM_KEY: link.stream.encode(),
            PRODUCER_KEY: f"{producer}/{instance}".encode(),
            FROM_KEY: FROM_BLANK,
        }
        if not link.forwards:  # the session is that of the producer itself
            metadata[SESSION_KEY] = f"{counter}.{nonce:x}.{base}".encode()
        if token:
            metadata[TOKEN_KEY] = token.encode()
        return base64.b64encode(greeting_of(Schema.from_json(text), metadata)).decode()


def limits(
    links: Iterable[LinkTarget], store_bytes: int | None, jobs: int
) -> dict[str, tuple[int, int]]:
    """What each link may have in flight, `high` and `low`.

    With `spool` it is the job's share of the store: half of it, divided by the jobs.
    """
    found = {}
    for link in links:
        high, low = link.high, link.low
        if link.spool:
            share = 1 << 62 if store_bytes is None else store_bytes // (2 * max(1, jobs))
            high, low = max(high, share), max(low, share // 4 * 3)
        found[link.name] = high, low
    return found
