"""Producers that number their messages: acknowledged when committed, dropped when seen before."""

from __future__ import annotations

import socket

import pytest

from edged.client import frames
from tests.sources.tcp_rig import (
    ARROW,
    Rig,
    dial,
    error_of,
    messages,
    metadata,
    next_frame,
    refused,
    rows,
)


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


class TestTheLastOfATablesFirstRows:
    def test_is_named_by_the_greeting(self) -> None:
        with Rig() as rig, dial(rig) as peer:
            wish = metadata(producer="p").metadata | {"edged.last": "7"}
            peer.sendall(messages([], metadata().with_metadata(wish)))
            assert next_frame(peer)[0] == frames.HELLO
            producers = rig.stagings["s"].producers
            assert producers.lasts == {producers.number("p"): "7"}

    def test_goes_with_an_id_and_is_a_number(self) -> None:
        wrong = ({}, "7"), ({"edged.producer": "p"}, "0"), ({"edged.producer": "p"}, "x")
        with Rig() as rig:
            for given, last in wrong:
                schema = metadata().with_metadata(
                    {"edged.stream": "s", "edged.last": last, **given}
                )
                assert "edged.last" in refused(rig, messages([], schema))
