"""The TCP source with real sockets and pyarrow's own writer."""

from __future__ import annotations

import contextlib
import socket
import time

import numpy as np
import pyarrow as pa
import pytest

from edged.client import frames
from edged.schema import BOOL, INT64, STRING, TIMESTAMP, Field, Schema
from edged.sources._tcp_receive import ARENA_BYTES
from edged.sources._tcp_socket import TcpSettings
from edged.workers import Workers
from tests.sources.tcp_rig import ARROW, NOW_US, Rig, messages, metadata, rows


def dial(rig: Rig) -> socket.socket:
    peer = socket.create_connection(("127.0.0.1", rig.port), 10)
    peer.settimeout(120)
    return peer


def next_frame(peer: socket.socket) -> tuple[int, bytes]:
    def exactly(n: int) -> bytes:
        data = b""
        while len(data) < n:
            got = peer.recv(n - len(data))
            assert got, "closed"
            data += got
        return data

    kind, length = np.frombuffer(exactly(8), "<u4").tolist()
    return kind, exactly(length)


def error_of(peer: socket.socket) -> str:
    kind, payload = next_frame(peer)
    while kind != frames.ERROR:
        kind, payload = next_frame(peer)
    assert peer.recv(1) == b""
    return payload.decode()


def refused(rig: Rig, data: bytes) -> str:
    """Send this and return the error; a healthy connection beside it goes on."""
    with dial(rig) as healthy, dial(rig) as peer:
        healthy.sendall(messages([rows(0, 10)]))
        with contextlib.suppress(OSError):
            peer.sendall(data)
        text = error_of(peer)
        before = rig.count()
        healthy.sendall(messages([rows(10, 10)])[len(messages([])) :])
        rig.until(lambda: rig.count() >= max(20, before), "the healthy connection")
    return text


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


class TestSequenceNumbers:
    def test_are_acknowledged_when_committed_and_not_before(self) -> None:
        with Rig() as rig, dial(rig) as peer:
            rig.committing = False
            peer.sendall(messages([rows(0, 5), rows(5, 5)], producer="p", first_seq=1))
            assert next_frame(peer) == (frames.HELLO, bytes(8))
            rig.until(lambda: rig.count() == 10)
            peer.settimeout(0.1)
            with pytest.raises(TimeoutError):
                peer.recv(1)
            peer.settimeout(120)
            rig.committing = True
            assert next_frame(peer) == (frames.ACK, (2).to_bytes(8, "little"))

    def test_seen_before_are_dropped_and_acknowledged_again(self) -> None:
        with Rig() as rig:
            with dial(rig) as peer:
                peer.sendall(messages([rows(0, 5), rows(5, 5)], producer="p", first_seq=1))
                next_frame(peer)
                assert next_frame(peer)[0] == frames.ACK
            with dial(rig) as peer:
                peer.sendall(messages([rows(0, 5)], producer="p", first_seq=1))
                assert next_frame(peer) == (frames.HELLO, (2).to_bytes(8, "little"))
                assert next_frame(peer) == (frames.ACK, (2).to_bytes(8, "little"))
                rest = messages([rows(10, 5)], producer="p", first_seq=3)
                peer.sendall(rest[len(messages([], producer="p")) :])
                assert next_frame(peer) == (frames.ACK, (3).to_bytes(8, "little"))
            assert rig.all_keys() == list(range(15))
            assert rig.counter("duplicates") == 1

    def test_with_a_gap_are_refused(self) -> None:
        with Rig() as rig, dial(rig) as peer:
            peer.sendall(messages([rows(0, 5), rows(5, 5)], producer="p", first_seq=1))
            later = messages([rows(20, 5)], producer="p", first_seq=5)
            peer.sendall(later[len(messages([], producer="p")) :])
            assert "batch 5 follows batch 2" in error_of(peer)
            rig.until(lambda: rig.count() >= 10, "the beat that sent the error")
            assert rig.all_keys() == list(range(10))

    def test_of_a_later_connection_win(self) -> None:
        with Rig() as rig, dial(rig) as old:
            old.sendall(messages([rows(0, 5)], producer="p", first_seq=1))
            rig.until(lambda: rig.count() == 5)
            with dial(rig) as new:
                new.sendall(messages([rows(5, 5)], producer="p", first_seq=2))
                assert "took over" in error_of(old)
                rig.until(lambda: rig.count() == 10)
                while next_frame(new) != (frames.ACK, (2).to_bytes(8, "little")):
                    pass

    def test_end_with_an_end_ack(self) -> None:
        with Rig() as rig, dial(rig) as peer:
            peer.sendall(messages([rows(0, 5)], producer="p", first_seq=1, end=True))
            seen = [next_frame(peer)]
            while seen[-1][0] != frames.END_ACK:
                seen.append(next_frame(peer))
            assert (frames.ACK, (1).to_bytes(8, "little")) in seen
            assert rig.staging.producers.ended.tolist() == [0, 1]

    def test_survive_a_restart(self) -> None:
        with Rig() as rig, dial(rig) as peer:
            peer.sendall(messages([rows(0, 5), rows(5, 5)], producer="p", first_seq=1))
            rig.until(lambda: rig.count() == 10)
        state = rig.staging.save()
        again = Rig()
        again.taking = False
        again.stop()
        again.stagings["s"].load(state)
        assert again.stagings["s"].producers.seq.tolist() == [0, 2]


