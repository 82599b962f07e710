"""The producers of one stream: names, sequence numbers, latest times, ends.

A producer names itself (`edged.producer` on the wire).  Internally it has a number: the lowest free
one.  Number 0 is the anonymous producer, shared by all peers without a name.  The arrays are
indexed by number; a free number has the name "".

A recovery that lost positions (`lose_positions`) leaves producers with numbers that may be too low.
The first batch of such a producer may be ahead of its number; what is between was acknowledged and
is lost, and is in `jumps`.

Durable: ids, seq, latest_us, ended, behind, late, contents, promised_us, sums, sessions, lasts,
unsure, names_lost.  `seen_us` is on
the monotonic clock of this run, `ahead` counts in this run.
`changes` gives the delta for a beat's record; `apply` replays it in the order freed numbers, new
names, values.  `late` is not in it: a replay counts late rows again.  Both `changes` and `to_json`
are dicts of lists of JSON values.  Code that keeps values of its own by number must clear those in
`forgotten` before it takes rows of the next producer with that number, live and in a replay.

The arrays are replaced when they grow: read them through the object, keep no reference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from edged.data.flow import WATERMARK_MAX_US, WATERMARK_MIN_US

_VALUES = ("seq", "latest_us", "ended", "behind", "promised_us", "sums")
"""The arrays that `changes` compares."""
ANONYMOUS = 0
"""The number of all peers without a name."""


class Names(dict[int, str]):
    """Texts by number, with what has changed since the last `mark_logged`.  "" stands for none."""

    def __init__(self, entries: Iterable[tuple[int, str]] = ()) -> None:
        super().__init__(entries)
        self._logged: dict[int, str] = dict(self)

    def put(self, number: int, text: str) -> None:
        """Set a number's text; "" removes it."""
        if text:
            self[number] = text
        else:
            self.pop(number, None)

    def changed(self) -> bool:
        """Whether `changes` is not empty."""
        return self != self._logged

    def changes(self) -> list[list[Any]]:
        """[number, text] of each change."""
        if self == self._logged:
            return []
        named = {n: self.get(n, "") for n in sorted(self.keys() | self._logged.keys())}
        return [[n, text] for n, text in named.items() if text != self._logged.get(n, "")]

    def apply(self, changes: Iterable[tuple[int, str]]) -> None:
        """Apply `changes`."""
        for number, text in changes:
            self.put(number, text)

    def mark_logged(self) -> None:
        """The changes are in a record."""
        if self != self._logged:
            self._logged = dict(self)

    def to_json(self) -> list[list[Any]]:
        """All entries, for a snapshot."""
        return [[n, text] for n, text in sorted(self.items())]


