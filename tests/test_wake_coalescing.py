"""The pauses of `edged.http.wake_coalescing`, on real sockets and a clock of the test's own."""

import contextlib
import socket

import pytest

from edged.http.wake_coalescing import CLIENTS_MIN, WINDOW_S, CoalescingSelector

PAUSE_S = 0.025


class Bench:
    """A selector with clients that are ready or not, and what it slept."""

    def __init__(self, clients, pause_s=PAUSE_S):
        self.now_s, self.slept = 100.0, []
        self.selector = CoalescingSelector(pause_s, lambda: self.now_s, self._sleep)
        self.pairs = [socket.socketpair() for _ in range(clients)]
        for ours, _ in self.pairs:
            self.selector.register(ours, 1)

    def _sleep(self, seconds):
        self.slept.append(seconds)
        self.now_s += seconds

    def poll(self, ready=None, timeout=0.01, after_s=0.001):
        """The number of clients found ready, `after_s` later; `ready` of them have sent."""
        self.now_s += after_s
        for ours, theirs in self.pairs[: len(self.pairs) if ready is None else ready]:
            theirs.send(b"x")
            ours.setblocking(False)
        found = self.selector.select(timeout)
        for key, _ in found:
            key.fileobj.recv(64)
        return len(found)

    def close(self):
        self.selector.close()
        for pair in self.pairs:
            for end in pair:
                end.close()


@pytest.fixture
def bench():
    with contextlib.ExitStack() as open_:
        yield lambda *args: open_.enter_context(contextlib.closing(Bench(*args)))


def test_many_clients_are_polled_once_in_a_pause(bench):
    many = bench(CLIENTS_MIN)
    assert many.poll() == CLIENTS_MIN and many.slept == []
    for _ in range(20):
        assert many.poll() == CLIENTS_MIN
    assert many.slept == pytest.approx([PAUSE_S - 0.001] * 20)


def test_few_clients_never_wait_however_often_they_send(bench):
    few = bench(CLIENTS_MIN - 1)
    for _ in range(1000):
        assert few.poll() == CLIENTS_MIN - 1
    assert few.slept == []


def test_clients_one_after_the_other_count_within_a_window_and_are_forgotten_after_it(bench):
    many = bench(CLIENTS_MIN)
    for i in range(CLIENTS_MIN):
        many.pairs[i][1].send(b"x")
        assert many.poll(0) == 1
    assert many.slept == [] and many.poll(0) == 0 and len(many.slept) == 1
    many.poll(1, after_s=3 * WINDOW_S)
    many.slept.clear()
    many.poll(1), many.poll(1)
    assert many.slept == []


def test_a_busy_loop_a_due_callback_and_a_client_in_a_hurry_do_not_wait(bench):
    many = bench(CLIENTS_MIN)
    many.poll()
    many.poll(after_s=PAUSE_S)
    many.poll(timeout=0)
    many.selector.hurry()
    many.poll()
    assert many.slept == []
    many.poll()
    assert len(many.slept) == 1


def test_without_a_pause_it_is_the_default_selector(bench):
    plain = bench(CLIENTS_MIN, 0.0)
    for _ in range(5):
        assert plain.poll() == CLIENTS_MIN
    assert plain.slept == []
