"""A device's request, as the collector reads it: headers, body and pages."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

from anyio import fail_after
from starlette.types import Receive, Scope

from edged.central.admission import DAMAGED, Delivery, PageProblem
from edged.central.schemas import valid_stream
from edged.errors import PageError
from edged.pages.format import Header, iter_pages, require_checksum
from edged.uplink.integrity import HEADER, request_check
from edged.uplink.tasks import LOST_HEADER

BODY_SECONDS_MAX = 120
PAGES_MAX = 1 << 15
"""Pages of a request; a device's requests of 4 MiB cannot have as many."""
_U64 = re.compile(r"\d{1,20}")


class RequestRefused(Exception):
    """A request that is answered with `status`; the sender is to wait `retry_after_s`, 0: as long
    as it chooses."""

    def __init__(self, status: int, detail: str, retry_after_s: int = 0) -> None:
        super().__init__(detail)
        self.status, self.detail, self.retry_after_s = status, detail, retry_after_s


@dataclass(frozen=True, slots=True)
class DeviceSession:
    """The sending device and its session, from the request's headers."""

    device: str
    epoch: int
    counter: int
    nonce: int
    desired: int = 0
    """The device's version of the desired state."""
    lost: tuple[str, int, int, int] | None = None
    """Pages that the device has lost for good: stream, partition, first, last."""
    token: str = ""


class RequestHeaders:
    """The headers of a request (ASGI).  Of a header that occurs twice the first counts."""

    def __init__(self, scope: Scope) -> None:
        self._values: dict[bytes, bytes] = dict(reversed(scope["headers"]))

    def get(self, name: bytes) -> str | None:
        """The value of a header by its name in lower case; None without one."""
        value = self._values.get(name)
        return None if value is None else value.decode("latin-1")

    def text(self, name: bytes) -> str:
        """The value of a header; empty without one."""
        return self._values.get(name, b"").decode("latin-1")

    def session(self, device: str) -> DeviceSession:
        """The session of the sender `device`; raises RequestRefused if it is not complete."""
        epoch = _u64(self.text(b"x-edged-epoch"))
        first, _, second = self.text(b"x-edged-session").partition(":")
        counter, nonce = _u64(first), _u64(second)
        if epoch is None or counter is None or nonce is None or counter < 1:
            raise RequestRefused(
                400, "X-Edged-Epoch and X-Edged-Session (counter:nonce) are needed"
            )
        desired = _u64(self.get(b"x-edged-desired") or "0") or 0
        lost = _lost(self.text(_LOST))
        return DeviceSession(device, epoch, counter, nonce, desired, lost, self.token())

    def token(self) -> str:
        """The bearer's token; empty without one."""
        scheme, _, token = self.text(b"authorization").partition(" ")
        return token.strip() if scheme.lower() == "bearer" else ""

    def announced(self, bytes_max: int) -> int:
        """The body's announced size, or the largest allowed; raises RequestRefused if it is too
        large."""
        text = self.get(b"content-length")
        size = bytes_max if text is None else _u64(text)
        if size is None or size > bytes_max:
            raise RequestRefused(413, f"a body has at most {bytes_max} bytes")
        return size

    def guard(self, what: str, body: bytes = b"") -> None:
        """Refuse a request whose checksum does not match."""
        sent = self.get(_CHECK)
        if sent is None:
            return
        names = (b"x-edged-device", b"x-edged-epoch", b"x-edged-session")
        device, epoch, session = (self.text(name) for name in names)
        if sent != request_check(device, epoch, session, what, body):
            raise RequestRefused(
                400, "the request does not match its X-Edged-Check: it was damaged in transit"
            )


_CHECK, _LOST = HEADER.lower().encode(), LOST_HEADER.lower().encode()


async def read_body(receive: Receive, bytes_max: int) -> bytes | bytearray:
    """The body of a request; raises RequestRefused if it is too large or late, or breaks off."""
    try:
        with fail_after(BODY_SECONDS_MAX):
            return await _read(receive, bytes_max)
    except TimeoutError:
        raise RequestRefused(408, f"the body took longer than {BODY_SECONDS_MAX} s") from None


async def _read(receive: Receive, bytes_max: int) -> bytes | bytearray:
    body: bytes | bytearray = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestRefused(400, "the sender closed the connection")
        chunk: bytes = message.get("body", b"")
        if len(body) + len(chunk) > bytes_max:
            raise RequestRefused(413, f"a body has at most {bytes_max} bytes")
        if not message.get("more_body"):
            return chunk if not body else body + chunk
        if not isinstance(body, bytearray):
            body = bytearray()
        body += chunk


def _u64(text: str) -> int | None:
    value = int(text) if _U64.fullmatch(text) and text.isascii() else 1 << 64
    return value if value < 1 << 64 else None


def _lost(text: str) -> tuple[str, int, int, int] | None:
    """What the header declares as lost: `<partition> <first> <last> <quoted stream>`; None: nothing
    that is valid."""
    *numbers, stream = text.split(" ", 3)
    values = [_u64(number) for number in numbers]
    if len(values) != 3 or None in values:
        return None
    partition, first, last = (value or 0 for value in values)
    return unquote(stream), partition, first, last


def check(sender: DeviceSession, body: bytes | bytearray) -> Delivery:
    """The delivery in `body`: valid pages of `sender`, up to the first invalid one.

    Raises RequestRefused for more than PAGES_MAX of them.
    """
    pages: list[tuple[Header, memoryview]] = []
    damage: PageProblem | None = None
    offset = 0
    try:
        for header, page in iter_pages(body):
            if len(pages) == PAGES_MAX:
                raise RequestRefused(413, f"a request has at most {PAGES_MAX} pages")
            damage = _damage(sender, header, page, offset)
            if damage is not None:
                break
            pages.append((header, page))
            offset += len(page)
    except PageError as problem:
        damage = PageProblem(DAMAGED, str(problem), offset=offset)
    return Delivery(
        sender.device, sender.epoch, sender.counter, sender.nonce, pages, damage, sender.lost,
        sender.token,
    )  # fmt: skip


def _damage(
    sender: DeviceSession, header: Header, page: memoryview, offset: int
) -> PageProblem | None:
    detail = ""
    try:
        require_checksum(header, page)
        if (header.device, header.epoch) != (sender.device, sender.epoch):
            detail = f"{header.name} does not belong to the sender, device {sender.device}"
        elif not valid_stream(header.stream) or header.seq < 1:
            detail = f"{header.name}: invalid stream name, or seq below 1"
    except PageError as problem:
        detail = str(problem)
    if not detail:
        return None
    return PageProblem(
        DAMAGED, detail, header.stream, header.version, header.partition, header.seq, None, offset
    )