def settling(seq: int | None = None) -> bytes:
    """A greeting of producer p that settles, and with `seq` a batch of 5 rows behind it."""
    wish = metadata(producer="p").metadata | {"edged.settle": "1"}
    return messages([] if seq is None else [rows(seq * 5, 5)], ARROW.with_metadata(wish),
                    first_seq=seq)  # fmt: skip


def acknowledged(peer: socket.socket, seq: int) -> None:
    """Wait for the ACK of this number; earlier ones may come first."""
    while next_frame(peer) != (frames.ACK, seq.to_bytes(8, "little")):
        pass


def silent(peer: socket.socket) -> bool:
    """Whether nothing comes for a while."""
    peer.settimeout(0.1)
    try:
        return peer.recv(1) == b"never"
    except TimeoutError:
        return True
    finally:
        peer.settimeout(120)


class TestAGreetingThatSettles:
    def test_gets_its_hello_once_all_that_was_staged_is_committed(self) -> None:
        with Rig() as rig, dial(rig) as old, dial(rig) as new:
            rig.committing = False
            old.sendall(messages([rows(0, 5), rows(5, 5)], producer="p", first_seq=1))
            rig.until(lambda: rig.count() == 10)
            new.sendall(settling())
            assert "took over" in error_of(old)
            assert silent(new)
            rig.committing = True
            assert next_frame(new) == (frames.HELLO, (2).to_bytes(8, "little"))
            new.sendall(settling(3)[len(settling()) :])
            acknowledged(new, 3)

    def test_gets_it_at_once_where_nothing_is_staged(self) -> None:
        with Rig() as rig:
            rig.committing = False
            with dial(rig) as peer:
                peer.sendall(settling())
                assert next_frame(peer) == (frames.HELLO, bytes(8))

    def test_gets_no_ack_before_and_not_the_number_of_half_of_it(self) -> None:
        """Two beats are committed one by one: only the second commit makes HELLO final."""
        with Rig() as rig, dial(rig) as old, dial(rig) as new:
            rig.committing = False
            held: list[object] = []
            for seq in (1, 2):
                rest = messages([rows(seq * 5, 5)], producer="p", first_seq=seq)
                old.sendall(rest if seq == 1 else rest[len(messages([], producer="p")) :])
                rig.until(lambda n=seq: rig.count() == 5 * n)
            new.sendall(settling())
            assert "took over" in error_of(old)
            held, rig._tickets = [t for t in rig._tickets if t], []
            assert len(held) == 2
            rig.source.committed(held[0])
            assert silent(new)
            rig.source.committed(held[1])
            assert next_frame(new) == (frames.HELLO, (2).to_bytes(8, "little"))

    def test_is_final_whatever_the_connection_before_has_left_in_the_socket(self) -> None:
        """Unread batches and half of one: none of them is taken any more."""
        with Rig(bytes_max=1 << 20) as rig, dial(rig) as old, dial(rig) as new:
            rig.taking = False
            many = [rows(0, 2000)] * 500
            old.settimeout(0.5)
            with pytest.raises(TimeoutError):  # staging and the socket's buffers are full
                old.sendall(messages(many, producer="p", first_seq=1))
            new.sendall(settling())
            kind, payload = next_frame(new)
            final = int.from_bytes(payload, "little")
            assert kind == frames.HELLO and 0 < final < len(many)
            rig.taking = True
            new.sendall(settling(final + 1)[len(settling()) :])
            acknowledged(new, final + 1)
            rig.until(lambda: rig.count() == 2000 * final + 5)

    def test_may_leave_and_come_again_while_it_waits(self) -> None:
        with Rig() as rig, dial(rig) as old:
            rig.committing = False
            old.sendall(messages([rows(0, 5)], producer="p", first_seq=1))
            rig.until(lambda: rig.count() == 5)
            for _ in range(3):
                with dial(rig) as gone:
                    gone.sendall(settling())
                    assert silent(gone)
            with dial(rig) as new:
                new.sendall(settling())
                assert silent(new)
                rig.committing = True
                assert next_frame(new) == (frames.HELLO, (1).to_bytes(8, "little"))

    def test_must_say_who_it_is(self) -> None:
        for given in ({"edged.settle": "1"}, {"edged.settle": "2", "edged.producer": "p"}):
            schema = ARROW.with_metadata({"edged.stream": "s", **given})
            with Rig() as rig:
                assert "edged.settle" in refused(rig, messages([], schema))


