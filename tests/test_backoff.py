"""The backoff, with a simulated clock: one client, and a fleet whose centre comes back."""

import random
from collections import Counter

from edged.platform.backoff import (
    BACKOFF_BASE_S,
    BACKOFF_CAP_S,
    EARLY_CAP_S,
    EARLY_S,
    RETRY_AFTER_S_MAX,
    Backoff,
)


def test_the_ceiling_doubles_up_to_the_early_cap_and_after_the_beginning_up_to_the_cap():
    for share in (0.999999, 0.5):
        backoff, waited_s, ceiling_s = Backoff(lambda share=share: share), 0.0, BACKOFF_BASE_S
        for _ in range(80):
            delay_s = backoff.failed()
            assert delay_s == share * ceiling_s
            waited_s += delay_s
            cap_s = EARLY_CAP_S if waited_s < EARLY_S else BACKOFF_CAP_S
            ceiling_s = min(cap_s, 2 * ceiling_s)
        assert ceiling_s == BACKOFF_CAP_S
        backoff.succeeded()
        assert backoff.failed() == share * BACKOFF_BASE_S


def test_a_wait_may_be_nothing_at_all():
    backoff = Backoff(lambda: 0.0)
    assert [backoff.failed() for _ in range(5)] == [0.0] * 5


def test_a_pause_that_is_asked_for_is_kept_and_spread():
    dice = random.Random(1)
    pauses = [Backoff(dice.random).failed(8.0) for _ in range(1000)]
    assert 8.0 <= min(pauses) < 8.1 and 15.9 < max(pauses) <= 16.0
    assert Backoff(lambda: 1.0).failed(1e12) == 2 * RETRY_AFTER_S_MAX
    assert Backoff(lambda: 0.5).failed(-7.0) == 0.5 * BACKOFF_BASE_S


def fleet(devices, down_s, jitter=True, retry_after_s=None):
    """Attempts by second of devices that lose their centre together for `down_s`, and when each
    has reached it again."""
    dice = random.Random(7)
    attempts, reached = Counter(), []
    for _ in range(devices):
        backoff, now_s = Backoff(dice.random if jitter else lambda: 1.0), 0.0
        while now_s < down_s:
            now_s += backoff.failed(retry_after_s)
            attempts[int(now_s)] += 1
        reached.append(now_s)
    return attempts, reached


def test_a_fleet_finds_a_centre_that_was_away_for_a_minute_within_seconds_and_not_in_one():
    attempts, reached = fleet(10_000, 60.0)
    assert max(reached) <= 60.0 + EARLY_CAP_S
    most = max(count for second, count in attempts.items() if second >= 10)
    assert most < 10_000 / EARLY_CAP_S * 2.5, "a second sees about what an even spread gives it"
    assert max(fleet(10_000, 60.0, jitter=False)[0].values()) >= 10_000, "the check can fail"


def test_a_fleet_whose_centre_is_away_for_an_hour_asks_rarely():
    attempts, reached = fleet(2_000, 3600.0)
    assert max(reached) <= 3600.0 + BACKOFF_CAP_S
    assert max(count for second, count in attempts.items() if second >= 400) < 2_000 / 8


def test_a_fleet_that_is_told_when_to_come_back_comes_no_earlier_and_not_at_once():
    attempts, _ = fleet(10_000, 1.0, retry_after_s=20.0)
    assert min(attempts) == 20 and max(attempts) < 40
    assert max(attempts.values()) < 10_000 / 20 * 1.3
