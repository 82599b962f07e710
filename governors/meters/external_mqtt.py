"""A subscriber to one MQTT topic: as much of MQTT 3.1.1 as that takes, on one socket.

Nothing blocks: each `latest` does what can be done at once (connect, greet, read what has come,
keep alive) and returns.  QoS 0.  A retained message is of unknown age and not believed.  What comes
between two calls counts from the later one, so a figure is younger by up to one interval than it
says.  A broken connection is made again, BACKOFF_US after it was lost.

Brokers are named by address, or `localhost`: looking a name up would block.  No TLS: a broker is
beside the meter or behind a bridge.  Packets: OASIS MQTT 3.1.1, sections 2 and 3.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator

from governors.meters.settings import External

KEEPALIVE_S = 60
BACKOFF_US = 5_000_000
ANSWER_US_MAX = 10_000_000
"""A broker that is silent for so long while it is greeting has lost us."""
PACKET_MAX = 64 << 10
TAKE_MAX = 256 << 10
"""At one look: who publishes faster is left, since the beats of this process must go on."""
CONNACK, PUBLISH, SUBACK = 2, 3, 9
PINGREQ, DISCONNECT = b"\xc0\x00", b"\xe0\x00"


class MqttError(Exception):
    """What came is not MQTT, or the broker refuses."""


def text(value: str) -> bytes:
    """A string with its length before it (1.5.3)."""
    content = value.encode()
    return len(content).to_bytes(2, "big") + content


def packet(first: int, body: bytes) -> bytes:
    """A packet with its remaining length before it (2.2.3)."""
    length, rest = bytearray(), len(body)
    while True:
        rest, low = divmod(rest, 128)
        length.append(low | (128 if rest else 0))
        if not rest:
            return bytes([first]) + bytes(length) + body


def connect(client: str, username: str = "", password: str = "") -> bytes:
    """CONNECT with a clean session (3.1)."""
    flags = 2 | (0x80 if username else 0) | (0x40 if username and password else 0)
    body = text("MQTT") + bytes([4, flags]) + KEEPALIVE_S.to_bytes(2, "big") + text(client)
    body += text(username) if username else b""
    return packet(0x10, body + (text(password) if flags & 0x40 else b""))


def subscribe(topic: str) -> bytes:
    """SUBSCRIBE to one topic at QoS 0 (3.8)."""
    return packet(0x82, b"\x00\x01" + text(topic) + b"\x00")


def split(buffer: bytearray) -> Iterator[tuple[int, bytes]]:
    """Take whole packets off the buffer: the first byte and the body."""
    while len(buffer) >= 2:
        length, at = 0, 1
        while True:
            if at >= len(buffer):
                return
            length |= (buffer[at] & 127) << (7 * (at - 1))
            at += 1
            if not buffer[at - 1] & 128:
                break
            if at > 4:
                raise MqttError("a packet's length has more than four bytes")
        if length > PACKET_MAX:
            raise MqttError(f"a packet of {length} bytes; {PACKET_MAX} are the most that is taken")
        if len(buffer) < at + length:
            return
        first, body = buffer[0], bytes(buffer[at : at + length])
        del buffer[: at + length]
        yield first, body


def published(first: int, body: bytes) -> tuple[str, bool] | None:
    """The payload of a PUBLISH (3.3) and whether it was retained; None where it is no text."""
    at = 2 + int.from_bytes(body[:2], "big") + (2 if first & 0x06 else 0)
    if len(body) < at:
        raise MqttError("a message that is shorter than its topic")
    try:
        return body[at:].decode(), bool(first & 1)
    except UnicodeDecodeError:
        return None


class MqttFeed:
    """Listens to one topic.  See `external.Feed`."""

    def __init__(self, external: External) -> None:
        self.problem = "waiting for the first message"
        self._external = external
        self._socket: socket.socket | None = None
        self._buffer = bytearray()
        self._greeted = self._subscribed = False
        self._retry_us = self._since_us = self._sent_us = 0
        self._found: tuple[str, int] | None = None

    def latest(self, now_us: int) -> tuple[str, int] | None:
        """Do what there is to do; the last message and when it was taken."""
        try:
            if self._socket is None and now_us >= self._retry_us:
                self._dial(now_us)
            if self._socket is not None:
                self._serve(self._socket, now_us)
        except (OSError, MqttError) as problem:
            where = f"{self._external.broker}:{self._external.port}"
            self.close()
            self.problem = f"MQTT broker {where}: {problem}"
            self._retry_us = now_us + BACKOFF_US
        return self._found

    def close(self) -> None:
        """Leave the broker."""
        if self._socket is not None:
            self._socket.close()
        self._socket, self._greeted, self._subscribed = None, False, False
        self._buffer.clear()

    def _dial(self, now_us: int) -> None:
        host = "127.0.0.1" if self._external.broker == "localhost" else self._external.broker
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host, self._external.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
            )[0]
        except socket.gaierror:
            raise MqttError("give the broker's address: looking a name up would block") from None
        self._socket = socket.socket(family, kind | socket.SOCK_NONBLOCK, protocol)
        self._since_us = now_us
        answer = self._socket.connect_ex(address)
        if answer not in (0, errno.EINPROGRESS):
            raise OSError(answer, os.strerror(answer))

    def _serve(self, connection: socket.socket, now_us: int) -> None:
        if not self._greeted:
            refused = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if refused:
                raise OSError(refused, os.strerror(refused))
            client = f"edged-meter-{os.getpid()}-{id(self):x}"[
                :23
            ]  # 23: all that brokers must take
            hello = connect(client, self._external.username, self._external.password)
            self._greeted = self._send(connection, hello, now_us)
        self._receive(connection, now_us)
        if not self._subscribed and now_us - self._since_us > ANSWER_US_MAX:
            raise MqttError("it does not answer")
        if self._subscribed and now_us - self._sent_us > KEEPALIVE_S * 1_000_000 // 2:
            self._send(connection, PINGREQ, now_us)

    def _send(self, connection: socket.socket, content: bytes, now_us: int) -> bool:
        """Whether it went; a connection that is being made takes nothing yet."""
        try:
            sent = connection.send(content, socket.MSG_NOSIGNAL)
        except OSError as problem:
            if problem.errno in (errno.EAGAIN, errno.ENOTCONN) and not self._greeted:
                return False
            raise
        if sent < len(content):
            raise MqttError("it takes nothing more")
        self._sent_us = now_us
        return True

    def _receive(self, connection: socket.socket, now_us: int) -> None:
        taken = 0
        while self._greeted:
            if taken > TAKE_MAX:
                raise MqttError(f"more than {TAKE_MAX >> 10} KiB since the last look: publish less")
            try:
                content = connection.recv(1 << 16)
            except BlockingIOError:
                break
            if not content:
                raise MqttError("it hung up")
            taken += len(content)
            self._buffer += content
            for first, body in split(self._buffer):
                self._take(connection, first, body, now_us)

    def _take(self, connection: socket.socket, first: int, body: bytes, now_us: int) -> None:
        kind = first >> 4
        if kind == CONNACK:
            if len(body) != 2 or body[1]:
                raise MqttError(f"it refuses us (code {body[1] if len(body) == 2 else '?'})")
            self._send(connection, subscribe(self._external.topic), now_us)
        elif kind == SUBACK:
            if body[2:3] == b"\x80":
                raise MqttError(f"it refuses {self._external.topic}")
            self._subscribed = True
        elif kind == PUBLISH:
            message = published(first, body)
            if message is not None and not message[1]:
                self._found = (message[0], now_us)
