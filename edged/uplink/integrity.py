"""Checksums of request headers and answers, against bit errors on a connection without TLS.

Pages carry their own checksum; the session, the epoch, a schema's text and the acks of an answer do
not.  One flipped digit there could fence a device, or acknowledge pages that never landed.  Both
sides therefore send `X-Edged-Check`, a CRC-32 (zlib's) in 8 hex digits:

    of a request:  of the UTF-8 text of device, epoch, session and subject, each followed by a
                   newline, and of a schema's body; the first three as in the headers, the
                   subject is `pages` or `<stream>@<version>`
    of an answer:  of its body

A message with a wrong checksum is discarded.  A message without the header is not checked.  This
does not protect against attackers; TLS does.
"""

from __future__ import annotations

import zlib

HEADER = "X-Edged-Check"


def request_check(device: str, epoch: str, session: str, what: str, body: bytes = b"") -> str:
    """The header's value for a request."""
    return body_check(f"{device}\n{epoch}\n{session}\n{what}\n".encode() + body)


def body_check(body: bytes) -> str:
    """The header's value for an answer."""
    return f"{zlib.crc32(body):08x}"