class Producers:
    """Producers of a stream, by number; see the module's docstring."""

    def __init__(self) -> None:
        self.ids: list[str] = [""]
        """Names by number."""
        self.seq: npt.NDArray[np.int64] = np.zeros(16, np.int64)[:1]
        """Sequence number of the last batch staged; 0: none yet."""
        self.latest_us: npt.NDArray[np.int64] = np.full(16, WATERMARK_MIN_US, np.int64)[:1]
        """Largest event time staged; WATERMARK_MIN_US: none yet."""
        self.seen_us: npt.NDArray[np.int64] = np.zeros(16, np.int64)[:1]
        """Monotonic time of the last arrival (a batch or a connection) in this run."""
        self.ended: npt.NDArray[np.uint8] = np.zeros(16, np.uint8)[:1]
        """1 after an end-of-stream with nothing sent since."""
        self.behind: npt.NDArray[np.uint8] = np.zeros(16, np.uint8)[:1]
        """1: too far behind to count for the watermark (`edged.beat.laggards`)."""
        self.late: npt.NDArray[np.int64] = np.zeros(16, np.int64)[:1]
        """Rows dropped so far because they were late."""
        self.ahead: npt.NDArray[np.int64] = np.zeros(16, np.int64)[:1]
        """Rows refused in this run because their time was too far ahead."""
        self.promised_us: npt.NDArray[np.int64] = np.full(16, WATERMARK_MIN_US, np.int64)[:1]
        """Event time before which no later row comes, as the producer promises; WATERMARK_MIN_US:
        it promises none."""
        self.sums: npt.NDArray[np.int64] = np.zeros(16, np.int64)[:1]
        """What the producer calls its last batch besides its number; 0: nothing."""
        self.contents = Names()
        """What producers send, by number, of those that name it."""
        self.sessions = Names()
        """The last session of producers that are links of other daemons: counter and nonce."""
        self.lasts = Names()
        """The number of the batch with which a table's first rows end, of producers that say so."""
        self.unsure: set[int] = set()
        """Numbers whose `seq` may be too low: the record of later batches is lost."""
        self.names_lost = False
        """Whether a producer without a number may have had one."""
        self.jumps: list[tuple[str, int, int]] = []
        """Producer, first and last batch of each lost range; the reader clears it."""
        self.forgotten: list[int] = []
        """Numbers freed since the last `mark_logged`."""
        self._numbers: dict[str, int] = {"": ANONYMOUS}
        self._free: list[int] = []
        self._new: list[int] = []
        self._logged = self._values()

    def __len__(self) -> int:
        return len(self.ids)

    def end_first_rows(self, number: int, last: int) -> None:
        """Note that a table's first rows end with batch `last` of a producer."""
        self.lasts.put(number, str(last))

    def populated(self) -> bool:
        """Whether the last one of a table's first batches is staged."""
        return any(self.seq[number] >= int(last) for number, last in self.lasts.items())

    def count(self) -> int:
        """Producers with a name."""
        return len(self._numbers) - 1

    def known(self, id: str) -> bool:
        """Whether `id` has a number already."""
        return id in self._numbers

    def number(self, id: str) -> int:
        """The number of the producer `id`; a new producer gets one."""
        number = self._numbers.get(id)
        if number is None:
            number = self._free[0] if self._free else len(self.ids)
            self._give(number, id)
            self.unsure |= {number} if self.names_lost else set()
        return number

    def lose_positions(self) -> None:
        """Note that batches of any producer may be lost, and the record of them too."""
        self.names_lost = True
        self.unsure = {n for n, id in enumerate(self.ids) if id}

    def jump(self, number: int, seq: int) -> bool:
        """Go on with batch `seq` of a producer whose number may be too low; False: it is not."""
        if number not in self.unsure:
            return False
        self.jumps.append((self.ids[number], int(self.seq[number]) + 1, seq - 1))
        self.seq[number] = seq - 1
        self.unsure.discard(number)
        return True

    def forget(self, number: int) -> None:
        """Free a number.  No staged row may belong to it; its producer would start from nothing."""
        del self._numbers[self.ids[number]]
        self.ids[number] = ""
        self.seq[number], self.latest_us[number] = 0, WATERMARK_MIN_US
        self.seen_us[number] = self.ended[number] = 0
        self.behind[number] = self.late[number] = self.ahead[number] = self.sums[number] = 0
        self.promised_us[number] = WATERMARK_MIN_US
        self.contents.pop(number, None)
        self.sessions.pop(number, None)
        self.lasts.pop(number, None)
        self.unsure.discard(number)
        self.forgotten.append(number)
        self._free = sorted({*self._free, number})
        self._new = [n for n in self._new if n != number]

    def promise(self, number: int, watermark_us: int) -> None:
        """Note that no row before `watermark_us` comes later; WATERMARK_MAX_US: none comes."""
        self.ended[number] = watermark_us == WATERMARK_MAX_US
        if watermark_us != WATERMARK_MAX_US:
            self.promised_us[number] = max(self.promised_us[number], watermark_us)
            self.latest_us[number] = max(self.latest_us[number], watermark_us)

    def go_on_from(self, number: int, seq: int) -> bool:
        """Make `seq` the next batch of a producer that no longer has earlier ones; False: an
        earlier one was staged last.  What a known producer skips is in `jumps`."""
        last = int(self.seq[number])
        if last >= seq - 1:
            return False
        if last or number in self.unsure:
            self.jumps.append((self.ids[number], last + 1, seq - 1))
        self.seq[number], self.sums[number] = seq - 1, 0
        self.unsure.discard(number)
        return True

    def touch(self, monotonic_us: int) -> None:
        """Set `seen_us` of all producers: after a recovery none is idle."""
        self.seen_us[:] = monotonic_us

    def changed(self) -> bool:
        """Whether `changes` is not empty, so that a beat must be committed even without rows."""
        return bool(self.changes_if_any())

    def changes_if_any(self) -> dict[str, Any]:
        """`changes`; an empty dict where nothing has changed."""
        at = self._changed_numbers()
        named = any(names.changed() for names in (self.contents, self.sessions, self.lasts))
        if at.size or self._new or self.forgotten or named:
            return self._changes(at)
        return {}

    def changes(self) -> dict[str, Any]:
        """The delta since the last `mark_logged`: freed numbers, new names, values by number."""
        return self._changes(self._changed_numbers())

    def _changes(self, at: npt.NDArray[np.int64]) -> dict[str, Any]:
        changes = {
            "forgotten": self.forgotten,
            "ids": [[number, self.ids[number]] for number in self._new],
            "number": at.tolist(),
            "seq": self.seq[at].tolist(),
            "latest_us": self.latest_us[at].tolist(),
            "ended": self.ended[at].tolist(),
            "behind": self.behind[at].tolist(),
            "contents": self.contents.changes(),
        }
        if sessions := self.sessions.changes():
            changes["sessions"] = sessions
        if lasts := self.lasts.changes():
            changes["lasts"] = lasts
        if (self.promised_us[at] != WATERMARK_MIN_US).any() or self.sums[at].any():
            changes["promised_us"] = self.promised_us[at].tolist()
            changes["sums"] = self.sums[at].tolist()
        return changes

    def apply(self, changes: Mapping[str, Any]) -> None:
        """Apply a delta from `changes`; call it before the beat's rows are staged again."""
        self._extend(max(changes["number"], default=0) + 1)
        for number in changes["forgotten"]:
            if self.ids[number]:
                self.forget(number)
        for number, id in changes["ids"]:
            if self._numbers.get(id) != number:
                self._give(number, id)
        at = np.array(changes["number"], np.int64)
        self.seq[at] = changes["seq"]
        self.unsure -= set(changes["number"])
        self.latest_us[at] = changes["latest_us"]
        self.ended[at] = changes["ended"]
        self.behind[at] = changes.get("behind", 0)
        self.promised_us[at] = changes.get("promised_us", WATERMARK_MIN_US)
        self.sums[at] = changes.get("sums", 0)
        self.contents.apply(changes.get("contents", []))
        self.sessions.apply(changes.get("sessions", []))
        self.lasts.apply(changes.get("lasts", []))
        self.mark_logged()

    def apply_behind_hole(self, changes: Mapping[str, Any]) -> None:
        """Apply a delta of which earlier ones are lost: numbers without a known name are left out,
        and a new name takes its number from an older one."""
        for number, id in changes["ids"]:
            for held in {self._numbers.get(id, number), number}:
                if held < len(self.ids) and self.ids[held] and self.ids[held] != id:
                    self.forget(held)
            if self._numbers.get(id, number) != number:
                self.forget(self._numbers[id])
        named = {number for number, _ in changes["ids"]}
        named |= {n for n, id in enumerate(self.ids) if id or n == ANONYMOUS}
        keep = [i for i, number in enumerate(changes["number"]) if number in named]
        rest = {
            name: [changes[name][i] for i in keep]
            for name in ("number", *_VALUES)
            if name in changes
        }
        for name in ("contents", "sessions", "lasts"):
            rest[name] = [[n, c] for n, c in changes.get(name, []) if n in named]
        self.apply({**changes, **rest})

    def mark_logged(self) -> None:
        """The delta of `changes` is in a record."""
        self.forgotten, self._new = [], []
        self._logged = self._values()
        self.contents.mark_logged()
        self.sessions.mark_logged()
        self.lasts.mark_logged()

    def to_json(self) -> dict[str, Any]:
        """The durable fields, for a snapshot."""
        return {
            "ids": list(self.ids),
            "seq": self.seq.tolist(),
            "latest_us": self.latest_us.tolist(),
            "ended": self.ended.tolist(),
            "behind": self.behind.tolist(),
            "late": self.late.tolist(),
            "contents": self.contents.to_json(),
            "promised_us": self.promised_us.tolist(),
            "sums": self.sums.tolist(),
            "sessions": self.sessions.to_json(),
            "lasts": self.lasts.to_json(),
            "unsure": sorted(self.unsure),
            "names_lost": self.names_lost,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any], monotonic_us: int = 0) -> Producers:
        """The inverse of `to_json`; every producer counts as seen at `monotonic_us`."""
        producers = cls()
        producers.restore(document)
        producers.touch(monotonic_us)
        return producers

    def restore(self, document: Mapping[str, Any]) -> None:
        """Replace the contents by those of a `to_json`."""
        ids = list(document["ids"])
        n = len(ids)
        self.ids = ids
        self._numbers = {id: n for n, id in enumerate(ids) if id or n == ANONYMOUS}
        self._free = [n for n, id in enumerate(ids) if not id and n != ANONYMOUS]
        self.seq = np.array(document["seq"], np.int64)
        self.latest_us = np.array(document["latest_us"], np.int64)
        self.ended = np.array(document["ended"], np.uint8)
        self.behind = np.array(document.get("behind", [0] * n), np.uint8)
        self.late = np.array(document.get("late", [0] * n), np.int64)
        self.contents = Names(document.get("contents", []))
        self.sessions = Names(document.get("sessions", []))
        self.lasts = Names(document.get("lasts", []))
        self.promised_us = np.array(document.get("promised_us", [WATERMARK_MIN_US] * n), np.int64)
        self.sums = np.array(document.get("sums", [0] * n), np.int64)
        self.unsure = set(document.get("unsure", ()))
        self.names_lost = bool(document.get("names_lost", False))
        self.ahead = np.zeros(n, np.int64)
        self.seen_us = np.zeros(n, np.int64)
        self.mark_logged()

    def _give(self, number: int, id: str) -> None:
        self._extend(number + 1)
        self._free.remove(number)
        self._new.append(number)
        self.ids[number], self._numbers[id] = id, number

    def _extend(self, size: int) -> None:
        """Grow to at least `size` numbers; new ones are free."""
        if size <= len(self.ids):
            return
        self._free += range(len(self.ids), size)
        self.ids += [""] * (size - len(self.ids))
        self.seq = _extended(self.seq, size, 0)
        self.latest_us = _extended(self.latest_us, size, WATERMARK_MIN_US)
        self.seen_us = _extended(self.seen_us, size, 0)
        self.ended = _extended(self.ended, size, 0)
        self.behind = _extended(self.behind, size, 0)
        self.late = _extended(self.late, size, 0)
        self.ahead = _extended(self.ahead, size, 0)
        self.promised_us = _extended(self.promised_us, size, WATERMARK_MIN_US)
        self.sums = _extended(self.sums, size, 0)

    def _values(self) -> tuple[npt.NDArray[Any], ...]:
        """Copies of the values that `changes` compares."""
        return tuple(getattr(self, name).copy() for name in _VALUES)

    def _changed_numbers(self) -> npt.NDArray[np.int64]:
        n = self._logged[0].size
        differs = np.zeros(n, np.bool_)
        for name, logged in zip(_VALUES, self._logged, strict=True):
            differs |= getattr(self, name)[:n] != logged
        if n < len(self.ids):
            differs = np.concatenate([differs, np.ones(len(self.ids) - n, np.bool_)])
        if self.forgotten:
            differs[self.forgotten] = True  # a replay starts them from nothing
        found: npt.NDArray[np.int64] = differs.nonzero()[0]
        return found


def _extended(array: npt.NDArray[Any], size: int, fill: int) -> npt.NDArray[Any]:
    """`array` at `size` elements: a longer view of its base where that has room, else a copy."""
    base = array.base
    if isinstance(base, np.ndarray) and base.size >= size:
        return base[:size]
    grown = np.full(max(16, size * 2), fill, array.dtype)
    grown[: array.size] = array
    return grown[:size]
