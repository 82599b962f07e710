"""Peers that misbehave, say nothing or send too much: each loses its own connection, no other."""

from __future__ import annotations

import contextlib

import pyarrow as pa

from edged.platform.clock import boot_us
from edged.sources._tcp_receive import ARENA_BYTES
from edged.sources._tcp_socket import TcpSettings
from tests.sources.tcp_rig import (
    ARROW,
    Rig,
    dial,
    error_of,
    messages,
    metadata,
    refused,
    rows,
)


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
            assert seen_us > boot_us() + rig.late_us - 60_000_000
