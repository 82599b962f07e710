"""The sender declares pages that the device has lost for good, and only those."""

from __future__ import annotations

from edged.uplink.tasks import SendPages
from tests.uplink.test_sender import names, ok, place, problem, sender


def test_lost_pages_are_declared_where_the_centre_misses_them_and_the_next_one_lands():
    s = sender(*[place(q) for q in range(1, 3)])
    s.done(s.next(0.0), ok(["s", 0, 2]), 0.0)
    for seq in range(3, 8):
        s.offer(place(seq))
    s.lost("s", 0, 3, 4)
    s.lost("s", 0, 5, 5)
    task = s.next(0.0)
    assert names(task) == [("s", 0, 6), ("s", 0, 7)] and task.lost is None
    s.done(task, problem("gap", expected=3), 0.0)
    task = s.next(0.0)  # at once, without a backoff
    assert names(task) == [("s", 0, 6)] and task.lost == ("s", 0, 3, 5)
    assert not s.take_missing()
    s.done(task, ok(["s", 0, 6]), 0.0)
    assert names(s.next(0.0)) == [("s", 0, 7)]
    assert s.queue.pages == 1


def test_a_gap_that_is_not_lost_is_never_declared():
    s = sender(*[place(q) for q in range(1, 8)])
    s.lost("s", 0, 2, 3)
    s.done(s.next(0.0), problem("gap", expected=1, acked=[]), 0.0)
    s.queue.remove("s", 0, 1, 1)  # missing, and not known to be lost
    assert s.take_missing() == [("s", 0, 1)], "the store is asked"
    assert not s.take_missing()
    assert not isinstance(s.next(0.1), SendPages)
    assert s.next(100.0).lost is None


def test_a_centre_that_knows_no_lost_pages_is_not_asked_again_at_once():
    s = sender(place(5))
    s.lost("s", 0, 1, 4)
    for _ in range(2):
        s.done(s.next(0.0), problem("gap", expected=1), 0.0)
    assert not isinstance(s.next(0.0), SendPages)
