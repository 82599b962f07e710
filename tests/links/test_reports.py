"""What links of the sending process report while other threads of it report, too."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time

from edged.client import frames
from edged.data.schema import INT64, Field, Schema
from edged.links.template import greeting_of
from edged.uplink.child import Child

CONFIG = {"schemas": [], "request_bytes": 1, "url": None, "lanes": 0}


def lines_until(channel, found):
    """Reads lines of JSON until one is as wanted; returns that."""
    data = b""
    while True:
        *lines, data = data.split(b"\n")
        for message in map(json.loads, lines):
            if found(message):
                return message
        data += channel.recv(1 << 16)


def test_a_link_that_reports_at_once_does_not_wait_for_a_lane_that_waits_for_it():
    greeting = greeting_of(Schema.of([Field("key", INT64)]), {})
    ours, theirs = socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as listener, ours, theirs:
        ours.settimeout(20)
        link = {
            "name": "link:j/s", "to": [f"127.0.0.1:{listener.getsockname()[1]}"], "bases": [5],
            "version": 1, "tls": False, "ca": "", "problem": "", "forwards": False,
            "greetings": [{"1": base64.b64encode(greeting).decode()}],
        }  # fmt: skip
        child = Child(theirs, {**CONFIG, "links": [link]})
        child.start()
        peer, _ = listener.accept()
        with peer:
            peer.sendall(frames.numbered(frames.HELLO, 5) + frames.link(5, 0))
            lines_until(ours, lambda m: m["links"][0]["state"] == "connected")
            offer = {"offer": [["nowhere", [["link:j/s", 0, 5, 0, 10]]]]}
            main = threading.Thread(target=child.command, args=[offer], daemon=True)
            with child._writing:  # as a lane that has an answer of the centre
                main.start()
                time.sleep(0.5)
                assert child._lock.acquire(timeout=10)
                child._lock.release()
            assert lines_until(ours, lambda m: m["acked"])["acked"] == [["link:j/s", 0, 5]]
            main.join(20)
        child._links.follow([])
        for sender in child._links._senders.values():
            sender.close()
            sender._thread.join(20)
