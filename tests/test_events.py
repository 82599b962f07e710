"""The event log against a client that records all events, over restarts and stores."""

from hypothesis import given
from hypothesis import strategies as st

from edged.events import log
from edged.events.log import Events, LineLog
from edged.platform.clock import SystemClock

LIVES = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.lists(st.tuples(st.integers(0, 12), st.integers(1, 12)), min_size=1, max_size=4),
    ),
    min_size=1,
    max_size=5,
)
"""For each daemon: its store, and for each of the client's requests the number of events before it
and its limit."""


EPOCHS = st.lists(st.integers(0, 2**18 - 1), min_size=4, max_size=4, unique=True)
"""As far apart as random epochs almost surely are."""


@given(EPOCHS.map(lambda found: [n << 8 for n in found]), LIVES)
def test_a_client_gets_every_event_once_over_restarts_and_stores(epochs, lives):
    with_room_for_eight = log.EVENTS_MAX
    log.EVENTS_MAX = 8
    try:
        last, sessions, seen = 0, dict.fromkeys(epochs, 0), set()
        for store, questions in lives:
            epoch = epochs[store]
            sessions[epoch] += 1
            events = Events(SystemClock(), LineLog(lambda *_: None), sessions[epoch], epoch)
            happened, received, missed = 0, [], 0
            for count, limit in [*questions, (0, 8)]:
                for _ in range(count):
                    events.add("daemon.tested", str(happened))
                    happened += 1
                page = events.page(last, limit)
                received += [(event["id"], event["text"]) for event in page["events"]]
                missed += page["missed"]
                last = page["next"]
            ids = [id for id, _ in received]
            assert ids == sorted(ids) and not seen & set(ids)
            seen.update(ids)
            assert len(received) + missed == happened
            texts = [int(text) for _, text in received]
            assert texts == sorted(set(texts)) and texts[-8:] == list(range(happened))[-8:]
            assert last < 2**53, "what JSON's readers take for whole"
    finally:
        log.EVENTS_MAX = with_room_for_eight


def test_a_client_of_another_store_gets_all_events_though_both_counted_alike():
    """Two daemons with one session each use the same numbers."""
    one, other = (
        Events(SystemClock(), LineLog(lambda *_: None), 1, epoch) for epoch in (7, 2**40 + 9)
    )
    for n in range(5):
        one.add("daemon.tested", f"here {n}")
        other.add("daemon.tested", f"there {n}")
    assert len(other.page(one.page(0, 3)["next"], 10)["events"]) == 5
    assert len(one.page(other.page(0, 3)["next"], 10)["events"]) == 5
