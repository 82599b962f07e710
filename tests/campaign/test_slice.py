"""The seeded slice of the campaign: one system, in which every process is killed."""

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
