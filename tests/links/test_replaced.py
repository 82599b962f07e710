"""Hops without a log whose job is replaced in a running daemon, and rows of all stages in time."""

from __future__ import annotations

import pytest

from edged.control.door import ask
from edged.errors import JobError
from edged.job.plan import parse_job
from edged.job.state_carryover import compare
from tests.beat.support import changed
from tests.links.chain import Hop, Last, hop_job, rows


def without_log(durability, to, **link):
    """A hop's job of this durability."""
    return changed(hop_job(to, **link), promises={"durability": durability})


def send(producer, first, count, at_once=50):
    for start in range(first, first + count, at_once):
        producer.send(rows(range(start, start + at_once)))


def replace(hop, document):
    """Make this document that of the running job."""
    hop.write(document)
    assert ask(hop.door, "reload")["applied"] == ["job hop"]


def test_a_volatile_job_goes_on_with_the_numbers_of_the_one_that_it_replaces(tmp_path):
    last = Last(tmp_path / "last")
    hop = Hop(tmp_path / "hop", without_log("volatile", [last.address], buffer="1KiB"))
    with last, hop, hop.producer() as producer:
        send(producer, 0, 1000)
        producer.flush()
        last.until(lambda _: len(last.values()) >= 1000)
        replace(hop, without_log("volatile", [last.address], buffer="2KiB"))
        send(producer, 1000, 500)
        producer.flush()
        last.until(lambda _: len(last.values()) >= 1500)
        assert last.values() == list(range(1500))


@pytest.mark.whole
def test_a_hop_that_forwards_is_replaced_under_load_and_loses_nothing(tmp_path):
    last = Last(tmp_path / "last")
    middle = Hop(tmp_path / "middle", without_log("through", [last.address]))
    first = Hop(tmp_path / "first", hop_job([middle.address], buffer="1KiB"))
    with last, middle, first, first.producer() as producer:
        send(producer, 0, 500)
        last.until(lambda _: len(last.values()) >= 500)
        last.kill()  # so that the hop has messages in flight
        send(producer, 500, 500)
        middle.until(lambda s: s["jobs"]["hop"]["streams"]["r"]["rows"] >= 1000)
        replace(middle, without_log("through", [last.address], compress="never"))
        send(producer, 1000, 500)
        last.restart()
        last.ready(300)
        last.until(lambda _: len(last.values()) >= 1500)
        producer.flush(300)
        first.until(lambda s: s["store"]["backlog_pages"] == 0)
        assert last.values() == list(range(1500))


def test_two_hops_in_a_row_forward_rows_and_event_time(tmp_path):
    last = Last(tmp_path / "last")
    second = Hop(tmp_path / "second", without_log("through", [last.address]))
    middle = Hop(tmp_path / "middle", without_log("through", [second.address]))
    first = Hop(tmp_path / "first", hop_job([middle.address], buffer="1KiB"))
    with last, second, middle, first, first.producer() as producer:
        send(producer, 0, 500)
        last.until(lambda _: len(last.values()) >= 500)
        sent = first.stream("hop", "r")["watermark_us"]
        last.until(lambda _: last.stream("last", "r")["watermark_us"] == sent)
        assert last.stream("last", "r")["producers"] == 1
        (link,) = middle.links()
        assert (link["state"], link["rows"]) == ("connected", 500)
        second.kill()
        send(producer, 500, 500)
        second.restart()
        second.ready(300)
        last.until(lambda _: len(last.values()) >= 1000)
        first.until(lambda s: s["store"]["backlog_pages"] == 0)
        assert last.values() == list(range(1000))


@pytest.mark.parametrize(
    ("old", "new"),
    [("exactly_once", "volatile"), ("through", "exactly_once"), ("volatile", "through")],
)
def test_a_running_job_keeps_its_log_or_has_none(old, new):
    old, new = (parse_job(without_log(each, ["127.0.0.1:9"])) for each in (old, new))
    with pytest.raises(JobError, match=r"promises\.durability: cannot change in a running job"):
        compare(old, new).check()
    assert not compare(old, old).refused


def test_a_running_hop_without_a_log_keeps_the_number_of_its_receivers():
    to, how = ["127.0.0.1:8", "127.0.0.1:9"], {"partition": "hash", "by": ["key"]}
    one, two = (parse_job(without_log("through", to[:n], **how)) for n in (1, 2))
    with pytest.raises(JobError, match=r"sinks\.\w+\.to: the number of receivers cannot change"):
        compare(one, two).check()
