"""Retention against a naive model: a page that a consumer still needs is never deleted."""

import contextlib
import fcntl
import json
import os
import random
from pathlib import Path

import pytest
from click.testing import CliRunner

from edged.central import consumers, seals, segments
from edged.central.cli_expire import command
from edged.central.consumers import Consumer
from edged.central.expire import OPEN, YOUNG, expire
from edged.errors import CentralError, ConfigError
from edged.platform.clock import SystemClock
from tests.central.support import landed_pages, make_page, read_landing
from tests.central.test_landing import SCHEMA, open_landing, send

DAY_US = 86_400_000_000


class Clock(SystemClock):
    """A settable wall clock."""

    at_us = DAY_US

    def wall_us(self):
        return self.at_us


def open_at(path, clock, *streams, **more):
    place = open_landing(path, clock=clock, **more)
    for stream in streams:
        place.register(stream, 1, SCHEMA)
    return place


def past(path, name, stream="power@1", without=()):
    """A consumer that has processed everything landed, except the segments `without`."""
    position = {n: r for n, r in segments.positions(path).items() if n not in without}
    consumers.advance(path, Consumer(name, stream, position))


def name(number):
    return f"seg-c0-{number:08d}"


@pytest.fixture
def three(tmp_path):
    """Sealed segments 1 to 3, landed at days 1 to 3, one page each, and an open one."""
    clock = Clock()
    place = open_at(tmp_path, clock, segment_bytes=1)
    for seq in (1, 2, 3):
        clock.at_us = seq * DAY_US
        send(place, make_page(seq))
    place._segment_bytes = 1 << 20
    send(place, make_page(4))
    place.close()
    return tmp_path


def test_what_is_old_and_read_goes_and_nothing_else(three):
    past(three, "a")
    found = expire(three, 3 * DAY_US)
    assert found.segments == [name(1), name(2)] and found.pages == 2
    assert found.kept == {YOUNG: 1, OPEN: 1}
    assert landed_pages(three) == [make_page(3), make_page(4)]


def test_a_dry_run_tells_the_same_and_deletes_nothing(three):
    past(three, "a")
    before = sorted((p, p.read_bytes()) for p in (three / "segments").iterdir())
    told = expire(three, 3 * DAY_US, dry_run=True)
    assert before == sorted((p, p.read_bytes()) for p in (three / "segments").iterdir())
    assert told == expire(three, 3 * DAY_US)


def test_what_one_of_several_consumers_has_not_read_stays(three):
    past(three, "a")
    past(three, "behind", without=[name(2)])
    found = expire(three, 9 * DAY_US)
    assert found.segments == [name(1), name(3)]
    assert found.kept == {"behind has not read it": 1, OPEN: 1}


def test_a_consumer_that_has_only_begun_keeps_everything(three):
    past(three, "a")
    consumers.register(three, Consumer("new", "power@1", {}), anew=False)
    assert expire(three, 9 * DAY_US).segments == []
    past(three, "new")
    consumers.register(three, Consumer("new", "power@1", {}), anew=False)  # a restart
    assert len(expire(three, 2 * DAY_US).segments) == 1
    consumers.register(three, Consumer("new", "power@1", {}), anew=True)  # a new checkpoint
    assert expire(three, 9 * DAY_US).segments == []


def test_pages_of_a_stream_without_a_consumer_stay_unless_nobody_reads_it(tmp_path):
    place = open_at(tmp_path, Clock(), "other", segment_bytes=1)
    send(place, make_page(1), make_page(1, stream="other"))
    place.close()
    past(tmp_path, "a")
    assert expire(tmp_path, 9 * DAY_US).kept == {"other@1 has no consumer": 1}
    with pytest.raises(ConfigError, match="a reads it"):
        expire(tmp_path, 9 * DAY_US, unread=["power"])
    assert expire(tmp_path, 9 * DAY_US, unread=["other"]).segments == [name(1)]


def test_the_collectors_group_may_enter_consumers(three):
    """Spark runs as another user, so the directory must be writable for the group despite the
    umask."""
    assert consumers.directory(three).stat().st_mode & 0o7777 == 0o2770


def test_a_consumers_file_that_is_none_ends_it_before_anything_is_deleted(three):
    past(three, "a")
    (three / "consumers" / "b.json").write_text('{"position": 7}')
    with pytest.raises(CentralError, match=r"b\.json: not a consumer"):
        expire(three, 9 * DAY_US)
    assert len(landed_pages(three)) == 4


def test_a_consumer_cannot_be_entered_while_segments_are_deleted(three, monkeypatch):
    """Otherwise a query could plan with a segment that is deleted before it reads."""
    past(three, "a")
    seen = []

    def retire(landing, segment):
        pid = os.fork()
        if pid == 0:
            fd = os.open(consumers.directory(landing), os.O_RDONLY)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os._exit(7)
            os._exit(0)
        seen.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        return 0

    monkeypatch.setattr(seals, "retire", retire)
    expire(three, 9 * DAY_US)
    assert seen == [7, 7, 7]


