"""Every kind of refusal in its one form, word for word."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from api.app import routes
from api.door_client import DoorClient, Mailbox, refused
from api.problems import KINDS, ApiProblem, ProblemFault
from edged import __version__
from tests.api.support import Api, check_texts, small, until

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
        ("PUT", "/v1/governor", {"Content-Type": "application/json"},
         rb'{"policy": "fixed", "settings": {"\ud800": 1}}'),
        {"type": "urn:edged:problem:malformed", "title": "Malformed request", "status": 400,
         "detail": "the body is not JSON",
         "do": "send UTF-8, whole characters, finite numbers, and nothing nested deeply"},
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


WRONG = [
    ("GET", "/v1/jobs?limt=5", "limt", "did you mean limit?"),
    ("GET", "/v1/streams/power?jobs=x", "jobs", "did you mean job?"),
    ("DELETE", "/v1/jobs/extra?dran=false", "dran", "did you mean drain?"),
    ("POST", "/v1/streams/power/tuples?Job=x", "Job", "did you mean job?"),
    ("GET", "/v1/jobs?page=2", "page", "there are cursor, limit"),
    ("GET", "/v1?x", "x", "remove it: this resource takes no query parameters"),
]


@pytest.mark.parametrize(("method", "path", "name", "do"), WRONG)
def test_an_unknown_query_parameter_is_refused_with_the_nearest(lonely, method, path, name, do):
    with lonely.client() as client:
        answer = client.request(method, path)
    fault = {"where": f"query.{name}", "what": "unknown parameter", "do": do}
    problem = answer.json()
    assert answer.status_code == 422, answer.text
    assert (problem["detail"], problem["do"]) == (f"query.{name}: unknown parameter", do)
    assert problem["errors"] == [fault]


def test_unknown_query_parameters_are_refused_by_every_route(lonely):
    """Before the body is read, and together with known ones."""
    with lonely.client() as client:
        for route in routes().routes:
            path = re.sub(r"{\w+}", "power", route.path)
            for method in route.methods:
                answer = client.request(method, f"{path}?limit=5&typo=1")
                assert answer.status_code == 422, (method, path, answer.text)
                assert "query.typo" in {fault["where"] for fault in answer.json()["errors"]}
        many = "&".join(f"p{n}" for n in range(2000))
        problem = client.get(f"/v1/jobs?{many}").json()
    assert problem["detail"] == "query.p0: unknown parameter, and 1999 more"
    assert len(problem["errors"]) == 10


def test_no_kind_refers_to_errors_where_there_are_none():
    for kind in KINDS:
        check_texts(ApiProblem(kind, "x").document())
    fault = ProblemFault("query.limit", "is no number")
    listed = ApiProblem("invalid", "x", errors=(fault,)).document()
    assert listed["do"] == "correct what `errors` names"


def test_what_the_daemon_refuses_without_a_place_refers_to_its_text():
    problem = refused({"error": "a request is a JSON object", "kind": "invalid"}).document()
    assert problem["errors"] == []
    check_texts(problem)


def test_the_index_names_every_resource_that_needs_no_name(lonely):
    with lonely.client() as client:
        index = client.get("/v1").json()
        assert client.get("/v1/").json() == index
        assert index["version"] == __version__
        assert index["links"]["jobs"] == "/v1/jobs"
        document = client.get(index["links"]["openapi_document"]).json()
        assert client.get(index["links"].pop("docs")).status_code == 200
    reads = {path for path, operations in document["paths"].items() if "get" in operations}
    assert set(index["links"].values()) == {path for path in reads if "{" not in path}


def test_a_daemon_that_is_away_is_503_with_when_to_come_again(lonely):
    with lonely.client() as client:
        answer = client.get("/v1/device")
    problem = answer.json()
    assert (answer.status_code, problem["retry_after_s"]) == (503, 2)
    assert answer.headers["retry-after"] == "2"
    assert "the daemon does not answer at" in problem["detail"]
    assert problem["do"].startswith("see `systemctl status edged`")


def test_whoever_asks_writes_no_lines_of_their_own_into_the_log(lonely):
    path = "/v1/jobs/%1b%5b2J%0b%E2%80%A8edged-api%3A/pause"
    with lonely.client() as client:
        assert client.post(path).status_code == 422
    told = until(lambda: [line for line in lonely.log.read_text().splitlines() if "2J" in line])
    assert told[0].endswith(f"POST {path}: 422")


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


HALF = json.dumps({**small("half"), "\ud800": 1})
DEEP = 30_000
"""Brackets that no Python's `json` follows; from 3.12 on it reads 10 000."""
HALVES = [
    ("PUT", "/v1/governor", '{"policy": "fixed", "settings": {"\\udfff": 1}}', 400),
    ("PUT", "/v1/log", '{"level": "info", "\\ud800": 1}', 400),
    ("PUT", "/v1/governor", '{"policy": "power_cap", "settings": {"watts": 1e999}}', 400),
    ("PUT", "/v1/log", '{"level": ' + "[" * DEEP + "]" * DEEP + "}", 400),
    ("PUT", "/v1/log", b'{"level": "\xed\xa0\x80"}', 400),
    ("POST", "/v1/jobs:validate", HALF, 200),
    ("POST", "/v1/jobs:explain", HALF, 422),
    ("PUT", "/v1/jobs/half", HALF, 422),
    ("PUT", "/v1/jobs/half", b'name = "half"\nx = nan', 422),
]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"), HALVES, ids=map(str, range(len(HALVES)))
)
def test_what_no_answer_could_repeat_is_refused(lonely, method, path, body, status):
    """Half of a surrogate pair, and NaN: Python reads them, in JSON and TOML."""
    kind = "application/toml" if body[:1] == b"n" else "application/json"
    with lonely.client() as client:
        answer = client.request(method, path, content=body, headers={"Content-Type": kind})
    assert answer.status_code == status, answer.text
    told = answer.json()
    assert told["do"] if status != 200 else not told["valid"] and told["faults"]


