"""Which schemas the centre has still to be told of, and which it refuses."""

from __future__ import annotations

from collections.abc import Sequence

from edged.uplink.tasks import Register

TRIES_MAX = 5
"""Answers other than yes after which a schema counts as refused."""

Name = tuple[str, int]
"""Stream and version."""


class Schemas:
    """Those of one sender."""

    def __init__(self, schemas: Sequence[tuple[str, int, str]]) -> None:
        self._texts = {(s, v): text for s, v, text in schemas}
        self._due = list(self._texts)
        self._tries: dict[Name, int] = {}
        self.refused: dict[Name, str] = {}
        """Why, by name."""
        self.under_way = 0
        """Tasks that were taken and have no result yet."""

    def __bool__(self) -> bool:
        """Whether there is one to register."""
        return bool(self._due)

    def add(self, stream: str, version: int, text: str) -> None:
        """One more to register, in place of one of the same name."""
        name = (stream, version)
        self._texts[name] = text
        self.refused.pop(name, None)
        self._tries.pop(name, None)
        self.again(stream, version)

    def again(self, stream: object, version: object) -> None:
        """The centre may not have this one, if it is known here."""
        name = (stream, version)
        if name in self._texts and name not in self._due:
            self._due.append((str(stream), int(str(version))))

    def retry(self) -> None:
        """Try those again that were refused."""
        self._due += self.refused
        self.refused.clear()

    def take(self) -> Register:
        """One to register now."""
        name = self._due.pop()
        self.under_way += 1
        return Register(*name, self._texts[name])

    def answered(self, task: Register, status: int, detail: str) -> None:
        """The centre has answered so: registered, refused, or to be tried again."""
        name = (task.stream, task.version)
        if status < 300:
            self._tries.pop(name, None)
            return
        self._tries[name] = self._tries.get(name, 0) + 1
        if status == 409 or self._tries[name] >= TRIES_MAX:
            self.refused[name] = detail
        else:
            self._due.append(name)

    def streams_refused(self) -> set[str]:
        """Streams whose pages the centre would not take."""
        return {stream for stream, _ in self.refused}
