"""The outbox: in order, each item once, bounded."""

import json
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.pages.sealed import PageKey
from edged.store.page_index import PageRef
from edged.uplink.outbox import REFS_A_LINE, Outbox


def ref(seq, offset=0, file="log"):
    return PageRef(PageKey("s", 0, seq), file, offset, 10)


class Channel:
    """Takes a number of bytes, then none until it gets more room."""

    def __init__(self, room=1 << 30):
        self.room, self.data = room, b""

    def send(self, view):
        if self.room == 0:
            raise BlockingIOError
        part = bytes(view[: self.room])
        self.room -= len(part)
        self.data += part
        return len(part)

    def lines(self):
        return [json.loads(line) for line in self.data.splitlines()]


def told(lines):
    """Commands by value, and pages as (seq, offset), as the child receives them."""
    found = []
    for line in lines:
        for _, pages in line.get("offer", ()):
            found += [("page", page[2], page[3]) for page in pages]
        found += [(k, v) for k, v in line.items() if k != "offer"]
    return found


def test_messages_and_pages_keep_their_order():
    out, channel = Outbox(), Channel()
    out.put({"config": 1}, "config")
    out.offer([ref(1), ref(2, file="other"), ref(3)])
    out.put({"retry": True}, "retry")
    out.offer([ref(4)])
    out.send(channel)
    assert told(channel.lines()) == [
        ("config", 1), ("page", 1, 0), ("page", 2, 0), ("page", 3, 0), ("retry", True),
        ("page", 4, 0),
    ]  # fmt: skip
    assert len(out) == out.bytes == 0


def test_a_line_has_no_more_pages_than_it_may():
    out, channel = Outbox(), Channel()
    out.offer(ref(seq) for seq in range(1, 3 * REFS_A_LINE))
    out.send(channel)
    sizes = [sum(len(pages) for _, pages in line["offer"]) for line in channel.lines()]
    assert sizes == [REFS_A_LINE, REFS_A_LINE, REFS_A_LINE - 1]


STEP = st.one_of(
    st.tuples(st.just("offer"), st.integers(1, 8), st.integers(0, 3)),
    st.tuples(st.just("say"), st.sampled_from(["retry", "windows", "report"]), st.integers(0, 3)),
    st.tuples(st.just("room"), st.integers(1, 200), st.just(0)),
)


@given(st.lists(STEP, max_size=60))
def test_whatever_repeats_the_child_ends_up_with_the_last_of_everything(steps):
    out, channel = Outbox(), Channel(0)
    said = []
    for kind, what, value in steps:
        if kind == "offer":
            out.offer([ref(what, value)])
            said.append(("page", what, value))
        elif kind == "say":
            out.put({what: value}, what)
            said.append((what, value))
        else:
            channel.room += what
        out.send(channel)
        assert len(out) <= 1 + 8 + 3
    channel.room = 1 << 30
    out.send(channel)
    heard = told(channel.lines())
    assert [x for x in heard if x not in said] == []
    for key in {x[:-1] for x in said}:
        assert [x for x in heard if x[:-1] == key][-1] == [x for x in said if x[:-1] == key][-1]
    for command in ("retry", "windows", "report"):
        last = max((i for i, x in enumerate(said) if x[0] == command), default=None)
        if last is not None:
            before = {x[:2] for x in said[:last] if x[0] == "page"}
            at = max(i for i, x in enumerate(heard) if x[0] == command)
            assert before <= {x[:2] for x in heard[:at]}, "a command never overtakes a page"


def test_a_child_that_is_gone_leaves_nothing_behind():
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    out = Outbox()
    out.offer(ref(seq) for seq in range(1, 100_000))
    out.send(ours)
    assert len(out) > 0 and out.bytes > 0
    theirs.close()
    with ours, pytest.raises(ConnectionError):
        out.send(ours)
    out.clear()
    assert len(out) == out.bytes == 0
