"""The links of the uplink process: a sender for each instance of each link
(`edged.uplink.link_sender`), and their reports to the daemon.

The daemon's command `links` lists all links; each has its receivers, and for each version of its
schema and each instance the greeting:

    {"links": [{"name", "to": [...], "bases": [...], "version", "tls", "ca", "problem",
                "forwards", "greetings": [{version: base64}, ...]}, ...]}
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from edged.uplink.link_sender import LinkSender
from edged.uplink.send_queue import PageLocation


class LinkSenders:
    """All links.  `send` sends a message to the daemon; with `wake` it reads it now."""

    def __init__(self, send: Callable[[dict[str, Any], bool], None]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._senders: dict[tuple[str, int], LinkSender] = {}
        self._served: set[tuple[str, int]] = set()

    def follow(self, targets: Sequence[dict[str, Any]]) -> None:
        """Adopt these links; instances that no link has keep their pages."""
        found = {(t["name"], k): _part(t, k) for t in targets for k in range(len(t["greetings"]))}
        self._served = set(found)
        for key, part in found.items():
            self._sender(key, part).follow(part)
        for key, sender in self._senders.items():
            if key not in found:
                sender.follow(_gone(0))

    def offer(self, place: PageLocation) -> None:
        """Add a page, or a new location of one."""
        self._sender((place.stream, place.partition), None).offer(place)

    def lost(self, name: str, instance: int, first: int, last: int) -> None:
        """Forget pages whose bytes are lost; a sender that no link has ends with its last one."""
        key = (name, instance)
        sender = self._sender(key, None)
        sender.lost(first, last)
        if key not in self._served and not sender.status()["in_flight_pages"]:
            sender.close()
            del self._senders[key]
            self._change(sender)

    def retry(self) -> None:
        """End all pauses."""
        for sender in self._senders.values():
            sender.retry()

    def _sender(self, key: tuple[str, int], part: dict[str, Any] | None) -> LinkSender:
        sender = self._senders.get(key)
        if sender is None:
            sender = LinkSender(*key, part or _gone(0), self._acked, self._unreadable, self._change)
            self._senders[key] = sender
            sender.start()
        return sender

    def _acked(self, sender: LinkSender, seq: int) -> None:
        acked = [[sender.name, sender.instance, seq]]
        self._send({"acked": acked, "links": [sender.status()]}, False)

    def _unreadable(self, sender: LinkSender) -> None:
        place = [[sender.name, sender.instance]]
        self._send({"acked": [], "unreadable": place, "links": [sender.status()]}, True)

    def _change(self, sender: LinkSender) -> None:
        self._send({"acked": [], "links": [sender.status()]}, False)


def _part(target: dict[str, Any], instance: int) -> dict[str, Any]:
    """What one instance's sender needs; one that the link no longer has gets no address."""
    to = target["to"]
    shared = {key: target[key] for key in ("version", "tls", "ca", "problem", "forwards")}
    return {
        **shared,
        "to": to[instance] if instance < len(to) else "",
        "base": target["bases"][instance],
        "greetings": target["greetings"][instance],
    }


def _gone(base: int) -> dict[str, Any]:
    return {
        "to": "", "base": base, "version": 0, "tls": False, "ca": "", "problem": "",
        "greetings": {}, "forwards": False,
    }  # fmt: skip