def test_summaries_of_what_went_are_folded_and_late_pages_are_known_again(tmp_path):
    """A year of segments leaves one summary; a lost record is rebuilt from it, and no name of a
    segment comes again."""
    clock = Clock()
    place = open_at(tmp_path, clock, segment_bytes=1)
    for seq in range(1, 40):
        send(place, make_page(seq, partition=seq % 3 and 1, device=f"d{seq % 2}"))
    place.close()
    assert len(landed_pages(tmp_path)) == 2, "gaps do not land"
    place = open_at(tmp_path, clock, segment_bytes=1)
    for seq in range(2, 30):
        send(place, make_page(seq), make_page(seq - 1, device="other", partition=seq % 5))
    place.close()
    landed = read_landing(tmp_path)
    past(tmp_path, "a")
    names = segments.list_segments(tmp_path)
    assert expire(tmp_path, 9 * DAY_US).segments == names
    assert [p.name for p in (tmp_path / "segments").iterdir()] == [f"{names[-1]}.sum"]
    for record in (tmp_path / "devices").iterdir():
        record.unlink()
    place = open_at(tmp_path, clock, segment_bytes=1)
    for _, page in landed:
        device = page[96:160].rstrip(b"\0").decode()
        assert send(place, page, device=device).duplicates == 1
    place.close()
    assert landed_pages(tmp_path) == []
    place = open_at(tmp_path, clock, segment_bytes=1)
    send(place, make_page(1, device="new"), device="new")
    place.close()
    assert segments.list_segments(tmp_path) == [name(len(names) + 1)]


class Died(BaseException):
    """Simulates kill -9."""


@pytest.mark.parametrize("seed", range(12))
def test_killed_anywhere_it_has_deleted_nothing_that_is_needed_and_goes_on(
    tmp_path, monkeypatch, seed
):
    """Two collectors, three streams, random positions, a crash at a random unlink or rename."""
    rng, clock = random.Random(seed), Clock()
    places = [open_at(tmp_path, clock, "s0", "s1", "s2", segment_bytes=900) for _ in range(2)]
    seqs = {}
    for _ in range(60):
        stream, device = f"s{rng.randrange(3)}", f"d{rng.randrange(3)}"
        seqs[stream, device] = seqs.get((stream, device), 0) + 1
        page = make_page(seqs[stream, device], stream=stream, device=device, rows=rng.randrange(20))
        send(rng.choice(places), page, device=device)
        clock.at_us += DAY_US
    for place in places:
        place.close()
    ends = segments.positions(tmp_path)
    readers = [(f"r{i}", f"s{rng.randrange(2)}@1") for i in range(3)]
    readers += [("r3", "s0@1"), ("r4", "s1@1")]
    for reader, stream in readers:
        position = {n: rng.choice([0, rows - 1, rows, rows]) for n, rows in ends.items()}
        consumers.advance(tmp_path, Consumer(reader, stream, position))
    before_us = rng.randrange(60) * DAY_US
    needed = {}
    for segment in ends:
        rows = segments.read_rows(tmp_path, segment)
        behind = any(
            c.position[segment] < len(rows)
            and segments.stream_hash(*c.stream.split("@")) in rows["stream_hash"].tolist()
            for c in consumers.read(tmp_path)
        )
        if behind or max(rows["landed_at_us"]) >= before_us or not _sealed(tmp_path, segment):
            needed[segment] = _files(tmp_path, segment)
    left = [rng.randrange(30)]

    def mortal(function):
        def called(*args, **more):
            left[0] -= 1
            if left[0] < 0:
                raise Died
            return function(*args, **more)

        return called

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", mortal(Path.unlink))
        patch.setattr(Path, "replace", mortal(Path.replace))
        with contextlib.suppress(Died):
            expire(tmp_path, before_us, unread=["s2"])
    for segment, files in needed.items():
        assert _files(tmp_path, segment) == files
    expire(tmp_path, before_us, unread=["s2"])
    assert set(segments.list_segments(tmp_path)) == set(needed)
    assert {n: _files(tmp_path, n) for n in needed} == needed
    assert not [p for p in (tmp_path / "segments").glob("*.pages") if p.stem not in needed]
    for record in (tmp_path / "devices").iterdir():
        record.unlink()
    place = open_at(tmp_path, clock)
    for (stream, device), last in seqs.items():
        assert send(place, make_page(last + 2, stream=stream, device=device), device=device).problem
        page = make_page(last + 1, stream=stream, device=device)
        assert send(place, page, device=device).acked == {(stream, 0): last + 1}
    place.close()


def _sealed(path, segment):
    return seals.path(path, segment).exists()


def _files(path, segment):
    return [f.read_bytes() for f in sorted((path / "segments").glob(f"{segment}.*"))]


def test_the_command_says_what_went_and_why_the_rest_stays(three):
    past(three, "a", without=[name(2)])
    asked = ["--landing", str(three), "--older-than", "90d"]
    said = CliRunner().invoke(command, asked)
    assert said.exit_code == 0, said.output
    assert said.output.splitlines() == [
        f"2 segments deleted: 2 pages, {2 * len(make_page(1)):,} bytes",
        "1 kept: a has not read it",
        "1 kept: not sealed yet",
    ]
    told = json.loads(CliRunner().invoke(command, [*asked, "--json", "--dry-run"]).output)
    assert told == {"segments": [], "pages": 0, "bytes": 0, "dry_run": True,
                    "files": 0, "file_bytes": 0,
                    "kept": {"a has not read it": 1, "not sealed yet": 1}}  # fmt: skip
    wrong = CliRunner().invoke(command, ["--landing", str(three), "--older-than", "90"])
    assert isinstance(wrong.exception, ConfigError)
