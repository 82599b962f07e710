"""The producer of a link: which session may go on, from which number, and what comes again."""

from __future__ import annotations

import pytest

from edged.data.producers import Producers
from edged.sources._tcp_session import FENCED
from tests.links.link_peer import LinkPeer
from tests.sources.tcp_rig import ARROW, Rig, refused, rows
from tests.sources.tcp_rig import messages as stream_of


def link(rig: Rig, session: str = "1.a.0", **more: object) -> LinkPeer:
    return LinkPeer(rig.port, ARROW, "s", session=session, **more)


def send(rig: Rig, session: str, begin: int, count: int, **more: object) -> None:
    with link(rig, session, **more) as peer:
        peer.greeted()
        for seq in range(begin, begin + count):
            peer.send(seq, rows(10 * seq, 3), sum=seq + 1000)
        peer.await_ack(begin + count - 1)


def test_the_same_session_goes_on_and_what_comes_again_is_dropped() -> None:
    with Rig() as rig:
        send(rig, "4.beef.0", 1, 3)
        with link(rig, "4.beef.0") as peer:
            assert peer.greeted() == (3, 3, 1003)
            peer.send(3, rows(30, 3))
            peer.send(4, rows(40, 3))
            peer.await_ack(4)
        assert rig.all_keys() == [10 * n + k for n in range(1, 5) for k in range(3)]


@pytest.mark.parametrize(
    ("session", "why"),
    [
        ("3.beef.9", "session 3 is over: session 4 of it has been here"),
        ("4.dead.9", "another daemon has begun session 4 of it too"),
        ("5.dead.2", "begins after batch 2, but an earlier session has sent batch 3"),
    ],
)
def test_a_copy_of_the_senders_store_is_fenced(session: str, why: str) -> None:
    with Rig() as rig:
        send(rig, "4.beef.0", 1, 3)
        with link(rig, session) as peer:
            text = peer.error()
            assert text.startswith(FENCED) and why in text
        send(rig, "4.beef.0", 4, 1)
        assert rig.count() == 12


def test_the_next_session_takes_over_and_the_one_before_is_refused() -> None:
    with Rig() as rig, link(rig, "4.beef.0") as older:
        older.greeted()
        older.send(1, rows(0, 3))
        older.await_ack(1)
        send(rig, "5.cafe.1", 2, 1)
        assert "a newer connection" in older.error()
        with link(rig, "4.beef.0") as again:
            assert FENCED in again.error()


def test_a_fresh_store_goes_on_with_the_first_batch_that_the_sender_still_has() -> None:
    with Rig() as rig:
        with link(rig, "4.beef.0", first=101) as peer:
            assert peer.greeted() == (100, 100, 0)
            peer.send(101, rows(0, 3))
            peer.await_ack(101)
        assert rig.staging.producers.jumps == []


def test_an_older_store_goes_on_and_says_what_it_misses() -> None:
    with Rig() as rig:
        send(rig, "4.beef.0", 1, 3)
        send(rig, "4.beef.0", 8, 1, first=8)
        assert rig.staging.producers.jumps == [("7f/job/site/0", 4, 7)]
        with link(rig, "4.beef.0", first=2) as peer:
            assert peer.greeted()[0] == 8


@pytest.mark.parametrize(
    ("key", "value"),
    [("session", "x"), ("session", "1.g.0"), ("session", "1.a"), ("from", "0"), ("from", "-1")],
)
def test_odd_greetings_are_refused(key: str, value: str) -> None:
    schema = ARROW.with_metadata(
        {"edged.stream": "s", "edged.producer": "p", f"edged.{key}": value}
    )
    with Rig() as rig:
        assert f"edged.{key}" in refused(rig, stream_of([], schema))


def test_what_links_add_survives_a_record_and_a_snapshot() -> None:
    live, replayed = Producers(), Producers()
    number = live.number("link")
    live.sessions.put(number, "4.beef")
    live.promise(number, 77)
    live.seq[number], live.sums[number] = 5, 1005
    replayed.apply(live.changes())
    live.mark_logged()
    assert not live.changed()
    for copy in (replayed, Producers.from_json(live.to_json())):
        assert copy.to_json() == live.to_json()
    live.sessions.put(number, "5.cafe")
    assert live.changes()["sessions"] == [[number, "5.cafe"]]
    live.forget(number)
    replayed.apply(live.changes())
    assert not replayed.sessions and replayed.promised_us[number] == live.promised_us[0]
