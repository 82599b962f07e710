"""The collector's HTTP interface: real processes, real sockets, and an independent reader."""

import hashlib
import json
import socket
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from edged.central.cli_collect import command as collect
from edged.central.collector import VERIFY_INLINE_BYTES
from edged.errors import CentralError
from tests.central.support import (
    DEVICE,
    EPOCH,
    SCHEMA,
    Collector,
    Device,
    by_partition,
    collecting,
    landed_pages,
    make_page,
    open_files,
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A collector shared by several tests, each with a device of its own."""
    landing = tmp_path_factory.mktemp("landing")
    with collecting(landing) as collector:
        with Device(collector) as device:
            assert device.register().status_code == 204
        yield collector, landing


@pytest.fixture
def mine(shared, request):
    """(a device of the test's own, a maker of its pages, a reader of its landed pages)."""
    collector, landing = shared
    name = "d" + hashlib.sha256(request.node.name.encode()).hexdigest()[:16]

    def page(seq, **more):
        return make_page(seq, **{"device": name, **more})

    def landed():
        return {k[1:]: v for k, v in by_partition(landing).items() if k[0] == name}

    with Device(collector, name) as device:
        yield device, page, landed


def test_an_ack_means_that_the_pages_have_landed(mine):
    device, page, landed = mine
    reply = device.send(page(1), page(2), page(1, partition=3))
    assert reply.status_code == 200
    assert reply.json() == {
        "device": device.headers["X-Edged-Device"],
        "acked": [["power", 0, 2], ["power", 3, 1]],
        "desired": None,
    }
    assert landed() == {
        ("power", 0): {1: page(1), 2: page(2)},
        ("power", 3): {1: page(1, partition=3)},
    }


def test_an_empty_request_is_answered(mine):
    device, _, _ = mine
    name = device.headers["X-Edged-Device"]
    assert device.send().json() == {"device": name, "acked": [], "desired": None}


def test_a_gap_names_what_is_expected_and_acks_what_came_before(mine):
    device, page, landed = mine
    reply = device.send(page(1), page(3))
    assert reply.status_code == 409
    body = reply.json()
    assert (body["problem"], body["expected"], body["acked"]) == ("gap", 2, [["power", 0, 1]])
    assert landed() == {("power", 0): {1: page(1)}}


@pytest.mark.parametrize("at", [0, 28, 31, 90, 120, 200, 224, 250])
def test_a_flipped_byte_stops_the_request_there(mine, at):
    device, page, landed = mine
    bad = bytearray(page(2))
    bad[at] ^= 4
    reply = device.send(page(1), bytes(bad), page(2), page(3))
    assert reply.status_code == 422
    body = reply.json()
    assert body["problem"] == "damaged" and body["offset"] == len(page(1))
    assert body["acked"] == [["power", 0, 1]]
    assert landed() == {("power", 0): {1: page(1)}}
    assert device.send(page(2)).status_code == 200


def test_a_damaged_page_is_named(mine):
    device, page, _ = mine
    bad = bytearray(page(1, partition=5))
    bad[-1] ^= 1
    body = device.send(bytes(bad)).json()
    assert (body["stream"], body["partition"], body["seq"]) == ("power", 5, 1)
    assert "is damaged: checksum" in body["detail"]


def test_half_a_page_is_no_page(mine):
    device, page, landed = mine
    for cut in (1, 100, 224, 262):
        assert device.send(page(1)[:cut]).status_code == 422
    assert device.send(page(1) + page(2)[:-1]).json()["acked"] == [["power", 0, 1]]
    assert device.send(b"GARBAGE" * 1000).status_code == 422
    assert landed() == {("power", 0): {1: page(1)}}


def test_a_page_of_somebody_else_is_refused(mine):
    device, page, landed = mine
    for foreign in (make_page(1, device="other"), page(1, epoch=EPOCH - 1)):
        reply = device.send(foreign)
        assert (
            reply.status_code == 422 and "does not belong to the sender" in reply.json()["detail"]
        )
    assert landed() == {}


def test_a_repeated_page_is_acked_again_and_another_under_its_name_is_a_conflict(shared, mine):
    device, page, landed = mine
    device.send(page(1), page(2))
    assert device.send(page(1)).json()["acked"] == [["power", 0, 2]]
    before = httpx.get(shared[0].url + "/v1/stats").json()["conflicts"]
    reply = device.send(page(2, salt=1))
    assert reply.status_code == 409 and reply.json()["problem"] == "conflict"
    assert httpx.get(shared[0].url + "/v1/stats").json()["conflicts"] == before + 1
    assert landed() == {("power", 0): {1: page(1), 2: page(2)}}


def test_an_older_session_is_fenced(shared, mine):
    device, page, landed = mine
    name = device.headers["X-Edged-Device"]
    with (
        Device(shared[0], name, session=(2, 8)) as newer,
        Device(shared[0], name, session=(2, 9)) as twin,
    ):
        assert device.send(page(1)).status_code == 200
        assert newer.send(page(2)).status_code == 200
        for old in (device, twin):
            reply = old.send(page(3))
            assert reply.status_code == 409 and reply.json()["problem"] == "fenced"
    assert landed() == {("power", 0): {1: page(1), 2: page(2)}}


def test_an_unknown_schema_is_named_and_registering_it_helps(mine):
    device, page, _ = mine
    stream = "s" + device.headers["X-Edged-Device"]
    body = device.send(page(1, stream=stream, version=4)).json()
    assert (body["problem"], body["stream"], body["version"]) == ("unknown_schema", stream, 4)
    assert device.register(stream, 4).status_code == 204
    assert device.register(stream, 4).status_code == 204
    assert device.register(stream, 4, '[{"name":"x","type":"bool"}]').status_code == 409
    assert device.register(stream, 5, "no json").status_code == 422
    assert device.register("No", 1).status_code == 422
    assert device.send(page(1, stream=stream, version=4)).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Edged-Epoch": ""},
        {"X-Edged-Epoch": str(1 << 64)},
        {"X-Edged-Epoch": "-1"},
        {"X-Edged-Session": "1"},
        {"X-Edged-Session": "0:1"},
        {"X-Edged-Session": "a:b"},
        {"X-Edged-Device": "../../etc"},
        {"X-Edged-Device": ""},
    ],
)
def test_bad_headers_are_refused(shared, headers):
    good = {"X-Edged-Device": "d", "X-Edged-Epoch": "1", "X-Edged-Session": "1:1"}
    reply = httpx.post(shared[0].url + "/v1/pages", headers=good | headers, content=b"")
    assert reply.status_code == 400