class TestPeersThatMisbehave:
    def test_by_sending_garbage(self) -> None:
        with Rig() as rig:
            assert "not an Arrow IPC stream" in refused(rig, b"GET / HTTP/1.1\r\n\r\n")
            greeting = messages([])
            assert "not an Arrow IPC stream" in refused(rig, greeting + b"\x01" * 64)
            assert "at most" in refused(
                rig, greeting + b"\xff\xff\xff\xff\xff\xff\xff\x7f" + b"x" * 9
            )
            assert "damaged" in refused(
                rig, greeting + b"\xff\xff\xff\xff\x40\0\0\0" + b"\x7f" * 64
            )

    def test_by_naming_no_stream_or_an_unknown_one(self) -> None:
        with Rig() as rig:
            assert "edged.stream is missing" in refused(rig, messages([], ARROW))
            assert "no stream 'x' here; there are: s" in refused(rig, messages([], metadata("x")))

    def test_by_sending_other_columns(self) -> None:
        with Rig() as rig:
            for change, text in (
                (ARROW.remove(1), "lacks key"),
                (ARROW.append(pa.field("more", pa.int8())), "does not know more"),
                (ARROW.set(1, pa.field("key", pa.float64())), "column key: double arrives, int32"),
                (ARROW.set(0, pa.field("time", pa.int64())), "column time: int64 arrives"),
                (ARROW.append(pa.field("key", pa.int32())), "has twice key"),
            ):
                schema = change.with_metadata({"edged.stream": "s"})
                assert text in refused(rig, messages([], schema))

    def test_by_sending_nulls_where_none_may_be(self) -> None:
        nullable = pa.schema([f.with_nullable(True) for f in ARROW], {"edged.stream": "s"})
        columns = rows(100, 4).columns
        columns[1] = pa.array([1, None, 3, 4], pa.int32())
        batch = pa.record_batch(columns, schema=nullable)
        with Rig() as rig:
            good = rows(50, 4).columns
            ok = pa.record_batch(good, schema=nullable)
            assert "key holds nulls" in refused(rig, messages([ok, batch, ok], nullable))
            assert sorted(k for k in rig.all_keys() if k >= 50) == [50, 51, 52, 53]

    def test_by_sending_text_that_is_not_utf8(self) -> None:
        data = bytearray(messages([rows(100, 8), rows(108, 8)]))
        at = data.rindex("nä".encode())
        data[at + 1] = 0xFF
        with Rig() as rig:
            assert "name holds text that is not UTF-8" in refused(rig, bytes(data))
            assert sorted(k for k in rig.all_keys() if k >= 100) == list(range(100, 108))

    def test_by_sending_a_batch_that_memory_has_no_room_for(self) -> None:
        with Rig(bytes_max=1 << 20) as rig:
            assert "at most" in refused(rig, messages([rows(0, 100_000)]))
            assert "send smaller batches" in refused(rig, messages([rows(0, 20_000)]))

    def test_by_going_on_after_the_end(self) -> None:
        with Rig() as rig:
            text = refused(rig, messages([], end=True) + messages([rows(0, 2)]))
            assert "after" in text or "follow" in text

    def test_by_a_token_that_is_missing_or_wrong(self, tmp_path) -> None:
        (tmp_path / "token").write_text("secret\n")
        settings = TcpSettings("127.0.0.1", 0, token_file=str(tmp_path / "token"))
        with Rig(settings) as rig:
            for token in ("", "secre", "secret "):
                with dial(rig) as peer:
                    peer.sendall(messages([rows(0, 5)], metadata(token=token)))
                    assert "edged.token" in error_of(peer)
            with dial(rig) as peer:
                peer.sendall(messages([rows(0, 5)], metadata(token="secret")))
                rig.until(lambda: rig.count() == 5)
            assert rig.counter("refused_token") == 3


