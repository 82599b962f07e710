"""The states of links as the uplink process reports them, and what ended processes counted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from edged.pages.container import is_carried
from edged.pages.sealed import PageKey

_COUNTERS = ("rows", "bytes", "pages", "connections", "failures")
_IN_FLIGHT = ("in_flight_bytes", "in_flight_pages")
_Key = tuple[str, int]


class LinkStates:
    """State and figures of each instance of each link; no counter falls."""

    def __init__(self) -> None:
        self._now: dict[_Key, dict[str, Any]] = {}
        self._ended: dict[_Key, dict[str, int]] = {}
        self._lasts: dict[_Key, int] = {}
        """The newest message of each instance in this process, acknowledged or not."""

    def take(self, states: Iterable[dict[str, Any]]) -> None:
        """Adopt newer states."""
        for state in states:
            self._now[state["link"], state["instance"]] = state

    def offered(self, keys: Iterable[PageKey]) -> None:
        """Note the numbers of pages."""
        for key in keys:
            place = key.stream, key.partition
            self._lasts[place] = max(key.seq, self._lasts.get(place, 0))

    def with_lasts(self, targets: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """The links for a new process, with the newest numbers as bases: it gets no page that is
        acknowledged, and would take a receiver that has them for another one's."""
        return [
            {**t, "bases": [max(b, self._lasts.get((t["name"], k), 0))
                            for k, b in enumerate(t["bases"])]}
            for t in targets
        ]  # fmt: skip

    def child_started(self) -> None:
        """A new process counts from 0."""
        for key, state in self._now.items():
            self._ended[key] = self._counted(key, state)
            self._now[key] = {**state, **dict.fromkeys(_COUNTERS, 0)}

    def follow(self, names: Iterable[str]) -> None:
        """Forget the instances of links that are gone and have nothing in flight."""
        known = set(names)
        for key, state in list(self._now.items()):
            if key[0] not in known and not state["in_flight_pages"] and not is_carried(key[0]):
                del self._now[key]
                self._ended.pop(key, None)

    def of(self, name: str) -> list[dict[str, Any]]:
        """The instances of a link, in order."""
        found = sorted((key, state) for key, state in self._now.items() if key[0] == name)
        return [{**state, **self._counted(key, state)} for key, state in found]

    def __bool__(self) -> bool:
        return bool(self._now)

    def _counted(self, key: _Key, state: dict[str, Any]) -> dict[str, int]:
        ended = self._ended.get(key, {})
        return {name: state[name] + ended.get(name, 0) for name in _COUNTERS}


def together(links: Iterable[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The instances of several links to the same receivers: figures summed, and the state of one
    that is not connected, if there is one."""
    found: dict[int, dict[str, Any]] = {}
    for state in (state for link in links for state in link):
        known = found.setdefault(state["instance"], state)
        if known is state:
            continue
        shown = state if known["state"] == "connected" else known
        sums = {name: known[name] + state[name] for name in (*_COUNTERS, *_IN_FLIGHT)}
        found[state["instance"]] = {**shown, **sums}
    return [found[k] for k in sorted(found)]