def test_a_request_whose_check_is_wrong_is_refused_and_answers_carry_one(mine):
    device, page, landed = mine
    http = device.http
    sender = "\n".join(device.headers.values()) + "\n"
    right = _crc(sender + "pages\n")
    for check, status in ((right, 200), (_crc(sender + "wind@1\n"), 400), ("", 400)):
        reply = http.post("/v1/pages", content=page(1), headers={"X-Edged-Check": check})
        assert reply.status_code == status
        if status == 200:
            assert reply.headers["X-Edged-Check"] == _crc(reply.text)
    for check, status in ((_crc(sender + "guarded@1\n" + SCHEMA), 204), (right, 400)):
        reply = http.put("/v1/schemas/guarded/1", content=SCHEMA, headers={"X-Edged-Check": check})
        assert reply.status_code == status
    assert landed() == {("power", 0): {1: page(1)}}


def _crc(text):
    return f"{zlib.crc32(text.encode()):08x}"


def test_what_is_desired_comes_with_the_answer(shared, mine):
    device, page, _ = mine
    name = device.headers["X-Edged-Device"]
    desired = shared[1] / "desired"
    desired.mkdir(exist_ok=True)
    (desired / f"{name}.json").write_text('{"job": 7}')
    assert device.send(page(1)).json()["desired"] == {"job": 7}


def test_requests_behind_each_other_on_one_connection_are_answered_in_their_order(shared, mine):
    device, page, landed = mine
    lines = "".join(f"{name}: {value}\r\n" for name, value in device.headers.items())

    def request(body):
        head = f"POST /v1/pages HTTP/1.1\r\nHost: x\r\n{lines}Content-Length: {len(body)}\r\n\r\n"
        return head.encode() + body

    pages = [page(1), page(2), page(3, rows=9000), page(4)]
    assert len(pages[2]) > VERIFY_INLINE_BYTES, "one takes the long way"
    with socket.create_connection(("127.0.0.1", shared[0].port)) as peer:
        peer.sendall(b"".join(map(request, pages)))
        said = b""
        while said.count(b'"desired"') < 4:
            said += peer.recv(1 << 16)
    answers = [
        json.loads(part.split(b"\r\n\r\n")[1]) for part in said.split(b"HTTP/1.1 200 OK")[1:]
    ]
    assert [answer["acked"] for answer in answers] == [[["power", 0, n]] for n in (1, 2, 3, 4)]
    assert landed() == {("power", 0): dict(enumerate(pages, 1))}


def test_an_answer_that_cannot_be_made_is_500_and_others_go_on(tmp_path):
    collector = Collector(tmp_path)
    with Device(collector) as device, Device(collector, "other") as other:
        device.register()
        (tmp_path / "desired").mkdir(exist_ok=True)
        (tmp_path / "desired" / f"{DEVICE}.json").write_text('{"job": NaN}')
        assert device.send(make_page(1)).status_code == 500
        assert other.send(make_page(1, device="other")).status_code == 200
    # whichever way the request took, which depends on how its bytes arrived
    assert collector.stop() == 0 and "ValueError: Out of range float" in collector.log


def test_unknown_paths_and_methods_are_refused(shared):
    url = shared[0].url
    assert httpx.get(url + "/docs").status_code == 404
    assert httpx.get(url + "/v1/pages").status_code == 405
    assert httpx.put(url + "/v1/schemas/power/one", content="[]").status_code == 422
    assert httpx.get(url + "/health").text == "ok"


