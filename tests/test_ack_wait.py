"""The producer's wait for an answer, with a simulated clock."""

from edged.client.ack_wait import SILENCE_S_FIRST, SILENCE_S_MAX, SILENCE_S_MIN, AckWait


def waited(wait, now_s=1000.0):
    """The length of the next wait."""
    wait.stop()
    wait.expect(now_s)
    left_s = wait.left_s(now_s)
    wait.stop()
    return left_s


def answer(wait, took_s):
    wait.stop()
    wait.expect(0.0)
    wait.answered(took_s)


def test_the_wait_follows_the_slowest_recent_answer_within_its_bounds():
    wait = AckWait(lambda: 0.0)
    assert waited(wait) == SILENCE_S_FIRST
    answer(wait, 0.01)
    assert waited(wait) == SILENCE_S_MIN
    answer(wait, 2.0)
    assert waited(wait) == 20.0
    answer(wait, 20.0)
    assert waited(wait) == SILENCE_S_MAX
    answer(wait, 600.0)
    assert waited(wait) == 1200.0, "a slow answer is waited for"
    for _ in range(100):
        answer(wait, 0.01)
    assert waited(wait) == SILENCE_S_MIN


def test_an_edged_that_may_not_acknowledge_is_asked_ever_more_rarely():
    wait, now_s, connections = AckWait(lambda: 0.0), 0.0, 0
    answer(wait, 0.01)
    while now_s < 24 * 3600:
        now_s += waited(wait)
        wait.in_vain()
        connections += 1
    assert connections <= 15
    answer(wait, 0.01)
    assert waited(wait) == SILENCE_S_MIN


def test_a_wait_goes_on_from_its_beginning_and_ends_with_its_answer():
    wait = AckWait(lambda: 0.0)
    assert wait.left_s(0.0) is None
    for now_s in (10.0, 11.0, 12.0):
        wait.expect(now_s)
        assert wait.left_s(now_s) == SILENCE_S_FIRST - (now_s - 10.0)
    wait.answered(12.5)
    assert wait.left_s(13.0) is None
    assert waited(wait) == 25.0, "the answer took 2.5 s"


def test_producers_do_not_connect_anew_together():
    assert {waited(AckWait(lambda share=share: share)) for share in (0.0, 0.5, 0.75)} == {
        SILENCE_S_FIRST * (1 + share / 2) for share in (0.0, 0.5, 0.75)
    }
