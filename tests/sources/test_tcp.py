"""The TCP source with real sockets and pyarrow's own writer."""

from __future__ import annotations

import contextlib
import socket
import time

import numpy as np
import pyarrow as pa
import pytest

from edged.client import frames
from edged.data.schema import BOOL, INT64, STRING, TIMESTAMP, Field, Schema
from edged.data.workers import Workers
from edged.sources._tcp_socket import TcpSettings
from tests.sources.tcp_rig import (
    ARROW,
    NOW_US,
    Rig,
    dial,
    messages,
    metadata,
    next_frame,
    refused,
    rows,
)


class TestAPlainWriter:
    def test_gets_its_rows_in(self) -> None:
        batches = [rows(0, 100), rows(100, 0), rows(100, 1), rows(101, 3000)]
        with Rig() as rig, dial(rig) as peer:
            peer.sendall(messages(batches, end=True))
            rig.until(lambda: rig.count() == 3101)
            assert rig.table().combine_chunks() == pa.Table.from_batches(batches).combine_chunks()
            rig.until(lambda: bool(rig.staging.producers.ended[0]))

    def test_hears_nothing_back(self) -> None:
        with Rig() as rig, dial(rig) as peer:
            peer.sendall(messages([rows(0, 5)], end=True))
            rig.until(lambda: rig.count() == 5)
            peer.settimeout(0.1)
            with pytest.raises(TimeoutError):
                peer.recv(1)

    def test_may_send_byte_by_byte(self) -> None:
        data = messages([rows(0, 20), rows(20, 20)])
        with Rig() as rig, dial(rig) as peer:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for i in range(len(data)):
                peer.send(data[i : i + 1])
                if i % 7 == 0:
                    time.sleep(0.0005)
            rig.until(lambda: rig.count() == 40)
            assert rig.all_keys() == list(range(40))

    def test_may_order_its_columns_as_it_likes(self) -> None:
        order = ["value", "name", "time", "key"]
        batch = rows(0, 1000).select(order)
        schema = batch.schema.with_metadata({"edged.stream": "s"})
        with Rig() as rig, dial(rig) as peer:
            peer.sendall(messages([batch], schema))
            rig.until(lambda: rig.count() == 1000)
            assert rig.table() == pa.Table.from_batches([rows(0, 1000)])
            assert rig.counter("slow_messages") == 0

    def test_may_send_messages_larger_than_any_buffer(self) -> None:
        batches = [rows(0, 200_000), rows(200_000, 10), rows(200_010, 150_000)]
        with Rig(bytes_max=64 << 20) as rig, dial(rig) as peer:
            peer.sendall(messages(batches))
            rig.until(lambda: rig.count() == 350_010)
            assert rig.all_keys() == list(range(350_010))

    def test_may_leave_in_the_middle_of_a_batch(self) -> None:
        with Rig() as rig:
            with dial(rig) as peer:
                peer.sendall(messages([rows(0, 10), rows(10, 10)])[:-100])
            rig.until(lambda: rig.counter("half_messages") == 1 and rig.count() == 10)
            assert rig.all_keys() == list(range(10))
            rig.until(lambda: rig.counter("connections") == 0)


class TestAThousandConnections:
    def test_are_served_side_by_side(self) -> None:
        batch = [rows(i * 50, 50) for i in range(1000)]
        data = [messages([b, b], producer=f"p{i}", first_seq=1) for i, b in enumerate(batch)]
        with Rig() as rig, contextlib.ExitStack() as stack:
            peers = [stack.enter_context(dial(rig)) for _ in range(1000)]
            for part in range(2):
                for peer, bytes_ in zip(peers, data, strict=True):
                    half = len(bytes_) // 2 + 33
                    peer.sendall(bytes_[:half] if part == 0 else bytes_[half:])
            rig.until(lambda: rig.count() == 100_000)
            assert sorted(rig.all_keys()) == sorted(2 * list(range(50_000)))
            for peer in peers:
                seen = [next_frame(peer)]
                while seen[-1] != (frames.ACK, (2).to_bytes(8, "little")):
                    seen.append(next_frame(peer))
                assert seen[0] == (frames.HELLO, bytes(8))
            assert rig.counter("connections") == 1000

    def test_beyond_the_limit_are_sent_away_to_come_again(self) -> None:
        with Rig(TcpSettings("127.0.0.1", 0, connections_max=2)) as rig:
            with dial(rig) as one, dial(rig) as two:
                one.sendall(messages([]))
                two.sendall(messages([]))
                rig.until(lambda: rig.counter("connections") == 2)
                with dial(rig) as three:
                    assert next_frame(three) == (frames.AGAIN, b"too many connections")
            rig.until(lambda: rig.counter("connections") == 0)
            with dial(rig) as four:
                four.sendall(messages([rows(0, 5)]))
                rig.until(lambda: rig.count() == 5)


