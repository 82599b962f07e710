"""The sender's decisions, with a simulated centre and clock."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.uplink.schema_registration import TRIES_MAX
from edged.uplink.send_queue import PageLocation
from edged.uplink.sender import REPORTS, Sender
from edged.uplink.tasks import NoReply, RegisterSchema, Reply, SendPages, Unreadable
from edged.uplink.upload_schedule import RECHECK_S, opens_in_s
from tests.whole import examples

SCHEMAS = [("s", 1, "[1]"), ("t", 1, "[2]")]


def place(seq, stream="s", partition=0, length=100, file="f"):
    return PageLocation(stream, partition, seq, file, 0, length)


def sender(*places, schemas=(), request_bytes=1000, jitter=1.0):
    made = Sender(schemas, lambda: jitter, request_bytes)
    for p in places:
        made.offer(p)
    return made


def ok(*acked):
    return Reply(200, {"acked": list(acked), "desired": None})


def problem(kind, stream="s", partition=0, status=409, acked=(), **more):
    body = {"problem": kind, "detail": kind, "stream": stream, "partition": partition}
    return Reply(status, {**body, "acked": list(acked), "desired": None, **more})


def names(task):
    return [(p.stream, p.partition, p.seq) for p in task.places]


def test_schemas_go_first_and_pages_wait_for_them():
    s = sender(place(1), schemas=SCHEMAS)
    tasks = [s.next(0.0), s.next(0.0)]
    assert {t.stream for t in tasks} == {"s", "t"} and all(
        isinstance(t, RegisterSchema) for t in tasks
    )
    assert s.next(0.0) is None
    s.done(tasks[0], Reply(204, {}), 0.0)
    assert s.next(0.0) is None
    s.done(tasks[1], Reply(204, {}), 0.0)
    assert names(s.next(0.0)) == [("s", 0, 1)]


def test_a_schema_that_comes_later_goes_before_the_next_page():
    s = sender(place(1), schemas=SCHEMAS[:1])
    s.done(s.next(0.0), Reply(204, {}), 0.0)
    s.register(*SCHEMAS[1])
    s.offer(place(1, stream="t"))
    task = s.next(0.0)
    assert task == RegisterSchema(*SCHEMAS[1])
    assert s.next(0.0) is None
    s.done(task, Reply(204, {}), 0.0)
    assert names(s.next(0.0)) == [("s", 0, 1), ("t", 0, 1)]


def test_a_schema_that_was_refused_may_be_replaced_by_another():
    s = sender(place(1), schemas=SCHEMAS[:1])
    s.done(s.next(0.0), Reply(409, {"detail": "another one"}), 0.0)
    assert s.next(0.0) is None and s.status()["refused_streams"] == ["s"]
    s.register("s", 1, "[3]")
    task = s.next(0.0)
    assert task == RegisterSchema("s", 1, "[3]")
    s.done(task, Reply(204, {}), 0.0)
    assert names(s.next(0.0)) == [("s", 0, 1)] and s.status()["refused_streams"] == []


def test_a_request_takes_what_fits_of_many_partitions():
    s = sender(*[place(q, partition=p) for p in range(3) for q in (1, 2)], request_bytes=450)
    first, second = s.next(0.0), s.next(0.0)
    assert names(first) == [("s", 0, 1), ("s", 0, 2), ("s", 1, 1), ("s", 1, 2)]
    assert names(second) == [("s", 2, 1), ("s", 2, 2)]
    assert s.next(0.0) is None


def test_no_partition_starves():
    s = sender(*[place(q, partition=p) for p in range(3) for q in range(1, 50)], request_bytes=100)
    turns = []
    for _ in range(9):
        task = s.next(0.0)
        [(_, partition, seq)] = names(task)
        turns.append(partition)
        s.done(task, ok(("s", partition, seq)), 0.0)
    assert turns == [0, 1, 2] * 3


def test_a_partition_is_in_one_request_at_a_time():
    s = sender(*[place(q) for q in range(1, 30)], request_bytes=300)
    task = s.next(0.0)
    assert names(task)[-1] == ("s", 0, 3) and s.next(0.0) is None
    s.done(task, ok(("s", 0, 3)), 0.0)
    assert names(s.next(0.0))[0] == ("s", 0, 4)


@pytest.mark.parametrize("claim", [3, 10**30, 2.5])
def test_an_answer_acknowledges_nothing_that_its_request_did_not_have(claim):
    s = sender(*[place(q) for q in (1, 2, 3)], place(1, partition=1), request_bytes=200)
    first, second = s.next(0.0), s.next(0.0)
    assert names(first) == [("s", 0, 1), ("s", 0, 2)]
    s.done(first, ok(("s", 0, claim), ("s", 1, claim), ("t", 0, claim)), 0.0)
    assert s.take_acks() == [("s", 0, 2)] and s.queue.pages == 2
    s.done(second, ok(("s", 1, 1)), 0.0)
    s.offer(place(4))
    assert names(s.next(0.0)) == [("s", 0, 3), ("s", 0, 4)]


def test_network_trouble_backs_off_and_one_goes_ahead():
    s = sender(*[place(1, partition=p) for p in range(3)], request_bytes=100)
    a, b = s.next(0.0), s.next(0.0)
    s.done(a, NoReply("refused"), 10.0)
    s.done(b, NoReply("refused"), 10.1)  # no second increase: the request was in flight already
    assert s.state == "down" and s.next(10.1) == 10.25
    waits, now = [], 10.25
    for _ in range(9):
        probe = s.next(now)
        assert isinstance(probe, SendPages) and s.next(now) is None
        s.done(probe, NoReply("refused"), now)
        waits.append(s.next(now) - now)
        now = s.next(now)
    assert waits == pytest.approx([0.5, 1, 2, 4, 5, 5, 5, 5, 5])
    probe = s.next(now)
    s.done(probe, ok((*names(probe)[0],)), now)
    assert s.state == "sending"
    assert isinstance(s.next(now), SendPages) and isinstance(s.next(now), SendPages)


def test_a_server_error_is_network_trouble_but_its_acks_count():
    s = sender(place(1), place(2))
    s.done(s.next(0.0), problem("full", status=507, acked=[("s", 0, 1)]), 0.0)
    assert s.state == "down" and s.take_acks() == [("s", 0, 1)]
    assert names(s.next(0.25)) == [("s", 0, 2)]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["s", "", "fenced"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["version"]), inner)
    ),
    max_leaves=6,
)
KEYS = ["acked", "desired", "problem", "detail", "stream", "partition", "version", "expected"]


@settings(max_examples=examples(300))
@given(st.dictionaries(st.sampled_from(KEYS), JSON), st.sampled_from([200, 401, 409, 413, 507]))
def test_whatever_a_centre_says_the_page_is_tried_again(body, status):
    s = sender(place(1))
    s.done(s.next(0.0), Reply(status, body), 0.0)
    assert json.dumps(s.status())
    acked, fenced = s.take_acks(), s.state == "fenced"
    assert acked or fenced or names(s.next(1e9)) == [("s", 0, 1)]


def test_an_answer_without_sense_is_network_trouble_that_backs_off():
    s, now = sender(place(1)), 0.0
    for wait_s in (0.25, 0.5, 1.0):
        s.done(s.next(now), Reply(200, {"acked": None}), now)
        assert s.state == "down" and "malformed answer" in s.status()["last_error"]
        assert s.next(now) == now + wait_s
        now += wait_s
    s.done(s.next(now), ok(("s", 0, 1)), now)
    assert s.state == "sending"


def test_fenced_is_the_end():
    s = sender(place(1), place(1, partition=1), request_bytes=100)
    a, b = s.next(0.0), s.next(0.0)
    s.done(a, problem("fenced"), 0.0)
    s.done(b, ok(("s", 1, 1)), 0.0)
    s.offer(place(9))
    s.retry()
    assert s.state == "fenced" and s.next(1e9) is None
    assert s.status()["state"] == "fenced"


def test_an_unknown_schema_is_registered_again():
    s = sender(place(1), schemas=SCHEMAS[:1])
    s.done(s.next(0.0), Reply(204, {}), 0.0)
    s.done(s.next(0.0), problem("unknown_schema", version=1), 0.0)
    assert s.next(0.0) == RegisterSchema("s", 1, "[1]")
    s.done(RegisterSchema("s", 1, "[1]"), Reply(204, {}), 0.0)
    wake = s.next(0.0)
    assert 0 < wake <= 1.0
    task = s.next(wake)
    s.done(task, ok(("s", 0, 1)), wake)
    assert s.queue.pages == 0 and s.status()["stuck"] == []


def test_a_refused_schema_keeps_its_stream_back_and_no_other():
    s = sender(place(1), place(1, stream="t"), schemas=SCHEMAS)
    for _ in range(2):
        task = s.next(0.0)
        s.done(task, Reply(409 if task.stream == "s" else 204, {"detail": "other columns"}), 0.0)
    task = s.next(0.0)
    assert names(task) == [("t", 0, 1)]
    s.done(task, ok(("t", 0, 1)), 0.0)
    assert s.next(0.0) is None
    assert s.status()["refused_streams"] == ["s"] and "other columns" in s.status()["last_error"]


def test_a_garbled_registration_is_tried_again_and_not_for_ever():
    s = sender(place(1), schemas=SCHEMAS[:1])
    for _ in range(5):
        s.done(s.next(0.0), Reply(400, {"detail": "garbled"}), 0.0)
    assert s.next(0.0) is None and s.status()["refused_streams"] == ["s"]
    s.retry()
    s.done(s.next(0.0), Reply(204, {}), 0.0)
    assert names(s.next(0.0)) == [("s", 0, 1)]


def test_an_answer_that_acknowledges_nothing_is_no_success():
    s = sender(place(1))
    s.done(s.next(0.0), ok(), 0.0)
    assert s.next(0.0) == 1.0 and s.status()["stuck"][0]["problem"] == "unacknowledged"


@pytest.mark.parametrize("kind, status", [("gap", 409), ("conflict", 409), ("limit", 409)])
def test_a_stuck_partition_holds_up_no_other_and_is_tried_ever_more_slowly(kind, status):
    s = sender(*[place(q) for q in (5, 6)], place(1, partition=1))
    s.done(s.next(0.0), problem(kind, status=status, expected=3), 0.0)
    task = s.next(0.0)
    assert names(task) == [("s", 1, 1)]
    s.done(task, ok(("s", 1, 1)), 0.0)
    waits, now = [], 0.0
    for _ in range(12):
        wake = s.next(now)
        waits.append(wake - now)
        now = wake
        task = s.next(now)
        assert names(task) == [("s", 0, 5)]  # only its first page
        s.done(task, problem(kind, status=status, expected=3), now)
    assert waits[:3] == [1.0, 2.0, 4.0] and waits[-1] == 300.0
    [stuck] = s.status()["stuck"]
    assert (stuck["problem"], stuck["partition"], stuck["expected"]) == (kind, 0, 3)


def test_a_hole_that_is_filled_lets_the_partition_go_on_at_once():
    s = sender(place(1), place(3))
    s.done(s.next(0.0), problem("gap", expected=2, acked=[("s", 0, 1)]), 0.0)
    assert isinstance(s.next(0.0), float)
    s.offer(place(2))
    task = s.next(0.0)
    assert names(task) == [("s", 0, 2)]
    s.done(task, ok(("s", 0, 2)), 0.0)
    assert names(s.next(0.0)) == [("s", 0, 3)]


def test_a_page_that_has_moved_is_tried_as_soon_as_its_new_place_is_known():
    s, now = sender(place(1)), 0.0
    for _ in range(5):
        s.done(s.next(now), Unreadable(place(1), "no such file"), now)
        now = s.next(now)
    assert now > 0.5 and s.next(now - 0.5) == now
    assert "no such file" in s.status()["last_error"]
    s.offer(place(1, file="spool"))
    task = s.next(now - 0.5)
    assert task.places[0].file == "spool"


def test_too_large_a_request_is_made_smaller():
    s = sender(*[place(q) for q in range(1, 9)], request_bytes=800)
    sizes = []
    while True:
        task = s.next(0.0)
        sizes.append(len(task.places))
        if len(task.places) <= 2:
            break
        s.done(task, Reply(413, {}), 0.0)
    assert sizes == [8, 4, 2]
    s.done(task, ok(("s", 0, 2)), 0.0)
    assert len(s.next(0.0).places) == 2


@pytest.mark.parametrize("answer", [NoReply("timed out"), Reply(408, {})])
def test_over_a_slow_link_requests_become_small_enough_to_arrive(answer):
    """The centre limits a body to 120 s: at 2 kB/s a request of 4 MiB would be repeated for
    ever."""
    pages, now = 300, 0.0
    s = sender(*[place(q, length=20_000) for q in range(1, pages + 1)], request_bytes=4 << 20)
    acked, sizes = 0, []
    while acked < pages:
        task = s.next(now)
        if isinstance(task, float):
            now = task
            continue
        sizes.append(sum(p.length for p in task.places))
        assert len(sizes) < 1000, "it gets nowhere"
        now += min(120, sizes[-1] / 2000)
        if sizes[-1] > 2000 * 120:
            s.done(task, answer, now)
        else:
            acked = task.places[-1].seq
            s.done(task, ok(("s", 0, acked)), now)
    assert [size > 240_000 for size in sizes] == [True] * 5 + [False] * (len(sizes) - 5)
    while not isinstance(task := s.next(now), SendPages):  # a link that has become fast
        s.offer(place(pages + 1, length=20_000))
    for q in range(pages + 2, 5 * pages):
        s.offer(place(q, length=20_000))
    for _ in range(6):
        s.done(task, ok(("s", 0, task.places[-1].seq)), now)
        task = s.next(now)
    assert sum(p.length for p in task.places) > (4 << 20) - 20_000


def test_an_idle_sender_wants_no_timer():
    s = sender(schemas=SCHEMAS)
    for _ in SCHEMAS:
        s.done(s.next(0.0), Reply(204, {}), 0.0)
    assert s.next(0.0) is None
    s.offer(place(1))
    s.done(s.next(0.0), ok(("s", 0, 1)), 0.0)
    assert s.next(0.0) is None


class Centre:
    """A simulated collector with all its rules."""

    def __init__(self, rng):
        self.rng, self.high, self.landed, self.known = rng, {}, [], set()

    def answer(self, task):
        luck = self.rng.random()
        if luck < 0.15:
            return NoReply("lost on the way there")
        if isinstance(task, RegisterSchema):
            self.known.add((task.stream, task.version))
            return Reply(204, {})
        if luck < 0.2:
            self.known.clear()
        if luck < 0.25:
            return problem("damaged", status=422)
        reply = self.land(task)
        return NoReply("lost on the way back") if 0.25 < luck < 0.4 else reply

    def land(self, task):
        acked = {}
        for p in task.places:
            high = self.high.get((p.stream, p.partition), 0)
            if (p.stream, 1) not in self.known:
                acks = [(*k, v) for k, v in acked.items()]
                return problem("unknown_schema", p.stream, p.partition, acked=acks, version=1)
            assert p.seq <= high + 1, "a gap"
            if p.seq == high + 1:
                self.landed.append((p.stream, p.partition, p.seq))
                self.high[p.stream, p.partition] = p.seq
            acked[p.stream, p.partition] = self.high[p.stream, p.partition]
        return ok(*[(*k, v) for k, v in acked.items()])


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(50, 2000))
def test_whatever_goes_wrong_all_pages_arrive_in_order_once(seed, lanes, request_bytes):
    rng = random.Random(seed)
    s = Sender(SCHEMAS, rng.random, request_bytes)
    centre, now, busy, acks = Centre(rng), 0.0, [], {}
    todo = [(st_, p, q) for q in range(1, 9) for st_ in "st" for p in range(3)]
    for _ in range(20_000):
        if todo and rng.random() < 0.3:
            stream, partition, seq = todo.pop(0)
            s.offer(place(seq, stream, partition, rng.randint(1, 300)))
        task = s.next(now) if len(busy) < lanes else None
        if isinstance(task, float):
            now = task
        elif task is not None:
            busy.append(task)
        if busy and (len(busy) == lanes or rng.random() < 0.5):
            task = busy.pop(rng.randrange(len(busy)))
            s.done(task, centre.answer(task), now)
            for stream, partition, seq in s.take_acks():
                assert seq > acks.get((stream, partition), 0)
                acks[stream, partition] = seq
        if not todo and not busy and not s.queue.pages:
            break
    assert sorted(centre.landed) == sorted(
        (x, p, q) for x in "st" for p in range(3) for q in range(1, 9)
    )
    assert acks == {(x, p): 8 for x in "st" for p in range(3)}
    assert s.status()["stuck"] == [] and s.queue.bytes == 0


def test_a_report_goes_behind_the_pages_of_the_next_request_and_alone_where_there_are_none():
    s = sender(place(1), place(2))
    s.report(b"r1")
    task = s.next(0.0)
    assert names(task) == [("s", 0, 1), ("s", 0, 2)] and task.report == b"r1"
    s.done(task, ok(["s", 0, 2], [REPORTS, 0, 5]), 0.0)
    assert s.next(0.0) is None and s.status()["reports"] == 1 and not s.status()["stuck"]
    s.report(b"r2")
    assert s.next(0.0) == SendPages([], b"r2")


def test_of_reports_that_wait_only_the_newest_is_kept_and_first_means_before_any_page():
    s = sender(place(1))
    s.reports_first = True
    s.report(b"r1")
    s.report(b"r2")
    assert s.next(0.0) == SendPages((), b"r2")
    task = s.next(0.0)
    assert names(task) == [("s", 0, 1)] and not task.report


def test_a_report_that_did_not_arrive_is_sent_again_with_pages_and_else_waits_for_the_next_one():
    s = sender()
    s.report(b"r1")
    s.done(s.next(0.0), NoReply("gone"), 0.0)
    assert s.next(100.0) is None, "no timer runs for it"
    s.offer(place(1))
    s.report(b"r2")
    task = s.next(100.0)
    assert task.report == b"r2"
    s.done(task, NoReply("gone"), 100.0)
    again = s.next(200.0)
    assert names(again) == names(task) and again.report == b"r2"
    s.report(b"r3")
    s.done(again, NoReply("gone"), 200.0)
    assert s.next(300.0).report == b"r3", "the newest wins over one that comes back"


def test_trouble_with_a_report_holds_no_page_and_trouble_with_a_page_keeps_the_report():
    s = sender(place(1))
    s.report(b"r1")
    s.done(s.next(0.0), problem("damaged", REPORTS, status=422, acked=[["s", 0, 1]]), 0.0)
    assert s.next(0.0) is None and s.status()["stuck"] == [] and s.queue.pages == 0
    s.offer(place(2))
    s.report(b"r2")
    s.done(s.next(0.0), problem("gap", expected=1), 0.0)
    assert s.next(0.0) == SendPages([], b"r2")


def test_a_centre_that_knows_no_reports_gets_none():
    s = sender(schemas=[(REPORTS, 1, "[]")])
    for _ in range(TRIES_MAX):
        s.report(b"r1")
        s.done(s.next(0.0), Reply(422, {"detail": "cannot name a schema"}), 0.0)
    s.report(b"r2")
    assert s.next(0.0) is None


def test_outside_of_a_window_pages_wait_for_it_and_reports_go():
    s = sender(place(1))
    s.closed_until_s = 50.0
    assert s.next(0.0) == 50.0 and not s.more(0.0)
    s.report(b"r1")
    assert s.next(0.0) == SendPages([], b"r1")
    assert names(s.next(50.0)) == [("s", 0, 1)]


def test_of_desired_states_only_a_newer_one_is_taken_and_its_document_is_told_once():
    s = sender(*(place(i) for i in range(1, 6)), request_bytes=100)
    for version, taken in ((3, True), (2, False), (3, False), ("9", False), (4, True)):
        task = s.next(0.0)
        desired = {"version": version, "document": {"jobs": []}}
        seq = task.places[0].seq
        s.done(task, Reply(200, {"acked": [["s", 0, seq]], "desired": desired}), 0.0)
        assert (s.document is not None) == taken
        if taken:
            assert s.document == desired and s.status()["desired"] == {"version": version}
        s.document = None


@given(
    st.lists(st.tuples(st.integers(0, 1439), st.integers(0, 1439)), max_size=4),
    st.integers(0, 3 * 86_400),
)
def test_windows_are_those_of_a_clock_that_is_looked_at_minute_by_minute(windows, wall_s):
    def is_open(at_s):
        at = at_s // 60 % 1440
        return not windows or any(a <= at < b if a < b else at >= a or at < b for a, b in windows)

    wait_s = opens_in_s([[60 * a, 60 * b] for a, b in windows], wall_s)
    assert (wait_s is None) == is_open(wall_s)
    if wait_s is not None:
        assert 0 < wait_s <= RECHECK_S
        assert is_open(wall_s + wait_s) or wait_s == RECHECK_S
        assert not any(is_open(t) for t in range(wall_s, int(wall_s + wait_s), 60))
