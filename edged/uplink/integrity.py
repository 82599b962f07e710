"""What guards a request's headers and an answer against flipped bits on a line without TLS.

Pages carry their own checksum; the session, the epoch, a schema's text and an answer's acks do not,
and one flipped digit there could fence a device or make it forget pages that never landed.  So
both sides send `X-Edged-Check`, the CRC-32 (as zlib's) in 8 hex digits

    of a request:  of the UTF-8 text of device, epoch, session and what it is about, each with a
                   newline behind it, and of a schema's body; the first three as in the headers, the
                   last is `pages` or `<stream>@<version>`
    of an answer:  of its body

Whoever gets one that is wrong takes nothing from the message.  Without the header nothing is
checked.  It is no defence against people: that is what TLS is for.
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
