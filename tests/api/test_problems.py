"""Every kind of refusal in its one form, word for word."""

from __future__ import annotations

import socket

import pytest

from api.problems import KINDS
from tests.api.support import Api

PROBLEMS = [
    (
        ("GET", "/v1/nothing", {}, b""),
        {"type": "urn:edged:problem:not-found", "title": "Not found", "status": 404,
         "detail": "there is no /v1/nothing", "do": "GET /v1/openapi.json lists the resources"},
    ),
    (
        ("DELETE", "/v1/device", {}, b""),
        {"type": "urn:edged:problem:method-not-allowed", "title": "Method not allowed",
         "status": 405, "detail": "/v1/device has no DELETE",
         "do": "use a method of the header Allow"},
    ),
    (
        ("PUT", "/v1/log", {"Content-Type": "application/json"}, b'{"level": "loud", "x": 1}'),
        {"type": "urn:edged:problem:invalid", "title": "Invalid", "status": 422,
         "detail": "the request has 2 faults", "do": "correct what `errors` names",
         "errors": [
             {"where": "body.level",
              "what": "Input should be 'debug', 'info', 'warning' or 'error'", "do": ""},
             {"where": "body.x", "what": "Extra inputs are not permitted", "do": ""},
         ]},
    ),
    (
        ("PUT", "/v1/log", {"Content-Type": "application/json"}, b'{"level": '),
        {"type": "urn:edged:problem:malformed", "title": "Malformed request", "status": 400,
         "detail": "the body is not JSON", "do": "send what the OpenAPI document describes",
         "errors": [{"where": "body.10", "what": "JSON decode error", "do": ""}]},
    ),
    (
        ("PUT", "/v1/log", {"Content-Type": "application/json"}, b" " * 70_000),
        {"type": "urn:edged:problem:too-large", "title": "Too large", "status": 413,
         "detail": "the body is larger than 65536 bytes", "do": "send less at a time"},
    ),
    (
        ("POST", "/v1/jobs:validate", {"Content-Type": "text/plain"}, b"x"),
        {"type": "urn:edged:problem:unsupported-media-type", "title": "Unsupported media type",
         "status": 415, "detail": "'text/plain' is not a job document",
         "do": "send application/json or application/toml"},
    ),
    (
        ("GET", "/healthz", {"Host": "attacker.example"}, b""),
        {"type": "urn:edged:problem:misdirected", "title": "Not for this host", "status": 421,
         "detail": "this is not 'attacker.example'",
         "do": "use the device's own name, or add this one to api.hosts"},
    ),
    (
        ("GET", "/v1/device", {"Authorization": "Bearer x"}, b""),
        {"type": "urn:edged:problem:unauthorized", "title": "Not authenticated", "status": 401,
         "detail": "this token is not known here",
         "do": "send `Authorization: Bearer TOKEN`; `edged token create` makes one"},
    ),
    (
        ("GET", "/v1/jobs/Name", {}, b""),
        {"type": "urn:edged:problem:invalid", "title": "Invalid", "status": 422,
         "detail": "the request has one fault", "do": "correct what `errors` names",
         "errors": [{"where": "path.name",
                     "what": "String should match pattern '^[a-z][a-z0-9_-]{0,62}$'", "do": ""}]},
    ),
    (
        ("GET", "/v1/operations/0123456789abcdef", {}, b""),
        {"type": "urn:edged:problem:not-found", "title": "Not found", "status": 404,
         "detail": "there is no operation 0123456789abcdef",
         "do": "the last 256 are remembered until the API ends; repeat the request"},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("request_", "problem"), PROBLEMS)
def test_a_refusal_says_what_and_what_to_do(lonely, request_, problem):
    method, path, headers, body = request_
    with lonely.client() as client:
        answer = client.request(method, path, headers=headers, content=body)
    assert answer.json() == {"errors": [], "retry_after_s": None, **problem}
    assert answer.status_code == problem["status"]
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_daemon_that_is_away_is_503_with_when_to_come_again(lonely):
    with lonely.client() as client:
        answer = client.get("/v1/device")
    problem = answer.json()
    assert (answer.status_code, problem["retry_after_s"]) == (503, 2)
    assert answer.headers["retry-after"] == "2"
    assert "the daemon does not answer at" in problem["detail"]
    assert problem["do"].startswith("see `systemctl status edged`")


def test_all_kinds_say_what_to_do():
    assert all(kind.do and 400 <= kind.status < 600 for kind in KINDS.values())


def test_answers_carry_what_protects_browsers(lonely):
    with lonely.client() as client:
        headers = client.get("/healthz").headers
    assert headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert headers["cache-control"] == "no-store" and headers["date"].endswith(" GMT")
    assert "server" not in headers


def test_more_requests_than_may_be_are_told_to_come_again(tmp_path):
    """One holds its place with a body that does not come."""
    with Api(tmp_path, concurrency_max=1) as api:
        with socket.socket(socket.AF_UNIX) as slow, api.client() as client:
            slow.connect(str(api.socket))
            slow.sendall(
                b"POST /v1/jobs:validate HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/toml\r\nContent-Length: 10\r\n"
                b"Expect: 100-continue\r\n\r\n"
            )
            assert slow.recv(100).startswith(b"HTTP/1.1 100 ")  # it is being served
            answer = client.get("/healthz")
            assert answer.status_code == 503 and answer.headers["retry-after"] == "1"
        with api.client() as client:
            assert client.get("/v1/operations").status_code in (200, 503)
