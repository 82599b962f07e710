"""Producers' numbers: given out, given back, and the same again from records."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from edged.client import Producer
from edged.data.producers import Producers
from tests.beat.loop import Loop, batch
from tests.beat.support import ARROW, changed, copy_job

steps = st.lists(
    st.one_of(
        st.tuples(st.just("number"), st.integers(0, 12)),
        st.tuples(st.just("forget"), st.integers(0, 12)),
        st.tuples(st.just("send"), st.integers(0, 12)),
        st.tuples(st.just("record"), st.just(0)),
        st.tuples(st.just("snapshot"), st.just(0)),
    ),
    max_size=60,
)


def durable(producers: Producers) -> dict[str, tuple[int, int, int, int]]:
    """What is known of each name."""
    columns = (producers.seq, producers.latest_us, producers.ended)
    return {
        id: (n, *(int(c[n]) for c in columns)) for n, id in enumerate(producers.ids) if id
    }  # fmt: skip


class TestReplay:
    @given(steps)
    def test_of_records_gives_every_producer_its_number_and_values_again(self, steps) -> None:
        live, replayed = Producers(), Producers()
        for step, which in steps:
            id = f"p{which}"
            if step == "number":
                live.number(id)
            elif step == "forget" and live.known(id):
                live.forget(live.number(id))
            elif step == "send" and live.known(id):
                n = live.number(id)
                live.seq[n] += 1
                live.latest_us[n] = live.seq[n] * 10
                live.ended[n] = live.seq[n] % 2
            elif step == "record":
                replayed.apply(json.loads(json.dumps(live.changes())))
                live.mark_logged()
                assert durable(replayed) == durable(live)
            elif step == "snapshot":  # may be ahead of the last record
                replayed.restore(json.loads(json.dumps(live.to_json())))
        assert len(live) <= 1 + 13


class TestADeviceThatInventsAnIdAtEveryStart:
    DOCUMENT = changed(copy_job(), promises={"latency": "20ms"})
    DOCUMENT["streams"]["r"]["source"]["producers_max"] = 4

    def send_one(self, loop: Loop, id: str) -> None:
        with Producer(f"127.0.0.1:{loop.inputs.sources[0].port}", "r", ARROW, id) as producer:
            producer.send(batch([7]))
            producer.end()

    def test_does_not_grow_what_is_remembered(self, tmp_path) -> None:
        with Loop(self.DOCUMENT, tmp_path / "store") as loop:
            for i in range(25):
                self.send_one(loop, f"once {i}")
            stream = loop.job.streams["r"]
            loop.until(lambda: stream.rows == 25)
            assert stream.staging.producers.count() <= 4
            assert len(stream.staging.producers) <= 1 + 5
            seen = durable(stream.staging.producers)
        with Loop(self.DOCUMENT, tmp_path / "store") as again:
            assert durable(again.job.streams["r"].staging.producers) == seen
            assert again.job.streams["r"].rows == 25
            self.send_one(again, "once 0")
            again.until(lambda: again.job.streams["r"].rows == 26)

    def test_does_not_displace_one_that_is_connected(self, tmp_path) -> None:
        with Loop(self.DOCUMENT, tmp_path / "store") as loop, loop.producer(id="true") as true:
            true.connect()
            true.send(batch([1]))
            loop.until(lambda: true.acked == 1, producer=true)
            for i in range(12):
                self.send_one(loop, f"once {i}")
            assert loop.job.streams["r"].staging.producers.known("true")
            true.send(batch([2]))
            loop.until(lambda: true.acked == 2, producer=true)

    def test_starts_from_one_when_it_was_forgotten(self, tmp_path) -> None:
        with Loop(self.DOCUMENT, tmp_path / "store") as loop:
            for i in range(10):
                self.send_one(loop, f"once {i}")
            with loop.producer(id="once 0") as producer:
                assert producer.connect() == 0
            with loop.producer(id="once 9") as producer:
                assert producer.connect() == 1
