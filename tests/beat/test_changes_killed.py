"""The daemon is killed while jobs are created, changed, paused, drained and deleted: the pages must
hold the rows that a list of the sent rows predicts.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict

from edged.control.door import ask
from edged.errors import CommandError
from edged.job.plan import parse_job
from edged.pages.format import parse_header
from edged.pages.read import read_page
from edged.store import Store
from tests.beat.loop import batch
from tests.beat.support import Daemon, changed, copy_job, plain
from tests.beat.test_changes import QUICK, renamed
from tests.system.support import say, seed
from tests.whole import count

KILLS = count(3, 6)
SCHEMA = parse_job(copy_job()).streams["r"].schema


def pages_of(store):
    """Values of all rows in the pages that wait in the store, by stream; numbers are checked."""
    values, seqs = defaultdict(list), defaultdict(list)
    for ref in store.pending():
        with open(ref.file, "rb") as f:
            f.seek(ref.offset)
            page = f.read(ref.length)
        header = parse_header(page)
        seqs[header.stream, header.partition].append(header.seq)
        values[header.stream] += [row[2] for row in plain(read_page(page, SCHEMA))]
    for key, found in seqs.items():
        assert found == list(range(1, len(found) + 1)), key
    return values


class Second:
    """The job `second`, as a client sees it that repeats requests until they are answered."""

    def __init__(self, daemon, variants, dice):
        self.edged, self.variants, self.dice = daemon, variants, dice
        self.lives, self.producer = 0, None
        self.acked, self.sent, self.made = set(), set(), Counter()

    def ask(self, cmd, **more):
        """The answer, or the kind of the refusal; a request whose answer is lost is repeated."""
        deadline = time.monotonic() + 180
        while True:
            try:
                return ask(self.edged.door, cmd, **more)
            except CommandError as problem:
                if problem.kind != "unreachable":
                    return problem.kind
                assert time.monotonic() < deadline
                time.sleep(0.02)

    def state(self):
        found = self.ask("job", name="second")
        return found if isinstance(found, str) else found["state"]

    def change(self):
        """One change at random; when it is answered it holds, also after a kill."""
        cmd = self.dice.choice(["put", "pause", "resume", "drain", "delete"])
        if cmd == "put" or self.lives == 0 or self.state() == "missing":
            document = self.dice.choice(self.variants)
            answer = self.ask("job.put", document=document)
            assert self.ask("job", name="second")["document"] == answer["job"]["document"]
            self.begin()
        elif cmd == "delete":
            self.ask("job.delete", name="second", drain=True)
            while self.state() != "missing":
                time.sleep(0.01)
            self.producer.close()
            self.producer = None
        else:
            self.ask(f"job.{cmd}", name="second")
            wanted = {
                "pause": ("paused",),
                "resume": ("running",),
                "drain": ("draining", "drained"),
            }
            assert self.state() in wanted[cmd]
        self.made[cmd] += 1

    def begin(self):
        """A producer for this life: a job that went has forgotten all of them."""
        if self.producer is None:
            self.lives += 1
            self.producer = self.edged.producer("q", f"q{self.lives}", timeout_s=60)
            self.batches = []

    def send(self):
        """Some rows, where they are taken now; those that were acknowledged count."""
        if self.producer is None or self.state() != "running":
            return
        base = (self.lives << 32) + (len(self.batches) << 8)
        self.batches.append(list(range(base, base + self.dice.randint(1, 9))))
        self.sent.update(self.batches[-1])
        self.producer.send(batch(self.batches[-1]))
        self.producer.flush()
        self.acked.update(self.batches[-1])


def test_kills_around_changes_lose_and_repeat_nothing_that_was_acked(tmp_path):
    dice = random.Random(seed())
    base = changed(copy_job(late="process"), promises=QUICK)
    daemon = Daemon(tmp_path, base, "--snapshot-bytes", "65536")
    variants = [renamed("second", "q", "others", lateness=n, late="process") for n in (0, 1000)]
    second = Second(daemon, [{**daemon.here(v), "promises": QUICK} for v in variants], dice)
    changes, kills = threading.Semaphore(0), []

    def kill():
        while len(kills) < KILLS:
            for _ in range(2):  # on a machine that is slow too, changes lie between two kills
                assert changes.acquire(timeout=180)
            time.sleep(dice.uniform(0.02, 0.8))
            daemon.kill()
            kills.append(0)
            daemon.restart()
            daemon.ready(300)

    with daemon, daemon.producer("r", timeout_s=60) as r:
        killer = threading.Thread(target=kill)
        killer.start()
        sent = 0
        while killer.is_alive() or second.lives < 2 or not second.acked:
            second.change()
            changes.release()
            second.send()
            r.send(batch([sent]))
            sent += 1
        killer.join()
        r.flush()
        assert len(kills) == KILLS
        if second.producer is not None:
            second.producer.close()
        second.ask("job.resume", name="second")
        second.ask("job.drain", name="second")
        daemon.until(
            lambda s: all(j["state"] in ("running", "drained") for j in s["jobs"].values())
        )
    say(f"{dict(second.made)}, {second.lives} lives, {len(second.sent)} and {sent} rows")
    with Store.open(tmp_path / "store") as store:
        found = pages_of(store)
    assert sorted(found["rows"]) == list(range(sent))
    rows = Counter(found["others"])
    assert max(rows.values(), default=1) == 1, "nothing twice"
    assert second.acked <= rows.keys() <= second.sent
