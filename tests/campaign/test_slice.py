"""The seeded slice of the campaign: one system, in which every process is killed, and some bits."""

from tests.campaign.classes.flips import bit_flips
from tests.campaign.classes.kills import kill_all
from tests.campaign.registry import Run
from tests.campaign.rig import Outcome
from tests.system.support import say


def test_a_system_whose_processes_are_killed_loses_and_repeats_nothing_that_was_acked(tmp_path):
    run = Run(tmp_path / "rig", 20, 3, Outcome(), lambda: None)
    kill_all(run)
    say(*run.outcome.problems, *run.outcome.verdict.examples)
    assert run.outcome.runs == 3 and not run.outcome.failed
    assert run.outcome.verdict.landed > 100


def test_a_flipped_bit_is_found_and_costs_at_most_what_is_reported(tmp_path):
    """Also of acks, gaps, session, identity, policy, schemas and indexes; `python -m
    tests.campaign --class bit_flips` takes all bits."""
    run = Run(tmp_path, 20, 1200, Outcome(), lambda: None)
    bit_flips(run)
    say(*run.outcome.problems, *run.outcome.verdict.examples)
    assert run.outcome.runs == 1200 and not run.outcome.failed
    assert run.outcome.verdict.gaps > 100
