"""Permissions: every route with every credential, and the ways to be recognised."""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
import subprocess
import sys
from contextlib import ExitStack, suppress

import httpx
import pytest
from starlette.datastructures import Headers

from api.app import routes
from api.listeners import ApiListener, check_tcp, open_listeners
from api.security import Gate, Route, check_routes
from api.server import HttpPeer
from edged.config.sections import ApiSection
from edged.errors import ConfigError
from edged.http.api_tokens import SCOPES, TokenFile
from edged.platform.trust import trusting
from tests.api.support import HOUR_US, NOW_US, Api

NAMES = {"name": "nobody", "job": "nobody", "id": "0123456789abcdef", "stream": "nobody"}
ROUTES = [
    (method, route.path.format(**NAMES), route.edged_scope)
    for route in routes().routes
    for method in sorted(route.methods)
]


@pytest.fixture(scope="module")
def credentials(lonely):
    """Name → (header or nothing, scopes; None: not recognised)."""
    tokens = lonely.tokens
    revoked, text = tokens.create("gone", SCOPES, NOW_US, None)
    tokens.revoke(revoked.id, NOW_US)
    other = TokenFile(lonely.path / "other.json").create("other", SCOPES, NOW_US, None)[1]
    bearer = {
        "none": (None, None),
        "empty": ("Bearer", None),
        "garbage": ("Bearer edged_zz", None),
        "of another device": (f"Bearer {other}", None),
        "basic": ("Basic cm9vdDpyb290", None),
        "revoked": (f"Bearer {text}", None),
        "expired": (f"Bearer {lonely.token(*SCOPES, expires_us=NOW_US - HOUR_US)}", None),
        "all": (f"Bearer {lonely.token(*SCOPES)}", set(SCOPES)),
    }
    return bearer | {s: (f"Bearer {lonely.token(s)}", {s}) for s in SCOPES}


def test_every_route_asks_every_credential(lonely, credentials):
    seen = {}
    with lonely.over_tcp() as client:
        for method, path, scope in ROUTES:
            for name, (header, scopes) in credentials.items():
                headers = {"Authorization": header} if header else {}
                answer = client.request(method, path, headers=headers)
                if scope == "public":
                    expected = answer.status_code < 400
                elif scopes is None:
                    expected = answer.status_code == 401 and "www-authenticate" in answer.headers
                elif scope not in scopes:
                    expected = answer.status_code == 403
                else:
                    expected = answer.status_code not in (401, 403)
                seen[method, path, name] = expected
    assert len(seen) == len(ROUTES) * len(credentials) > 250
    assert [key for key, right in seen.items() if not right] == []


def test_what_changes_something_needs_control_and_tuples_need_ingest():
    for method, path, scope in ROUTES:
        asks_only = method == "GET" or path in ("/v1/jobs:validate", "/v1/jobs:explain")
        asks_only &= not path.endswith("/state")  # the rows of a job's windows, which end its drain
        assert scope == (
            "public" if path in ("/", "/docs", "/healthz") or path.startswith("/page/")
            else "ingest" if path.endswith("/tuples")
            else "read" if asks_only
            else "control"
        ), path  # fmt: skip


def test_a_route_without_a_scope_cannot_be_added():
    app = routes()
    app.get("/v1/forgotten")(lambda: {})
    with pytest.raises(TypeError, match="states no scope"):
        check_routes(app.routes)
    assert all(isinstance(route, Route) for route in routes().routes)


def test_an_unknown_path_tells_a_stranger_nothing(lonely):
    with lonely.over_tcp() as client:
        assert client.get("/v1/nothing").status_code == 401
        assert client.get("/../../etc/passwd").status_code == 401


def test_a_token_is_looked_at_before_the_body_is_read(lonely):
    with socket.create_connection(("127.0.0.1", lonely.port)) as sock:
        sock.sendall(b"PUT /v1/log HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n")
        assert sock.recv(1 << 16).startswith(b"HTTP/1.1 401 ")


def test_a_token_on_the_socket_restricts_to_its_scopes(lonely):
    with lonely.client(lonely.token("read")) as client:
        assert client.put("/v1/log", json={"level": "debug"}).status_code == 403
        assert client.get("/v1/operations").status_code == 200
    with lonely.client() as client:
        assert client.put("/v1/log", json={"level": "debug"}).status_code == 503


def test_revoking_a_token_needs_no_restart(lonely):
    text = lonely.token("read")
    with lonely.over_tcp(text) as client:
        assert client.get("/v1/operations").status_code == 200
        lonely.tokens.revoke(text.split("_")[1], NOW_US)
        assert client.get("/v1/operations").status_code == 401


def test_whoever_was_let_in_is_so_until_the_token_expires(tmp_path, monkeypatch):
    tokens = TokenFile(tmp_path / "tokens.json")
    _, text = tokens.create("live", ["read"], NOW_US, NOW_US + HOUR_US)
    gate = Gate(ApiSection(tokens_file=str(tokens.path)))
    peer = HttpPeer(ApiListener(None, "tcp", trusted=False))
    principal = gate.principal(peer, Headers({"authorization": f"Bearer {text}"}))
    assert gate.holds(principal)
    monkeypatch.setattr("api.security.time.time_ns", lambda: 1000 * (NOW_US + 2 * HOUR_US))
    assert not gate.holds(principal)


