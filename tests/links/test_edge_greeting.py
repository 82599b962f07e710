"""What a link's greeting says of the messages that its sender still has."""

from __future__ import annotations

import base64
import re
import socket

import pytest

from edged.client.frames import FROM_KEY, STREAM_KEY
from edged.data.schema import INT64, Field, Schema
from edged.links.template import greeting_of
from edged.uplink.link_sender import FROM_BLANK, LinkSender


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(20)
        yield made


def first_named(listener):
    """The first number in the greeting of the next connection."""
    client, _ = listener.accept()
    with client:
        client.settimeout(20)
        data = b""
        while (found := re.search(rb"[0-9]{18}", data)) is None:
            data += client.recv(1 << 16)
    return int(found[0])


def test_a_new_process_that_was_offered_no_page_yet_gives_none_up(listener):
    """Its predecessor may have had messages up to 731 in flight."""
    greeting = greeting_of(
        Schema.of([Field("key", INT64)]),
        {STREAM_KEY: b"r", FROM_KEY: FROM_BLANK},
    )
    target = {
        "to": f"127.0.0.1:{listener.getsockname()[1]}", "base": 731, "version": 1, "tls": False,
        "ca": "", "problem": "", "forwards": False,
        "greetings": {"1": base64.b64encode(greeting).decode()},
    }  # fmt: skip
    sender = LinkSender("link:j/s", 0, target, *[lambda *_: None] * 3)
    sender.start()
    try:
        assert first_named(listener) == 1
    finally:
        sender.close()
        sender._thread.join(20)
