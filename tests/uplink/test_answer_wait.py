"""An answer that never comes is given up soon where answers were quick."""

import contextlib
import socket
import threading

import pytest

from edged.uplink import client as module
from edged.uplink.answer_wait import WAIT_S_MIN, AnswerWait
from edged.uplink.client import CollectorClient
from edged.uplink.tasks import NoReply, Reply

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def test_the_wait_follows_the_slowest_recent_answer_within_its_bounds():
    wait = AnswerWait(30)
    assert wait.seconds == WAIT_S_MIN
    wait.answered(0.01)
    assert wait.seconds == WAIT_S_MIN
    wait.answered(1)
    assert wait.seconds == 10
    wait.answered(20)
    assert wait.seconds == 30
    for _ in range(40):
        wait.answered(0.01)
    assert wait.seconds == WAIT_S_MIN


def test_waits_in_vain_double_until_an_answer_comes():
    wait = AnswerWait(30)
    waits = []
    for _ in range(6):
        waits.append(wait.seconds)
        wait.in_vain()
    assert waits == [5, 10, 20, 30, 30, 30]
    wait.answered(0.01)
    assert wait.seconds == WAIT_S_MIN


def test_a_connection_that_breaks_says_nothing_about_how_long_answers_take():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    client = CollectorClient(f"http://127.0.0.1:{port}", {}, None, timeout_s=3600)
    assert isinstance(client.post_pages(b"page"), NoReply)
    assert client._wait.seconds == WAIT_S_MIN


DATE = b"Date: Wed, 25 Nov 2026 10:00:00 GMT\r\n"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        (b"Retry-After: 7\r\n", 7.0),
        (b"Retry-After:  120 \r\n", 120.0),
        (DATE + b"Retry-After: Wed, 25 Nov 2026 10:01:30 GMT\r\n", 90.0),
        (b"Retry-After: Wed, 25 Nov 2026 10:01:30 GMT\r\n", None),
        (DATE + b"Retry-After: soon\r\n", None),
        (b"Retry-After: -3\r\n", None),
        (b"Retry-After: " + b"9" * 400 + b"\r\n", 9999999999.0),
        (DATE + b"Retry-After: Wed, 99 Nov 2026 10:01:30 GMT\r\n", None),
        (b"", None),
    ],
)
def test_the_pause_that_a_centre_asks_for_is_read(headers, seconds):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            peer, _ = listener.accept()
            with peer:
                peer.recv(1 << 16)
                line = b"HTTP/1.1 503 Later\r\n"
                peer.sendall(line + headers + b"Content-Length: 2\r\n\r\n{}")
                peer.recv(1 << 16)

        server = threading.Thread(target=answer)
        server.start()
        client = CollectorClient(
            f"http://127.0.0.1:{listener.getsockname()[1]}", {}, None, timeout_s=60
        )
        assert client.post_pages(b"page") == Reply(503, {}, 4, seconds)
        client._connection.close()
        server.join()


def test_a_lost_answer_after_a_quick_one_does_not_hold_the_sender_for_its_whole_timeout():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer_once():
            peer, _ = listener.accept()
            with peer:
                peer.recv(1 << 16)
                peer.sendall(ANSWER)
                with contextlib.suppress(OSError):
                    while peer.recv(1 << 16):  # and no further answer
                        pass

        server = threading.Thread(target=answer_once)
        server.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        client = CollectorClient(url, {}, None, timeout_s=3600)
        assert client.post_pages(b"page") == Reply(200, {}, 4)
        assert isinstance(client.post_pages(b"page"), NoReply)
        server.join()


def test_an_answer_that_closes_the_connection_is_an_answer():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            for _ in range(2):
                peer, _ = listener.accept()
                with peer:
                    peer.recv(1 << 16)
                    peer.sendall(ANSWER.replace(b"OK\r\n", b"OK\r\nConnection: close\r\n"))
                    while peer.recv(1 << 16):
                        pass

        server = threading.Thread(target=answer)
        server.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        client = CollectorClient(url, {}, None, timeout_s=3600)
        for _ in range(2):
            assert client.post_pages(b"page") == Reply(200, {}, 4)
        server.join()


@pytest.mark.parametrize(("asleep_s", "connections"), [(0, 1), (59, 1), (61, 2)])
def test_after_a_long_suspend_a_request_takes_a_new_connection(monkeypatch, asleep_s, connections):
    """The centre or a router may have forgotten the old one."""
    suspended, accepted = [0], []
    monkeypatch.setattr(module, "suspended_us", lambda: suspended[0])
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            with contextlib.suppress(OSError):
                while True:
                    peer, _ = listener.accept()
                    accepted.append(peer)
                    threading.Thread(target=requests, args=(peer,), daemon=True).start()

        def requests(peer):
            with contextlib.suppress(OSError):
                while peer.recv(65536):
                    peer.sendall(ANSWER)

        threading.Thread(target=answer, daemon=True).start()
        port = listener.getsockname()[1]
        client = CollectorClient(f"http://127.0.0.1:{port}", {}, None, timeout_s=30)
        assert isinstance(client.post_pages(), Reply)
        suspended[0] += asleep_s * 1_000_000
        assert isinstance(client.post_pages(), Reply)
        assert len(accepted) == connections
        client._connection.close()
        for peer in accepted:
            peer.close()
        listener.shutdown(socket.SHUT_RDWR)
