"""A slice of the campaign over a chain of three: kills, a proxy's faults, a receiver that stops."""

from __future__ import annotations

from tests.links.kills import Outcome, campaign, judged
from tests.whole import count


def test_each_row_arrives_once_and_in_order_whatever_is_killed(tmp_path):
    outcome = campaign(tmp_path, count(4, 100), seed=31)
    assert outcome.rows > 0 and outcome.clean, outcome


def test_the_judge_finds_what_is_lost_twice_and_out_of_order():
    assert judged(Outcome(), [0, 1, 2], 3).clean
    found = judged(Outcome(), [0, 2, 1, 1], 4)
    assert (found.lost, found.twice, found.reordered) == (1, 1, 2)
