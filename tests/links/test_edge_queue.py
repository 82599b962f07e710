"""What an instance's sender has to send, against a model: pages in order, each until its ack."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.daemon.until_end import waits_for
from edged.pages.sealed import PageKey, SealedPage
from edged.store.loose_pages import LoosePages
from edged.uplink.link_queue import LinkQueue, LinkRefused
from edged.uplink.send_queue import PageLocation
from tests.whole import examples


def page(seq, file="log"):
    return PageLocation("link:j/s", 0, seq, file, 0, 100)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["offer", "send", "ack", "hello", "move", "lost"]),
                          st.integers(0, 40)), max_size=60))  # fmt: skip
def test_pages_wait_in_order_until_they_are_acknowledged(steps):
    queue, newest, held, unsent, acked = LinkQueue(0), 0, [], [], 0
    for what, number in steps:
        if what == "offer":
            newest += 1 + number % 3  # a page has several messages
            queue.offer(page(newest))
            held.append(newest)
            unsent.append(newest)
        elif what == "send" and unsent:
            assert queue.unsent().seq == unsent.pop(0)
            queue.sent()
        elif what == "move" and held:
            queue.offer(page(held[number % len(held)], "spool"))
        elif what == "lost" and held:
            seq = held.pop(number % len(held))
            assert queue.lost(seq, seq)
            unsent = [s for s in unsent if s != seq]
        elif what in ("ack", "hello") and number <= newest:
            done = queue.ack(number) if what == "ack" else queue.hello(number)
            over = [seq for seq in held if seq <= number]
            assert done == (over[-1] if over else None)
            held = [seq for seq in held if seq > number]
            unsent = [s for s in (unsent if what == "ack" else held) if s > number]
            acked = max(acked, number)
        assert (queue.first().seq if held else queue.first()) == (held[0] if held else None)
        assert (queue.unsent().seq if unsent else queue.unsent()) == (unsent[0] if unsent else None)
        assert queue.bytes == 100 * len(held) == 100 * len(queue)
        assert queue.in_flight() == (len(held) > len(unsent))
        assert queue.newest == newest


def test_the_end_says_which_receiver_it_waits_for():
    state = {
        "link": "link:hop/out", "to": "10.0.0.2:9100", "in_flight_pages": 3,
        "state": "backing_off", "problem": "connection refused",
    }  # fmt: skip
    done = {**state, "in_flight_pages": 0}
    assert waits_for([], 0, None, [state, done]) == [
        "10.0.0.2:9100 to acknowledge 3 pages of link hop/out (backing_off: connection refused)"
    ]


def test_pages_without_a_log_are_given_up_with_their_link():
    loose = LoosePages()
    for stream, seq in (("link:a/out", 1), ("link:a/out", 4), ("link:b/out", 2)):
        loose.add([SealedPage(PageKey(stream, 0, seq), bytes(1 << 20))])
    assert loose.give_up({"link:b/out"}) == [("link:a/out", 0, 1, 4)]
    assert [ref.key.stream for ref in loose.pending()] == ["link:b/out"]
    assert not loose.acked("link:a/out", 0, 4)
    assert loose.acked("link:b/out", 0, 2)
    loose.add([SealedPage(PageKey("link:c/out", 0, 1), bytes(4 << 20))])
    assert loose.bytes() == 4 << 20, "its memory is used again"
    loose.close()


def test_a_receiver_with_messages_that_were_never_made_is_refused():
    queue = LinkQueue(7)
    assert queue.hello(7) is None
    queue.offer(page(9))
    assert queue.page_with(8).seq == 9 and queue.page_with(7) is None
    with pytest.raises(LinkRefused, match="up to 10 of this link, but this store has made 9"):
        queue.hello(10)