def test_what_the_daemon_says_of_them_is_told_all_the_same(tmp_path):
    """A file's name may be no Unicode, and a figure no number."""
    said = {"error": "jobs.d/\udcff: \U0001f300", "kind": "conflict", "rate": float("nan")}
    line = (json.dumps(said) + "\n").encode()

    async def ask():
        async def answer(reader, writer):
            await reader.readline()
            writer.write(line)
            writer.close()

        path = str(tmp_path / "door")
        async with await asyncio.start_unix_server(answer, path):
            connection = await DoorClient(path).connect({"cmd": "jobs"})
            told = await connection.line()
            connection.close()
        return told

    told = asyncio.run(ask())
    assert told == {"error": "jobs.d/?: \U0001f300", "kind": "conflict", "rate": None}
    assert refused(told).response().status_code == 409


def test_requests_that_an_ending_api_breaks_off_are_told_so(tmp_path):
    """The daemon is there and says nothing: a read is refused, a change may have been made."""
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(tmp_path / "door"))
        deaf.listen()
        deaf.settimeout(120)
        with Api(tmp_path, tmp_path / "door") as api, ThreadPoolExecutor(2) as pool:

            def ask(method, path):
                with api.client() as client:
                    return client.request(method, path)

            asked = [pool.submit(ask, "GET", "/v1/jobs"),
                     pool.submit(ask, "POST", "/v1/jobs/extra/pause")]  # fmt: skip
            held = [deaf.accept()[0] for _ in asked]
            api.process.terminate()
            answers = [one.result(120) for one in asked]
            for sock in held:
                sock.close()
    assert [answer.status_code for answer in answers] == [503, 504]
    assert all(answer.json()["do"] and answer.headers["retry-after"] for answer in answers)


@pytest.mark.parametrize("turns", range(4))
def test_whoever_is_told_to_end_as_news_arrive_ends(turns):
    """asyncio.wait_for, before Python 3.12, returns the message and loses the
    cancellation: messages were sent for ever to a reader that had left, and its end never came."""

    async def run():
        mailbox = Mailbox()

        async def listen():
            while True:
                await mailbox.wait(300)

        listening = asyncio.create_task(listen())
        for _ in range(8):
            await asyncio.sleep(0)
        mailbox.put_missed(1)
        for _ in range(turns):
            await asyncio.sleep(0)
        listening.cancel()
        _, going_on = await asyncio.wait({listening}, timeout=60)
        listening.cancel()
        return not going_on

    assert asyncio.run(run())
