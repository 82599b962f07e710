"""Deaths within races are counted over restarts, whatever else is raced in between."""

from __future__ import annotations

from edged.beat.crash_counter import CALM_US, CHUNK_CRASHES_MAX, CrashCounter
from edged.beat.fingerprint import fingerprint
from edged.beat.stream_alignment import ONE_CHUNK
from tests.beat.support import T0, Live, copy_job, join_job

LIMIT = 5


def dies(path, *races, now=0):
    """A process that survives all races but the last."""
    attempts = CrashCounter(path, LIMIT, now)
    verdicts = []
    for race in races:
        verdicts.append(attempts.begin(race if attempts.careful else 0))
        if race is not races[-1]:
            attempts.end(now)
    careful = attempts.careful
    attempts.close()
    return careful, verdicts


def test_after_some_crashes_a_process_is_careful_and_then_sets_the_fatal_chunk_aside(tmp_path):
    path = tmp_path / "attempts"
    for _ in range(LIMIT - CHUNK_CRASHES_MAX):
        assert dies(path, 1, 2, 666) == (False, [True] * 3)
    assert dies(path, 3, 666) == (True, [True, True])
    assert dies(path, 4, 5, 666) == (True, [True] * 3)
    careful, verdicts = dies(path, 6, 666)
    assert verdicts == [True, False]
    assert not careful, "it is over"


def test_two_fatal_chunks_that_alternate_are_both_found(tmp_path):
    path = tmp_path / "attempts"
    deaths = 0
    aside = []
    for n in range(20):
        order = [666, 777] if n % 2 else [777, 666]
        attempts = CrashCounter(path, LIMIT, 0)
        for guilty in order:
            if guilty in aside:
                continue
            if attempts.begin(guilty if attempts.careful else 0):
                deaths += 1
                break
            aside.append(guilty)
            attempts.end(0)
        attempts.close()
    assert sorted(aside) == [666, 777]
    assert deaths <= 3 * LIMIT


def test_a_process_that_lives_for_a_while_forgets_and_one_that_stops_well_counts_nothing(tmp_path):
    path = tmp_path / "attempts"
    for _ in range(LIMIT):
        dies(path, 1)
    attempts = CrashCounter(path, LIMIT, 0)
    assert attempts.careful
    attempts.begin(9), attempts.end(CALM_US - 1)
    assert attempts.careful
    attempts.begin(9), attempts.end(CALM_US)
    assert not attempts.careful
    attempts.close()
    for _ in range(10):
        attempts = CrashCounter(path, LIMIT, 0)
        attempts.begin(), attempts.end(0)
        attempts.close()
    assert not CrashCounter(path, LIMIT, 0).careful


def test_a_careful_beat_takes_the_oldest_chunk_alone_and_the_rows_come_out_the_same():
    with Live(join_job()) as live:
        for i in range(5):
            live.send("r", [(1, T0 + 10 * i, i)])
            live.send("s", [(1, T0 + 10 * i + 1, i)])
        taken = []
        for _ in range(10):
            facts = live.beat(rows_max=ONE_CHUNK)
            taken.append([n for n, f in facts.streams.items() if f.take_chunks])
        assert taken == [["r"], ["s"]] * 5
        live.drain()
        assert len(live.rows("pairs")) == 25
        assert live.late("r") == live.late("s") == 0


def test_a_chunk_has_one_fingerprint_wherever_it_stands_and_another_has_another():
    prints = set()
    columns = {"key": "int64", "time": "timestamp", "name": "string?", "value": "float64"}
    for before in ([], [(1, T0, "other", 0.5)], [(2, T0, None, 1.0)] * 9):
        with Live(copy_job(columns=columns)) as live:
            for row in before:
                live.send("r", [row])
            live.beat()
            live.send("r", [(1, T0 + 1, "ä", 1.5), (2, T0 + 2, "", 2.5)])
            facts = live.job.decide(live.clock.now, live.clock.wall, ONE_CHUNK, True)
            prints.add(fingerprint(live.job, facts))
    assert len(prints) == 1
    with Live(copy_job(columns=columns)) as live:
        live.send("r", [(1, T0 + 1, "", 1.5), (2, T0 + 2, "ä", 2.5)])
        facts = live.job.decide(live.clock.now, live.clock.wall, ONE_CHUNK, True)
        prints.add(fingerprint(live.job, facts))
    assert len(prints) == 2
