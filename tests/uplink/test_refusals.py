"""The sender keeps the pauses that a centre asks for, and devices do not come back together."""

import pytest

from edged.uplink.sender import UNAUTHORIZED_S
from edged.uplink.tasks import Reply
from tests.uplink.test_sender import names, ok, place, sender


@pytest.mark.parametrize(("status", "least"), [(429, 0), (503, 0), (507, 0), (401, UNAUTHORIZED_S)])
def test_a_refusal_that_names_a_pause_gets_it_and_up_to_as_much_again(status, least):
    waits = []
    for jitter in (0.0, 0.5, 1.0):
        s = sender(place(1), jitter=jitter)
        s.done(s.next(0.0), Reply(status, {}, 0, 40.0), 0.0)
        waits.append(s.next(0.0))
        s.retry()
        assert names(s.next(0.0)) == [("s", 0, 1)]
    assert waits == [40.0, 60.0, 80.0]
    for jitter in (0.0, 0.5, 1.0):
        s = sender(place(1), jitter=jitter)
        s.done(s.next(0.0), Reply(status, {}, 0, 0.0), 0.0)
        task = s.next(0.0)
        assert (task if isinstance(task, float) else 0.0) >= least


def test_a_wrong_token_is_tried_again_slowly_or_when_told():
    s = sender(place(1))
    s.done(s.next(0.0), Reply(401, {"detail": "token"}), 0.0)
    assert s.state == "unauthorized" and s.next(1.0) == 2 * UNAUTHORIZED_S
    s.retry()
    task = s.next(1.0)
    s.done(task, ok(("s", 0, 1)), 1.0)
    assert s.state == "sending" and s.next(1.0) is None