class TestTheSlowWay:
    @pytest.mark.parametrize("codec", ["lz4", "zstd"])
    def test_takes_compressed_batches(self, codec: str) -> None:
        options = pa.ipc.IpcWriteOptions(compression=codec)
        batches = [rows(0, 1000), rows(1000, 1000)]
        with Rig() as rig, dial(rig) as peer:
            peer.sendall(messages(batches, producer="p", first_seq=1, options=options))
            rig.until(lambda: rig.count() == 2000)
            assert rig.table().combine_chunks() == pa.Table.from_batches(batches).combine_chunks()
            while next_frame(peer) != (frames.ACK, (2).to_bytes(8, "little")):
                pass
            assert rig.counter("slow_messages") == 2

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


class TestPeersThatSayNothing:
    def test_may_stay_until_connections_run_short(self) -> None:
        settings = TcpSettings("127.0.0.1", 0, connections_max=4)
        with Rig(settings) as rig, contextlib.ExitStack() as stack:
            peers = [stack.enter_context(dial(rig)) for _ in range(2)]
            rig.until(lambda: rig.counter("connections") == 2)
            rig.late_us = 11_000_000
            peers[0].sendall(messages([rows(0, 5)]))
            rig.until(lambda: rig.count() == 5)
            assert rig.counter("refused_timeout") == 0
            peers += [stack.enter_context(dial(rig)) for _ in range(2)]
            rig.until(lambda: rig.counter("refused_timeout") >= 1)


class TestMemoryForUnfinishedMessages:
    def test_is_bounded_by_sending_those_that_hold_most_away(self) -> None:
        body = messages([rows(0, 20_000)])
        with Rig(bytes_max=8 << 20) as rig, contextlib.ExitStack() as stack:
            peers = [stack.enter_context(dial(rig)) for _ in range(40)]
            for peer in peers:
                peer.sendall(body[:-10])
                assert rig.source._memory.bytes <= rig.source._memory.bytes_max + ARENA_BYTES
            rig.until(lambda: rig.counter("sent_away") > 5)
            rig.until(lambda: not rig.source._memory.spent())
            rig.until(lambda: rig.counter("connections") + rig.counter("sent_away") == 40)
            with dial(rig) as healthy:
                healthy.sendall(messages([rows(0, 7)]))
                rig.until(lambda: rig.count() == 7)


class TestAFlood:
    def test_of_batches_without_rows_does_not_hold_up_the_beat(self, monkeypatch) -> None:
        monkeypatch.setattr("edged.sources._tcp_source.INGEST_BYTES_MAX", 100_000)
        flood = messages([rows(0, 0)] * 3000)
        with Rig() as rig, dial(rig) as peer, dial(rig) as other:
            peer.sendall(flood)
            other.sendall(messages([rows(0, 10)]))
            rig.until(lambda: rig.source.counters()["messages"] == 3001)
            assert rig.count() == 10
            assert rig.beats >= len(flood) // 2_000_000

    def test_makes_nobody_silent_who_had_no_turn_before_the_ingest_ended(self, monkeypatch) -> None:
        """Found by reading: `idle_after` ran on for those that an ingest did not get to."""
        with Rig() as rig, dial(rig) as peer:
            peer.sendall(messages([rows(0, 1)], producer="p", first_seq=1))
            rig.until(lambda: rig.count() == 1)
            monkeypatch.setattr("edged.sources._tcp_source.INGEST_BYTES_MAX", 0)
            peer.sendall(bytes(8))
            rig.until(rig.source.unread)
            rig.late_us = 3_600_000_000
            beat = rig.beats
            rig.until(lambda: rig.beats > beat + 1)
            assert rig.count() == 1
            seen_us = int(rig.staging.producers.seen_us[rig.staging.producers.number("p")])
            assert seen_us > time.monotonic_ns() // 1000 + rig.late_us - 60_000_000