def test_a_body_that_is_compressed_is_refused_and_one_that_is_not_passes(lonely):
    with lonely.client() as client:
        for encoding, status in (("gzip", 415), ("identity", 503)):
            headers = {"Content-Encoding": encoding, "Content-Type": "application/json"}
            answer = client.put("/v1/log", content=b'{"level": "info"}', headers=headers)
            assert answer.status_code == status, answer.text


def test_a_head_is_bounded_however_it_arrives_and_no_answer_repeats_it(lonely):
    """At one go, or a kilobyte at a time."""
    for step in (1 << 20, 1 << 10):
        with socket.create_connection(("127.0.0.1", lonely.port)) as sock:
            sock.settimeout(60)
            text = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 60_000 + b"\r\n\r\n"
            with suppress(ConnectionError):  # it is closed before all was sent
                for at in range(0, len(text), step):
                    sock.sendall(text[at : at + step])
            with suppress(ConnectionResetError):
                assert sock.recv(1 << 16).startswith(b"HTTP/1.1 400 ")
    with lonely.client() as client:
        assert len(client.get("/v1/" + "a" * 20_000).content) < 1000


def test_head_is_answered_as_get_without_the_body(lonely):
    with lonely.over_tcp(lonely.token("read")) as client:
        got, head = client.get("/v1/operations"), client.head("/v1/operations")
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == got.headers["content-length"]
        live = client.head("/v1/events", headers={"Accept": "text/event-stream"})
        assert live.status_code == 503  # no stream that never ends: the daemon is away
    with lonely.over_tcp() as client:
        assert client.head("/v1/operations").status_code == 401


def test_the_socket_is_the_groups_and_its_users_are_named_in_the_log(lonely):
    assert stat.S_IMODE(lonely.socket.stat().st_mode) == 0o660
    with lonely.client() as client:
        client.post("/v1/uplink:retry")
    log = lonely.log.read_text()
    assert f"uid {os.getuid()}, pid {os.getpid()} (socket): POST /v1/uplink:retry: 503" in log


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200), ("localhost:7443", 200), ("127.0.0.1", 200), ("[::1]:80", 200),
        (socket.gethostname(), 200), ("attacker.example", 421), ("127.0.0.1.nip.io", 421),
        ("", 421), ("a b", 421), ("localhost:x", 421),
    ],
)  # fmt: skip
def test_only_names_of_this_machine_are_served(lonely, host, status):
    with lonely.client() as client:
        assert client.get("/healthz", headers={"Host": host}).status_code == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost", 200), ("https://console.example", 200), ("null", 403),
        ("https://attacker.example", 403), ("http://localhost:81", 403), ("localhost", 403),
    ],
)  # fmt: skip
def test_pages_of_others_are_refused(lonely, origin, status):
    with lonely.client() as client:
        assert client.get("/healthz", headers={"Origin": origin}).status_code == status


@pytest.mark.parametrize(
    ("settings", "host", "complaint"),
    [
        ({}, "127.0.0.1", "admits every client"),
        ({"tokens_file": "t"}, "0.0.0.0", "without TLS"),
        ({"tokens_file": "t"}, "192.0.2.7", "without TLS"),
        ({"tls_cert": "c", "tls_key": "k"}, "0.0.0.0", "admits every client"),
        ({"client_ca": "c"}, "127.0.0.1", "admits every client"),
        ({"tokens_file": "t", "tls_cert": "/no", "tls_key": "/no"}, "0.0.0.0", "/no"),
    ],
)
def test_tcp_that_would_be_open_to_strangers_is_refused(settings, host, complaint):
    with pytest.raises(ConfigError, match=complaint):
        check_tcp(ApiSection(**settings), host)


def test_loopback_with_tokens_may_go_without_tls():
    assert check_tcp(ApiSection(tokens_file="t"), "::1") is None


def test_scopes_of_client_names_are_checked():
    with pytest.raises(ConfigError, match="admin"):
        Gate(ApiSection(client_names=("ops=admin",)))


def certificates(path):
    """A CA, a server's certificate and two clients', as openssl makes them."""

    def openssl(*words):
        subprocess.run(["openssl", *words], check=True, capture_output=True, cwd=path)

    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca")
    for name, alternative in (
        ("server", "IP:127.0.0.1"), ("ops", "DNS:ops.example"), ("mallory", "DNS:mallory.example")
    ):  # fmt: skip
        openssl(
            "req", "-x509", *key, "-CA", "ca.pem", "-CAkey", "ca.key", "-keyout", f"{name}.key",
            "-out", f"{name}.crt", "-subj", f"/CN={name}",
            "-addext", f"subjectAltName={alternative}",
            "-addext", "basicConstraints=critical,CA:FALSE",
        )  # fmt: skip
        pem = (path / f"{name}.crt").read_text() + (path / f"{name}.key").read_text()
        (path / f"{name}.pem").write_text(pem)