def test_a_body_that_is_too_large_is_refused_unread(tmp_path):
    with collecting(tmp_path, "--body-bytes", "65536") as collector, Device(collector) as device:
        device.register()
        assert device.send(*[make_page(seq) for seq in range(1, 100)]).status_code == 200
        with pytest.raises(httpx.TransportError):  # the collector hangs up
            reply = device.send(bytes(50 << 20))
            assert reply.status_code == 413
            raise httpx.TransportError("refused")

        def chunks():
            while True:
                yield bytes(10_000)

        with pytest.raises(httpx.TransportError):
            reply = device.http.post("/v1/pages", content=chunks())
            assert reply.status_code == 413
            raise httpx.TransportError("refused")
        assert device.send(make_page(100)).status_code == 200


def test_whoever_hangs_up_or_talks_rubbish_harms_nobody(shared, mine):
    device, page, landed = mine
    files = open_files(shared[0].process.pid)
    head = (
        b"POST /v1/pages HTTP/1.1\r\nHost: x\r\nX-Edged-Device: bad\r\nX-Edged-Epoch: 1\r\n"
        b"X-Edged-Session: 1:1\r\nContent-Length: 100000\r\n\r\n"
    )
    for data in (b"", b"\x00" * 100, b"GET / HTTP/9\r\n\r\n", head, head + make_page(1)[:50]):
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", shared[0].port)) as peer:
                peer.sendall(data)
    assert device.send(page(1)).status_code == 200
    assert landed() == {("power", 0): {1: page(1)}}
    deadline = time.monotonic() + 120
    while open_files(shared[0].process.pid) > files + 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert open_files(shared[0].process.pid) <= files + 2


def test_a_landing_that_cannot_be_opened_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    asked = ["--landing", str(tmp_path / "file" / "landing"), "--listen", "127.0.0.1:0"]
    problem = CliRunner().invoke(collect, asked).exception
    assert isinstance(problem, CentralError) and "cannot be opened" in str(problem)


@pytest.mark.parametrize(
    "options, said",
    [
        (["--listen", "0.0.0.0:0"], "is not a loopback address"),
        (["--listen", "nonsense"], "expected ADDRESS:PORT"),
        (["--tls-cert", __file__], "belong together"),
        (["--listen", "203.0.113.1:1", "--plain", "--tokens", "T"], "cannot listen"),
    ],
)
def test_settings_that_cannot_be_are_refused(tmp_path, options, said):
    tokens = tmp_path / "tokens"
    tokens.write_text("")
    options = [str(tokens) if o == "T" else o for o in options]
    done = subprocess.run(
        [sys.executable, "-m", "edged", "central", "collect", "--landing", str(tmp_path), *options],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 78 and said in done.stderr


def received(collector):
    """Whether the collector has read everything sent to it, by the kernel's queues."""
    port = f":{collector.port:04X}"
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    ours = [x for x in map(str.split, lines) if x[1].endswith(port) and x[3] == "01"]
    return all(x[4].endswith(":00000000") for x in ours)


def test_sigterm_finishes_what_is_in_flight_and_exits_0(tmp_path):
    collector = Collector(tmp_path, 0, "--group-commit-ms", "200")
    with Device(collector) as device:
        device.register()
        replies, sent = [], threading.Event()

        def send():
            trace = {"trace": lambda name, _: name.endswith("body.complete") and sent.set()}
            replies.append(device.http.post("/v1/pages", content=make_page(1), extensions=trace))

        sender = threading.Thread(target=send)
        sender.start()
        assert sent.wait(120)
        until = time.monotonic() + 120
        while not received(collector):
            assert time.monotonic() < until
            time.sleep(0.01)
        assert collector.stop() == 0
        sender.join()
    assert replies[0].json()["acked"] == [["power", 0, 1]]
    assert landed_pages(tmp_path) == [make_page(1)]
    assert collector.log == ""


def test_requests_of_many_devices_share_wakes_and_commits(tmp_path):
    rounds = 8
    with collecting(tmp_path, "--coalesce-ms", "50") as collector:
        devices = [Device(collector, f"d{i}") for i in range(20)]
        devices[0].register()

        def send(i):
            for seq in range(1, rounds + 1):
                assert devices[i].send(make_page(seq, device=f"d{i}")).status_code == 200

        threads = [threading.Thread(target=send, args=(i,)) for i in range(20)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        for d in devices:
            d.http.close()
        stats = httpx.get(collector.url + "/v1/stats").json()
    assert stats["pages"] == 20 * rounds and stats["groups"] <= 20 * rounds / 4
    assert len(by_partition(tmp_path)) == 20


def test_concurrent_requests_share_a_commit(tmp_path):
    with collecting(tmp_path, "--group-commit-ms", "50") as collector:
        devices = [Device(collector, f"d{i}") for i in range(20)]
        devices[0].register()
        threads = [
            threading.Thread(target=d.send, args=(make_page(1, device=f"d{i}"),))
            for i, d in enumerate(devices)
        ]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        for d in devices:
            d.http.close()
        stats = httpx.get(collector.url + "/v1/stats").json()
    assert stats["pages"] == 20 and stats["groups"] <= 5
    assert len(by_partition(tmp_path)) == 20
