"""Answers of `edged.http.llhttp_protocol`, on a transport that keeps what is written."""

import asyncio
import logging

import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from edged.http.llhttp_protocol import AnswerInOneWrite


class Wire:
    """A transport that keeps each write."""

    def __init__(self):
        self.writes, self.closed = [], False

    def write(self, data):
        self.writes.append(data)

    def close(self):
        self.closed = True

    def is_closing(self):
        return self.closed


def answered(app, method="POST", keep_alive=True):
    """The wire after `app` has answered a request."""
    wire, log = Wire(), logging.getLogger("test")

    async def run():
        cycle = AnswerInOneWrite(
            scope={"method": method}, transport=wire, flow=FlowControl(wire), logger=log,
            access_logger=log, access_log=False, default_headers=[(b"date", b"today")],
            message_event=asyncio.Event(), expect_100_continue=False, keep_alive=keep_alive,
            on_response=lambda: None,
        )  # fmt: skip
        await cycle.run_asgi(app)

    asyncio.run(run())
    return wire


def app(status=200, headers=(), body=b"ok", **more):
    async def call(scope, receive, send):
        await send({"type": "http.response.start", "status": status, "headers": list(headers)})
        await send({"type": "http.response.body", "body": body, **more})

    return call


@pytest.mark.parametrize(
    "answer, method, keep_alive, expected",
    [
        (app(), "POST", True, b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-length: 2\r\n\r\nok"),
        (app(204, body=b""), "PUT", True, b"HTTP/1.1 204 No Content\r\ndate: today\r\n\r\n"),
        (app(headers=[(b"content-length", b"2")]), "HEAD", True,
         b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-length: 2\r\n\r\n"),
        (app(401, [(b"connection", b"close")]), "POST", True,
         b"HTTP/1.1 401 Unauthorized\r\ndate: today\r\ncontent-length: 2\r\n"
         b"connection: close\r\n\r\nok"),
        (app(), "POST", False,
         b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok"),
    ],
)  # fmt: skip
def test_an_answer_is_one_write(answer, method, keep_alive, expected):
    wire = answered(answer, method, keep_alive)
    assert wire.writes == [expected]
    assert wire.closed == (b"connection: close" in expected)


@pytest.mark.parametrize(
    "broken", [app(more_body=True), app(headers=[(b"x", b"a\r\nb: c")]), lambda *_: 1 / 0]
)
def test_what_cannot_be_sent_is_answered_500(broken, caplog):
    wire = answered(broken)
    assert len(wire.writes) == 1 and wire.writes[0].startswith(b"HTTP/1.1 500 ")
    assert wire.closed and "Exception in ASGI application" in caplog.text
