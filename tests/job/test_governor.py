"""The policy in a job document, over the life of the job."""

from __future__ import annotations

import pytest

from edged.beat.jobs import JobRegistry
from edged.beat.runtime import JobRuntime
from edged.data.workers import Workers
from edged.documents.reader import loads
from edged.energy.policies import COMMAND, DOCUMENT, PolicyChoice
from edged.energy.runtime import chosen_by
from edged.errors import JobError
from edged.job.builder import Job
from edged.job.changes import API, RUNNING, Change
from edged.job.plan import faults, parse_job
from edged.sinks.base import SinkContext
from tests.beat.support import copy_job

CAP = {"policy": "power_cap", "settings": {"watts": 5}}
FIXED = {"policy": "fixed", "settings": {"cpu_mhz": 960}}


def document(governor=None):
    return copy_job() if governor is None else {**copy_job(), "governor": governor}


def test_a_document_names_a_policy_and_its_settings_in_toml_and_in_python():
    text = '[governor]\npolicy = "power_cap"\nsettings = { watts = 5 }\n'
    assert loads(text) == {"governor": CAP}
    plan = parse_job(document(CAP)).governor
    assert (plan.policy, plan.settings) == ("power_cap", {"watts": 5})
    assert Job("j").govern("power_cap", watts=5).document()["governor"] == CAP
    assert parse_job(document()).governor is None


@pytest.mark.parametrize(
    "governor, path, says",
    [
        ({"policy": "power_cup"}, "governor.policy", "did you mean power_cap?"),
        ({"polcy": "fixed"}, "governor.polcy", "did you mean policy?"),
        ({}, "governor.policy", "is missing"),
        ({**CAP, "settings": {"wats": 5}}, "governor.settings.wats", "did you mean watts?"),
        ({**CAP, "settings": {"watts": -5}}, "governor.settings", "watts = -5"),
        ({**CAP, "settings": {"watts": "5"}}, "governor.settings", "watts = '5'"),
        ({**CAP, "settings": 5}, "governor.settings", "not a table"),
        ({"policy": "combined"}, "governor.policy", "one of cool, energy_budget"),
        ("fixed", "governor", "not a table"),
    ],
)
def test_what_is_wrong_is_refused_with_its_path_and_the_nearest_word(governor, path, says):
    (fault,) = faults(document(governor))
    assert fault.path == path and says in str(fault)


class Book:
    """Jobs under the changes of commands and of a replay."""

    def __init__(self, tmp_path):
        self.context = SinkContext("d", 1, str(tmp_path), Workers(1))
        self.jobs = JobRegistry()

    def build(self, given):
        return JobRuntime(parse_job(given), self.context)

    def put(self, governor=None):
        given = document(governor)
        self.jobs.apply(Change("put", "copying", 1, given, API), self.build(given))

    def command(self, governor):
        change = Change("policy", "copying", 2, governor=governor)
        assert Change(**change.to_json()) == change, "as the log has it"
        self.jobs.apply(change, None)

    def chosen(self):
        return chosen_by(self.jobs.get("copying"))


@pytest.fixture
def book(tmp_path):
    return Book(tmp_path)


def test_a_commands_choice_counts_before_the_documents_and_none_gives_it_back(book):
    book.put(CAP)
    assert book.chosen() == PolicyChoice("power_cap", {"watts": 5}, DOCUMENT)
    book.command(FIXED)
    assert book.chosen() == PolicyChoice("fixed", {"cpu_mhz": 960}, COMMAND)
    book.command(None)
    assert book.chosen() == PolicyChoice("power_cap", {"watts": 5}, DOCUMENT)


def test_a_commands_choice_outlives_a_new_document_that_says_the_same_of_its_governor(book):
    book.put(CAP)
    book.command(FIXED)
    book.jobs.set_state(Change("state", "copying", 3, state="paused"))
    book.put({**CAP, "settings": {"watts": 5.0}})
    assert book.chosen().origin == COMMAND
    book.put({**CAP, "settings": {"watts": 6}})
    assert book.chosen() == PolicyChoice("power_cap", {"watts": 6}, DOCUMENT), "the last word holds"


def test_a_commands_choice_is_in_the_snapshot_and_an_older_ones_facts_have_none(book, tmp_path):
    book.put()
    book.command(FIXED)
    facts = book.jobs.facts()
    again = Book(tmp_path)
    again.jobs = JobRegistry([again.build(facts["jobs"]["copying"])])
    again.jobs.load(facts)
    assert again.chosen() == PolicyChoice("fixed", {"cpu_mhz": 960}, COMMAND)
    del facts["about"]["copying"]["governor"]
    again.jobs.load(facts)
    assert again.chosen() is None and again.jobs.get("copying").meta.state == RUNNING


def test_a_job_that_is_deleted_takes_its_choice_with_it(book):
    book.put()
    book.command(FIXED)
    book.jobs.delete("copying")
    book.put()
    assert book.chosen() is None


def test_a_document_with_a_wrong_governor_makes_no_plan():
    with pytest.raises(JobError, match="power_cap"):
        parse_job(document({"policy": "power_cup"}))
