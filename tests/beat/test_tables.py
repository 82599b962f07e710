"""Tables in beats: streams wait for them, replays give the same pages, and files come and go."""

import random
import shutil
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from edged.beat.recover import recover
from edged.beat.table_files import TableFiles
from edged.data.workers import Workers
from edged.errors import JobError, StoreCorrupt
from edged.job.plan import parse_job
from edged.job.state_carryover import compare
from edged.sinks.base import SinkContext
from edged.store import Store
from tests.beat.support import T0, HandClock, Live, changed
from tests.store.simdisk import PowerCut, SimDisk
from tests.whole import count

DEVICES = {"device": "string", "site": "string?", "change": "int32"}
JOB = {
    "name": "plant",
    "promises": {"memory": "1MiB"},
    "streams": {
        "r": {
            "source": {"type": "tcp", "listen": "127.0.0.1:0"},
            "columns": {"device": "string", "time": "timestamp", "raw": "float64"},
            "time": "time",
            "late": "process",
        }
    },
    "tables": {
        "devices": {
            "source": {"type": "tcp", "listen": "127.0.0.1:0"},
            "columns": DEVICES,
            "changes": "weight:change",
            "missing": "count",
        },
        "sites": {
            "source": {"type": "tcp", "listen": "127.0.0.1:0"},
            "columns": {"site": "string", "town": "string"},
            "key": ["site"],
            "changes": "upsert",
        },
    },
    "operators": {
        "located": {"type": "enrich", "input": "r", "table": "devices", "on": ["device"],
                    "how": "left", "wait": False},
        "towns": {"type": "table_join", "left": "devices", "right": "sites", "on": ["site"],
                  "how": "left"},
    },
    "sinks": {
        "rows": {"type": "pages", "input": "located", "partitions": 2, "partition_by": ["device"],
                 "page": "4KiB"},
        "changes": {"type": "pages", "input": "towns", "partitions": 1, "page": "4KiB"},
    },
}  # fmt: skip
WAITING = changed(JOB, operators={"located": {**JOB["operators"]["located"], "wait": True}})
WAITING = changed(WAITING, sinks={"rows": JOB["sinks"]["rows"]})


class Tables(Live):
    """A live job whose tables' files are in its store."""

    def __init__(self, document, path, disk=None, **options):
        super().__init__(document, None, **options)
        self.path, self.disk, self.adopted = path, disk, -1
        self._open()
        self.job = type(self.job)(self.plan, self.context)
        self.snapshot()

    def _open(self):
        self.store = Store.open(self.path, self.disk, segment_bytes=1 << 18)
        tables = str(self.path / "tables")
        self.files = TableFiles(tables, self.disk)
        self.context = SinkContext(
            "device", 7, "/nonexistent", self.workers, tables=tables, disk=self.disk
        )

    def before_commit(self, facts):
        self.files.follow([self.job])
        self.files.submit(self.beats, facts, self.adopted)()

    def snapshot(self, late=False):
        """A snapshot, with its files durable before it, and others deleted after it; `late`: with
        the next beat."""
        self.files.follow([self.job])
        facts, arrays = self.save()
        self.files.note(self.beats, {**arrays})
        self.files.sync()
        self.store.snapshot(self.beats, facts, arrays)
        self.adopted = self.beats
        if not late:
            self.files.collect(self.adopted)

    def reopen(self):
        """A process that was killed starts again."""
        with suppress(PowerCut):
            self.store.close()
        self._open()
        found = recover(self.store, [self.plan], self.context, HandClock())
        assert found.fresh, "a start with tables takes a snapshot, so that orphans go"
        self.job, self.pages, self.beats = found.jobs[0], [], found.beat
        self.snapshot()


