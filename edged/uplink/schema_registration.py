"""The registration state of a sender's schemas: due, in flight, registered or refused."""

from __future__ import annotations

from collections.abc import Sequence

from edged.uplink.tasks import RegisterSchema

TRIES_MAX = 5
"""Number of refusing answers after which a schema counts as refused."""

Name = tuple[str, int]
"""Stream and version."""


class SchemaRegistration:
    """The schemas of one sender."""

    def __init__(self, schemas: Sequence[tuple[str, int, str]]) -> None:
        self._texts = {(s, v): text for s, v, text in schemas}
        self._due = list(self._texts)
        self._tries: dict[Name, int] = {}
        self.refused: dict[Name, str] = {}
        """The reason, by name."""
        self.under_way = 0
        """Tasks taken that have no result yet."""

    def __bool__(self) -> bool:
        """Whether a schema is due."""
        return bool(self._due)

    def add(self, stream: str, version: int, text: str) -> None:
        """Add a schema to register; it replaces one with the same name."""
        name = (stream, version)
        self._texts[name] = text
        self.refused.pop(name, None)
        self._tries.pop(name, None)
        self.again(stream, version)

    def again(self, stream: object, version: object) -> None:
        """Register a known schema again: the centre reports that it lacks it."""
        name = (stream, version)
        if name in self._texts and name not in self._due:
            self._due.append((str(stream), int(str(version))))

    def retry(self) -> None:
        """Try refused schemas again."""
        self._due += self.refused
        self.refused.clear()

    def take(self) -> RegisterSchema:
        """Take a schema that is due."""
        name = self._due.pop()
        self.under_way += 1
        return RegisterSchema(*name, self._texts[name])

    def on_answer(self, task: RegisterSchema, status: int, detail: str) -> None:
        """Record the centre's answer: registered, refused, or to be tried again."""
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
        """Streams whose pages the centre would refuse for lack of a schema."""
        return {stream for stream, _ in self.refused}
