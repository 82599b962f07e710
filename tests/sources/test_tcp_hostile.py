"""Hostile peers: whatever a peer sends, its own connection ends, within bounds of time and size."""

from __future__ import annotations

import socket
import time

import pyarrow as pa
import pytest

from edged.data.schema_message import PAIRS_MAX, SCHEMA_COLUMNS_MAX, TEXT_BYTES_MAX
from edged.errors import ProtocolError
from edged.sources import _tcp_admission, _tcp_feed
from edged.sources._tcp_greeting import read_greeting
from edged.sources._tcp_schema import match
from tests.sources.tcp_rig import ARROW, SCHEMA, Rig, dial, error_of, messages, refused, rows

STREAM = {"edged.stream": "s"}


def greeting_with(field: pa.Field) -> bytes:
    return messages([], ARROW.append(field).with_metadata(STREAM))


class TestTextThatIsNotUtf8:
    """Each takes the source down where it leaves the parser as anything but a PeerError."""

    @pytest.mark.parametrize(
        "greeting",
        [
            greeting_with(pa.field("wrong", pa.int8())).replace(b"wrong", b"wr\xffng"),
            greeting_with(pa.field("x", pa.timestamp("us", "Mars/X"))).replace(b"Mars", b"M\xffrs"),
        ],
        ids=["name", "zone"],
    )
    def test_ends_its_connection_and_no_other(self, greeting) -> None:
        with Rig() as rig:
            assert "not UTF-8" in refused(rig, greeting)
            with dial(rig) as other:
                other.sendall(messages([rows(700, 3)]))
                rig.until(lambda: rig.all_keys()[-3:] == [700, 701, 702])


class TestASchemaIsBound:
    def test_in_columns_before_it_is_read(self) -> None:
        count = 18_000
        wide = pa.schema([pa.field(f"c{i}", pa.int8()) for i in range(count)], STREAM)
        with Rig() as rig:
            text = refused(rig, wide.serialize().to_pybytes())
        assert f"{count} columns; at most {SCHEMA_COLUMNS_MAX}" in text

    def test_in_time_that_grows_with_its_columns(self) -> None:
        """Quadratic, this takes minutes."""
        count = 50_000
        wide = pa.schema([pa.field(f"c{i}", pa.int8()) for i in range(count)])
        began = time.process_time()
        with pytest.raises(Exception, match=r"does not know c0, c1, .* and 49980 more"):
            match(wide, SCHEMA, "s")
        assert time.process_time() - began < 20

    def test_in_depth(self) -> None:
        deep = pa.int8()
        for _ in range(60):
            deep = pa.list_(deep)
        with Rig() as rig:
            assert "columns of its own" in refused(rig, greeting_with(pa.field("deep", deep)))

    def test_in_text_and_metadata(self) -> None:
        shared = {f"k{i}": "v" * 64 for i in range(PAIRS_MAX + 1)}
        long = pa.schema([pa.field("n" * (TEXT_BYTES_MAX // 2), pa.int8())] * 3)
        for schema, text in ((ARROW.with_metadata(shared), f"{PAIRS_MAX} entries"), (long, "")):
            with pytest.raises(ProtocolError, match=text or "larger than"):
                read_greeting(schema.serialize().to_pybytes(), None)

    def test_in_texts_that_are_shared(self) -> None:
        """All columns name one text of 100 KB, which a copy for each makes 10 MB."""
        name = "n" * 100_000
        columns = [pa.field(name if i == 0 else f"{i:04}", pa.int8()) for i in range(100)]
        data = bytearray(pa.schema(columns, STREAM).serialize().to_pybytes())
        at = data.find(name.encode()) - 4
        for i in range(1, 100):
            label = data.find(b"\x04\0\0\0" + f"{i:04}".encode() + b"\0")
            for place in range(max(0, label - 4096), label, 4):
                if int.from_bytes(data[place : place + 4], "little") == label - place:
                    data[place : place + 4] = (at - place).to_bytes(4, "little", signed=True)
                    break
        with pytest.raises(ProtocolError):
            read_greeting(bytes(data), None)


class TestAGreetingByteByByte:
    def test_costs_time_proportional_to_its_size(self, monkeypatch) -> None:
        """It is parsed when it is complete, not with every byte."""
        parsed = []
        read = _tcp_admission.read_greeting
        monkeypatch.setattr(
            _tcp_admission, "read_greeting", lambda *a: parsed.append(1) or read(*a)
        )
        big = ARROW.with_metadata({**STREAM, "more": "x" * 2000})
        with Rig() as rig, dial(rig) as peer:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in messages([rows(0, 2)], big):
                peer.sendall(bytes([byte]))
            rig.until(lambda: rig.count() == 2)
        assert len(parsed) <= 3


class TestADefect:
    """Of edged itself, provoked by a peer's bytes."""

    def test_in_a_greeting_ends_the_connection_and_is_reported(self, monkeypatch) -> None:
        def broken(*_: object) -> None:
            raise KeyError("broken")

        with Rig() as rig:
            found: list[tuple[str, str]] = []
            rig.source.on_defect = lambda peer, problem: found.append((peer, repr(problem)))
            monkeypatch.setattr(_tcp_admission, "read_greeting", broken)
            with dial(rig) as peer:
                peer.sendall(messages([]))
                assert "a defect of edged: KeyError" in error_of(peer)
            monkeypatch.undo()
            assert [text for _, text in found] == ["KeyError('broken')"]
            assert rig.counter("refused_defect") == 1
            with dial(rig) as other:
                other.sendall(messages([rows(700, 1)]))
                rig.until(lambda: rig.all_keys()[-1:] == [700])

    def test_in_a_batch_spares_connections_of_the_same_round(self, monkeypatch) -> None:
        with Rig() as rig, dial(rig) as bad, dial(rig) as good:
            decoder = next(iter(rig.source._feeds.values())).decoder
            run, marked = decoder.run, b"\x39\x05\0\0"  # the key 1337

            def flaky(regions, wall_us):
                import ctypes

                for region in regions:
                    if marked in ctypes.string_at(int(region[0]), int(region[1])):
                        raise IndexError("broken")
                return run(regions, wall_us)

            monkeypatch.setattr(decoder, "run", flaky)
            good.sendall(messages([rows(0, 5)]))
            bad.sendall(messages([rows(1337, 2)]))
            assert "a defect of edged: IndexError" in error_of(bad)
            good.sendall(messages([rows(5, 5)])[len(messages([])) :])
            rig.until(lambda: sorted(rig.all_keys())[:10] == list(range(10)))
            assert rig.counter("refused_defect") == 1

    def test_in_a_slow_batch_ends_the_connection(self, monkeypatch) -> None:
        def broken(*_: object) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(_tcp_feed.SlowReader, "take", broken)
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with Rig() as rig:
            text = refused(rig, messages([rows(0, 500)], options=options))
            assert "a defect of edged: ZeroDivisionError" in text