def some_beat(live, n, seed, size=120):
    """A beat over random rows; more than the tables' memory, so that they have files."""
    rng = random.Random(1000 * seed + n)
    names = [f"d{i}" for i in range(400)]
    live.send(
        "devices",
        [
            (rng.choice(names), rng.choice([None, "n", "s"]), rng.choice([1, 1, 2, -1]))
            for _ in range(size)
        ],
    )
    live.send("sites", [(rng.choice("nse"), rng.choice(["oslo", "bern"])) for _ in range(3)])
    live.send("r", [(rng.choice(names), T0 + n, rng.random()) for _ in range(size // 4)])
    live.beat(flush=n % 3 == 0)


def test_a_stream_waits_until_its_tables_first_rows_are_there():
    with Live(WAITING) as live:
        live.send("devices", [("a", "n", 1)])
        live.send("r", [("a", T0, 1.0)])
        facts = live.beat()
        assert facts.streams["r"].take_rows == 0
        assert facts.streams["devices"].take_rows == 1
        assert live.job.streams["r"].aligned
        assert not live.job.cut
        assert live.job.table_waits.waits_for("r", live.job.streams) == ["devices"]
        live.end("devices")
        live.beat()
        assert live.job.cut, "the rows that waited are due"
        assert live.beat(flush=True).streams["r"].take_rows == 1
        assert [row[0] for row in live.rows("rows")] == ["a"]
        assert not live.job.streams["r"].aligned
        live.send("devices", [("a", "n", -1)], "later")  # the table opens again
        live.send("r", [("a", T0 + 1, 1.0)])
        assert live.beat().streams["r"].take_rows == 1


def test_the_end_of_a_population_is_in_the_record_and_said_once(tmp_path):
    with Tables(WAITING, tmp_path / "store") as live:
        live.send("devices", [("a", "n", 1)])
        live.send("r", [("a", T0, 1.0)])
        live.beat()
        live.end("devices")
        live.beat()
        assert live.job.cut
        live.reopen()
        assert live.job.streams["devices"].populated, "it is in the record"
        assert live.beat().streams["r"].take_rows == 1
        live.send("devices", [("b", "n", 1)], "later")
        live.beat()
        assert live.job.streams["devices"].populated, "it stays, though the table opens again"


def test_a_producer_may_name_the_batch_that_a_tables_first_rows_end_with(tmp_path):
    with Tables(WAITING, tmp_path / "store") as live:
        live.send("r", [("a", T0, 1.0)])
        live.send("devices", [("a", "n", 1)])
        producers = live.job.streams["devices"].staging.producers
        producers.end_first_rows(producers.number("p"), 2)
        assert not live.beat().streams["devices"].populated
        live.reopen()
        live.send("devices", [("b", "n", 1)])
        live.send("devices", [("c", "n", 1)])
        live.beat(race=False)
        live.reopen()
        facts = live.beat()
        assert facts.streams["devices"].populated
        assert facts.streams["devices"].take_rows == 2
        live.reopen()
        facts = live.beat()
        assert facts.streams["r"].take_rows == 1
        assert not facts.streams["devices"].populated, "it is said once"


def test_a_population_ends_with_the_rows_that_were_there_when_its_last_batch_came():
    with Live(WAITING) as live:
        live.send("devices", [("a", "n", 1)] * 10)
        producers = live.job.streams["devices"].staging.producers
        producers.end_first_rows(producers.number("p"), 2)
        live.send("devices", [("b", "n", 1)] * 10)
        found = []
        for _ in range(3):
            facts = live.beat(rows_max=10).streams["devices"]
            found.append((facts.take_rows, facts.populated))
            live.send("devices", [("c", "n", 1)] * 10)
        assert found == [(10, False), (10, True), (10, False)]


def test_a_stream_that_drains_waits_for_no_table():
    with Live(WAITING) as live:
        live.send("r", [("a", T0, 1.0)])
        live.beat()
        assert live.job.staged() == 1
        live.job.draining = True
        assert live.beat().streams["r"].take_rows == 1


def test_a_stream_does_not_wait_where_the_document_says_so():
    with Live(JOB) as live:
        live.send("r", [("a", T0, 1.0)])
        assert live.beat().streams["r"].take_rows == 1


def killed(path, beat, firsts, snapshot_every):
    """The pages of beats that are killed before each of `firsts`, and of ones that are not."""
    with Tables(JOB, path / "whole") as whole:
        for n in range(1, firsts[-1]):
            beat(whole, n)
        expected = [(page.key, bytes(page.data)) for page in whole.all_pages()]
    got = []
    with Tables(JOB, path / "cut", workers=2) as live:
        for first, last in pairwise(firsts):
            for n in range(first, last):
                beat(live, n)
                if n % snapshot_every == 0:
                    live.snapshot()
            got += [(page.key, bytes(page.data)) for page in live.all_pages()]
            live.reopen()
    return got, expected


def cut(beat, stop, snapshot_every, seed):
    """Beats before `stop` with power cuts at any write lose nothing that was committed."""
    rng = random.Random(seed)
    with Tables(JOB, Path("/store"), SimDisk()) as whole:
        for n in range(1, stop):
            beat(whole, n)
        expected = {page.key: bytes(page.data) for page in whole.all_pages()}
        written = whole.disk.operations
    got, cuts = {}, 0
    with Tables(JOB, Path("/cut"), SimDisk()) as live:
        n = 1
        while n < stop:
            if cuts < 5:
                live.disk.cut_at = live.disk.operations + rng.randrange(1, written // 3)
            try:
                while n < stop:
                    beat(live, n)
                    got |= {page.key: bytes(page.data) for page in live.all_pages()}
                    n += 1
                    if n % snapshot_every == 0:
                        live.snapshot()
            except PowerCut:
                cuts += 1
                live.disk = live.disk.after_power_cut(rng)
                live.reopen()
                n = live.beats + 1
        stored = {ref.key for ref in live.store.pending()}
    assert cuts
    assert stored == expected.keys(), "nothing was acknowledged, so everything is still there"
    assert {key: expected[key] for key in got} == got


@pytest.mark.parametrize("seed", range(2))
def test_a_run_that_is_killed_gives_the_pages_of_one_that_was_not(tmp_path, seed):
    """Kills after several beats, with snapshots between; workers differ."""
    got, expected = killed(
        tmp_path, lambda live, n: some_beat(live, n, seed), (1, 7, 8, 20, 31), snapshot_every=5
    )
    assert list((tmp_path / "whole" / "tables").rglob("*.run")), "the state has files"
    assert got == expected


@pytest.mark.parametrize("seed", range(count(4, 60)))
def test_power_cuts_at_any_write_lose_nothing_that_was_committed(seed):
    cut(lambda live, n: some_beat(live, n, seed, 60), 19, 3, seed)


def test_files_that_no_snapshot_names_are_deleted(tmp_path):
    with Tables(JOB, tmp_path / "store") as live:
        for n in range(1, 26):
            some_beat(live, n, 0)
            if n % 3 == 0:
                live.snapshot()
        for _ in range(2):
            live.snapshot()
        tables = tmp_path / "store" / "tables"
        named = {str(p) for p in tables.rglob("*.run")}
        held = sum(o.disk_bytes() for o in live.job.operators.values())
        assert sum(Path(p).stat().st_size for p in named) == held > 0
        orphan = tables / "plant" / "located" / "rows" / "0000000000000999.run"
        orphan.write_bytes(b"x")
        gone = tables / "plant" / "gone" / "rows"
        gone.mkdir(parents=True)
        (gone / "0000000000000001.run").write_bytes(b"x")
        live.reopen()
        assert {str(p) for p in tables.rglob("*.run")} == named


def test_a_damaged_file_is_named_with_what_it_takes_along(tmp_path):
    with Tables(JOB, tmp_path / "store") as live:
        for n in range(1, 26):
            some_beat(live, n, 0)
        live.snapshot()
        live.store.close()
        file = next((tmp_path / "store" / "tables").rglob("*.run"))
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
        live._open()
        with pytest.raises(StoreCorrupt, match=file.name):
            recover(live.store, [live.plan], live.context, HandClock())


def test_a_state_file_of_an_earlier_job_of_the_name_is_not_overwritten(tmp_path):
    with Tables(JOB, tmp_path / "store") as live:
        for n in range(1, 26):
            some_beat(live, n, 0)
        live.snapshot()
        files = {p: p.read_bytes() for p in (tmp_path / "store" / "tables").rglob("*.run")}
        assert files
        live.job = type(live.job)(live.plan, live.context)
        for n in range(1, 26):
            some_beat(live, n, 1)
        assert {p: p.read_bytes() for p in files} == files


def test_a_new_operator_may_not_start_on_a_table_that_was_read():
    operators = {**JOB["operators"], "again": JOB["operators"]["located"]}
    old, new = parse_job(JOB), parse_job(changed(JOB, operators=operators))
    with pytest.raises(JobError, match=r"operators\.again: is new, and devices has been read"):
        compare(old, new).check()


def test_every_prefix_of_the_log_replays(tmp_path):
    with Tables(JOB, tmp_path / "store") as live:
        for n in range(1, 13):
            some_beat(live, n, 3)
            if n == 6:
                live.snapshot()
            shutil.copytree(tmp_path / "store", tmp_path / f"after-{n}")
    for n in range(1, 13):
        path, workers = tmp_path / f"after-{n}", Workers(1 + n % 2)
        with Store.open(path, segment_bytes=1 << 18) as store:
            tables = str(path / "tables")
            context = SinkContext("device", 7, "/nonexistent", workers, tables=tables)
            found = recover(store, [live.plan], context, HandClock())
        assert found.beat == n
        workers.close()