def test_client_certificates_count_by_their_names(tmp_path):
    certificates(tmp_path)
    settings = {
        "tls_cert": str(tmp_path / "server.crt"), "tls_key": str(tmp_path / "server.key"),
        "client_ca": str(tmp_path / "ca.pem"), "client_names": ["ops.example=read"],
    }  # fmt: skip

    def status(api, cert=None, method="GET", path="/v1/operations", token=None):
        context = trusting(str(tmp_path / "ca.pem"))
        if cert:
            context.load_cert_chain(str(tmp_path / f"{cert}.pem"))
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        url = f"https://127.0.0.1:{api.port}"
        with httpx.Client(base_url=url, verify=context, headers=headers, trust_env=False) as client:
            return client.request(method, path).status_code

    with Api(tmp_path, tcp=True, **settings) as api:
        assert status(api) == 401
        assert status(api, "ops") == 200
        assert status(api, "ops", "POST", "/v1/uplink:retry") == 403
        assert status(api, "mallory") == 403
        assert status(api, token=api.token("read")) == 200
        with pytest.raises(httpx.TransportError):  # plain HTTP
            httpx.get(f"http://127.0.0.1:{api.port}/healthz", trust_env=False)


def test_a_socket_from_systemd_is_used_and_readiness_told(tmp_path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "passed.sock"))
        listener.listen()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
            passed_and_told(tmp_path, listener, told)
    assert (tmp_path / "passed.sock").exists()  # it is systemd's


def passed_and_told(tmp_path, listener, told):
    told.bind(str(tmp_path / "notify"))
    told.settimeout(60)
    starter = (
        "import os, sys; os.dup2(int(sys.argv[1]), 3); os.set_inheritable(3, True);"
        "os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1');"
        "os.execv(sys.executable, [sys.executable, '-m', 'api'])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", starter, str(listener.fileno())],
        pass_fds=[listener.fileno()],
        env={**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify"),
             "EDGED_STORE__DIRECTORY": str(tmp_path), "EDGED_METRICS__LISTEN": ""},
        stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        try:
            assert told.recv(4096).decode().startswith("READY=1\n")
            transport = httpx.HTTPTransport(uds=str(tmp_path / "passed.sock"))
            with httpx.Client(transport=transport, base_url="http://localhost") as client:
                assert client.get("/healthz").json() == {"api": "up", "daemon": "down"}
            process.terminate()
            assert told.recv(4096).decode() == "STOPPING=1"
            assert process.wait(120) == 0
        finally:
            process.kill()


def test_descriptors_for_another_process_are_not_taken(tmp_path):
    settings = ApiSection(socket=str(tmp_path / "own.sock"), group="")
    (listener,) = open_listeners(settings, {"LISTEN_PID": "1", "LISTEN_FDS": "1"})
    assert listener.address == str(tmp_path / "own.sock")
    listener.sock.close()


def test_a_socket_that_somebody_serves_is_not_taken_away(lonely):
    with pytest.raises(ConfigError, match=r"set api\.socket"):
        open_listeners(ApiSection(socket=str(lonely.socket)), {})
    with lonely.client() as client:
        assert client.get("/healthz").status_code == 200


def test_what_is_not_http_is_answered_and_closed(lonely):
    with socket.create_connection(("127.0.0.1", lonely.port)) as sock:
        sock.settimeout(20)
        sock.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        answer = b""
        while data := sock.recv(1 << 16):
            answer += data
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ") and b"application/problem+json" in head
    assert json.loads(body)["type"] == "urn:edged:problem:malformed"


def test_a_connection_that_resets_does_no_harm(lonely):
    for _ in range(20):
        sock = socket.create_connection(("127.0.0.1", lonely.port))
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHo")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
    with lonely.client() as client:
        assert client.get("/healthz").status_code == 200


def test_a_head_that_is_begun_and_not_ended_holds_a_connection_for_seconds_only(lonely):
    """The first one, and one behind an answer: a stranger gets 401 and could stay for good."""
    request = b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\n"
    with ExitStack() as stack:
        first, second, idle = (
            stack.enter_context(socket.create_connection(("127.0.0.1", lonely.port)))
            for _ in range(3)
        )
        for sock in (first, second, idle):
            sock.settimeout(60)
        first.sendall(request)
        for sock in (second, idle):
            sock.sendall(request + b"\r\n")
            assert sock.recv(1 << 16).startswith(b"HTTP/1.1 401 ")
        second.sendall(request)
        for sock in (first, second):
            with suppress(ConnectionResetError):
                while sock.recv(1 << 16):
                    pass
        idle.sendall(request + b"\r\n")
        while b"HTTP/1.1 401 " not in (said := idle.recv(1 << 16)):
            assert said, "an idle connection stays open"
