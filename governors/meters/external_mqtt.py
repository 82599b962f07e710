"""Subscriber to one MQTT topic: the needed part of MQTT 3.1.1 on one non-blocking socket.

Each `latest` does what is possible without blocking (connect, greet, receive, keep alive) and
returns, so an idle daemon has no wakeups for MQTT. QoS 0. Retained messages have an unknown age and
are ignored.  A message counts from the `latest` call that reads it, so its age is understated by up
to one interval.  A broken connection is made again after BACKOFF_US.

Brokers are given by address or `localhost`, since a name lookup would block.  No TLS: the broker is
next to the meter or behind a bridge.  Packets: OASIS MQTT 3.1.1, sections 2 and 3.

Not paho-mqtt: driven by `loop_read` it takes 126 lines instead of 203 and 44 ms of import, but its
`connect` blocks (a thread per attempt) and its API has no bound on a packet (256 MiB by the
standard; here PACKET_MAX).
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
"""Timeout of the greeting."""
PACKET_MAX = 64 << 10
TAKE_MAX = 256 << 10
"""Bytes per `latest` call at most.  A broker that publishes faster is disconnected, so that it
cannot delay beats."""
CONNACK, PUBLISH, SUBACK = 2, 3, 9
PINGREQ = b"\xc0\x00"


class MqttError(Exception):
    """Received bytes are not MQTT, or the broker refuses."""


def text(value: str) -> bytes:
    """A string with its length prefix (1.5.3)."""
    content = value.encode()
    return len(content).to_bytes(2, "big") + content


def packet(first: int, body: bytes) -> bytes:
    """A packet with its remaining length (2.2.3)."""
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
    """Remove complete packets from the buffer: first byte and body."""
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
            raise MqttError(f"a packet of {length} bytes; the limit is {PACKET_MAX}")
        if len(buffer) < at + length:
            return
        first, body = buffer[0], bytes(buffer[at : at + length])
        del buffer[: at + length]
        yield first, body


def published(first: int, body: bytes) -> tuple[str, bool] | None:
    """Payload of a PUBLISH (3.3) and its retain flag; None where the payload is not text."""
    at = 2 + int.from_bytes(body[:2], "big") + (2 if first & 0x06 else 0)
    if len(body) < at:
        raise MqttError("a message that is shorter than its topic")
    try:
        return body[at:].decode(), bool(first & 1)
    except UnicodeDecodeError:
        return None


class MqttFeed:
    """Subscribes to one topic.  Implements `external.TextFeed`."""

    def __init__(self, external: External) -> None:
        self.problem = "waiting for the first message"
        self._external = external
        self._socket: socket.socket | None = None
        self._buffer = bytearray()
        self._greeted = self._subscribed = False
        self._retry_us = self._since_us = self._sent_us = 0
        self._found: tuple[str, int] | None = None

    def latest(self, now_us: int) -> tuple[str, int] | None:
        """The last message and the time of the call that received it."""
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
        """Disconnect."""
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
            raise MqttError(
                "give the broker's address instead of a name: a lookup would block"
            ) from None
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
        """Whether the bytes were sent; a connection in progress accepts none."""
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
                raise MqttError(
                    f"more than {TAKE_MAX >> 10} KiB since the last reading: publish less"
                )
            try:
                content = connection.recv(1 << 16)
            except BlockingIOError:
                break
            if not content:
                raise MqttError("it closed the connection")
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