class TestCompressedBatches:
    @pytest.mark.parametrize("codec", ["lz4", "zstd"])
    def test_are_taken_and_lz4_by_the_kernels(self, codec: str) -> None:
        options = pa.ipc.IpcWriteOptions(compression=codec)
        batches = [rows(0, 1000), rows(1000, 1000)]
        with Rig() as rig, dial(rig) as peer:
            peer.sendall(messages(batches, producer="p", first_seq=1, options=options))
            rig.until(lambda: rig.count() == 2000)
            assert rig.table().combine_chunks() == pa.Table.from_batches(batches).combine_chunks()
            while next_frame(peer) != (frames.ACK, (2).to_bytes(8, "little")):
                pass
            assert rig.counter("slow_messages") == (2 if codec == "zstd" else 0)


class TestTheSlowWay:
    def test_takes_other_types_that_lose_nothing(self) -> None:
        kinds = {
            "time": [
                pa.timestamp("ms"),
                pa.timestamp("ns", "UTC"),
                pa.timestamp("us", "Asia/Tokyo"),
            ],
            "key": [pa.int64(), pa.uint8(), pa.dictionary(pa.int8(), pa.int32())],
            "name": [pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.string_view()],
            "value": [pa.float32()],
        }
        schema = Schema.of([*Rig.__init__.__defaults__[1]])
        plain = rows(0, 40).to_pydict()
        plain["time"] = [NOW_US // 1000 * 1000 + 1000 * k for k in range(40)]
        for column, types in kinds.items():
            for kind in types:
                arrays = []
                for f in schema.to_arrow():
                    array = pa.array(plain[f.name], f.type)
                    target = kind if f.name == column else f.type
                    if pa.types.is_dictionary(target):
                        array = array.dictionary_encode().cast(target)
                    arrays.append(array.cast(target))
                batch = pa.record_batch(arrays, names=schema.names)
                with Rig() as rig, dial(rig) as peer:
                    wire = batch.schema.with_metadata({"edged.stream": "s"})
                    peer.sendall(messages([batch.slice(0, 15), batch.slice(15)], wire))
                    rig.until(lambda rig=rig: rig.count() == 40, f"{column} as {kind}")
                    assert rig.table().column("key").to_pylist() == plain["key"]
                    assert rig.table().column("name").to_pylist() == plain["name"]
                    assert rig.table().column("value").to_pylist() == plain["value"]
                    assert rig.table().column("time").cast(pa.int64()).to_pylist() == plain["time"]

    def test_refuses_what_would_lose_something(self) -> None:
        schema = ARROW.set(1, pa.field("key", pa.int64())).with_metadata({"edged.stream": "s"})
        columns = rows(100, 3).columns
        columns[1] = pa.array([1, 2**40, 3], pa.int64())
        with Rig() as rig:
            text = refused(rig, messages([pa.record_batch(columns, schema=schema)], schema))
            assert "1099511627776" in text

    def test_refuses_a_batch_that_unpacks_to_too_much(self) -> None:
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        columns = [
            pa.array(np.full(200_000, NOW_US), pa.timestamp("us", tz="UTC")),
            pa.array(np.zeros(200_000), pa.int32()),
            pa.nulls(200_000, pa.string()),
            pa.nulls(200_000, pa.float64()),
        ]
        bomb = pa.record_batch(columns, schema=ARROW)
        with Rig(bytes_max=1 << 20) as rig:
            assert "unpacks to" in refused(rig, messages([bomb], options=options))

    def test_takes_dictionaries_that_grow(self) -> None:
        schema = ARROW.set(2, pa.field("name", pa.dictionary(pa.int32(), pa.string())))
        schema = schema.with_metadata({"edged.stream": "s"})
        options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
        batches = []
        for i, words in enumerate((["a"], ["a", "b"], ["a", "b", "c", "d"])):
            columns = rows(10 * i, 4).columns
            columns[2] = pa.DictionaryArray.from_arrays(
                pa.array([0, None, len(words) - 1, 0]), words
            )
            batches.append(pa.record_batch(columns, schema=schema))
        with Rig() as rig, dial(rig) as peer:
            peer.sendall(messages(batches, schema, options=options))
            rig.until(lambda: rig.count() == 12)
            names = rig.table().column("name").to_pylist()
            assert names == ["a", None, "a", "a", "a", None, "b", "a", "a", None, "d", "a"]


class TestBackpressure:
    def test_blocks_the_sender_and_loses_nothing(self) -> None:
        with Rig(bytes_max=2 << 20) as rig, dial(rig) as peer:
            rig.taking = False
            data = b"".join(
                [messages([])]
                + [messages([rows(i * 1000, 1000)])[len(messages([])) :] for i in range(400)]
            )
            peer.settimeout(0.5)
            sent = 0
            with contextlib.suppress(TimeoutError):
                while sent < len(data):
                    sent += peer.send(data[sent : sent + 65536])
            assert sent < len(data), "the sender was never stopped"
            assert rig.source.more()
            assert rig.peak_bytes < 1.1 * (1 << 20)
            beats = rig.beats
            time.sleep(0.2)
            assert rig.beats - beats < 40, "a full source must not spin"
            rig.taking = True
            peer.settimeout(20)
            peer.sendall(data[sent:])
            rig.until(lambda: rig.count() == 400_000)
            assert rig.all_keys() == list(range(400_000))
            assert rig.peak_bytes < 1.1 * (1 << 20)

    def test_of_one_stream_does_not_hold_another(self) -> None:
        with Rig(bytes_max=1 << 20, streams=("s", "r")) as rig, dial(rig) as peer:
            rig.taking = False
            peer.settimeout(0.3)
            more = messages([rows(0, 1000)])[len(messages([])) :]
            with contextlib.suppress(TimeoutError):
                peer.sendall(messages([]))
                while True:
                    peer.sendall(more)
            assert rig.source.more()
            with dial(rig) as other:
                other.sendall(messages([rows(0, 10)], metadata("r")))
                rig.until(lambda: rig.stagings["r"].rows == 10)


class TestMoreThanOneWorker:
    def test_stages_the_same(self) -> None:
        workers = Workers(3)
        batches = [rows(i * 40_000, 40_000) for i in range(5)]
        try:
            with Rig(bytes_max=64 << 20, workers=workers) as rig, dial(rig) as peer:
                peer.sendall(messages(batches))
                rig.until(lambda: rig.count() == 200_000)
                table = rig.table().combine_chunks()
                assert table == pa.Table.from_batches(batches).combine_chunks()
        finally:
            workers.close()


class TestTimesTooFarAhead:
    def test_lose_their_rows_and_no_others(self) -> None:
        schema = Schema.of([Field("time", TIMESTAMP), Field("key", INT64), Field("s", STRING),
                            Field("b", BOOL, True)])  # fmt: skip
        far = 4_290_000_000_000_000
        times = [NOW_US, far, NOW_US + 5, far + 1, NOW_US + 3]
        batch = pa.record_batch(
            [
                pa.array(times, pa.timestamp("us", tz="UTC")),
                pa.array([1, 2, 3, 4, 5], pa.int64()),
                pa.array(["a", "bb", "", "dddd", "ee"]),
                pa.array([True, None, None, False, True]),
            ],
            schema=schema.to_arrow(),
        )
        wire = batch.schema.with_metadata({"edged.stream": "s", "edged.producer": "p"})
        with Rig(schema=schema) as rig, dial(rig) as peer:
            peer.sendall(messages([batch, batch.slice(1, 1), batch], wire, first_seq=1))
            rig.until(lambda: rig.count() == 6)
            while next_frame(peer) != (frames.ACK, (3).to_bytes(8, "little")):
                pass
            got = rig.table().to_pydict()
            assert got["key"] == [1, 3, 5, 1, 3, 5]
            assert got["s"] == ["a", "", "ee"] * 2
            assert got["b"] == [True, None, True] * 2
            assert rig.staging.refused_ahead == 5
            assert rig.staging.producers.latest_us.tolist()[1] == NOW_US + 5

    def test_are_no_sign_of_life(self) -> None:
        """Regression: a producer a year ahead held the watermark of its stream for good."""
        far = [pa.array([4_290_000_000_000_000], pa.timestamp("us", tz="UTC"))]
        batch = pa.record_batch([*far, *rows(0, 1).columns[1:]], schema=ARROW)
        with Rig() as rig, dial(rig) as ahead, dial(rig) as right:
            ahead.sendall(messages([batch], producer="ahead", first_seq=1))
            rig.until(lambda: rig.staging.refused_ahead == 1)
            seen_us = rig.staging.producers.seen_us[1]
            both = messages([batch, batch], producer="ahead", first_seq=2)
            ahead.sendall(both[len(messages([], producer="ahead")) :])
            rig.until(lambda: rig.staging.refused_ahead == 3)
            assert rig.staging.producers.seen_us[1] == seen_us
            right.sendall(messages([rows(0, 1)], producer="right", first_seq=1))
            rig.until(lambda: rig.count() == 1)
            assert rig.staging.producers.seen_us[2] > seen_us
