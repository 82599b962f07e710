"""schemathesis against the real API and daemon over the unix socket, from the OpenAPI document.

No answer is a 5xx, none has a status, media type, header or body that is not documented.  Each
operation that takes any input gets EXAMPLES requests, right and wrong ones mixed; then the life of
a job is gone through step by step, at the version that was answered before and at stale ones, and
CHAINS of STEPS requests each follow the document's links at random: what they reach depends on
chance, so they fail for a wrong answer only.  The stream of live events does not end by itself: see
test_live.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import socket
from collections import Counter

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from requests.adapters import HTTPAdapter
from schemathesis import GenerationMode
from schemathesis.core import NOT_SET
from schemathesis.specs.openapi import checks
from urllib3.connection import HTTPConnection
from urllib3.connectionpool import HTTPConnectionPool

from api.app import routes
from tests.api.support import READINGS, check_texts, small
from tests.whole import count

EXAMPLES = count(30, 200)
CHAINS, STEPS = count(8, 40), 15
OF_JOBS = ["validate_job", "put_job", "job", "pause_job", "resume_job", "drain_job", "delete_job",
           "operation", "streams", "stream", "send_tuples"]  # fmt: skip
JOBS, NAMES = "http://localhost/v1/jobs", ("extra", "other")
LONG = ("validate_job", "put_job", "drain_job", "delete_job")
EXAMPLES_WITHOUT_INPUT = 5
SETTINGS = settings(
    phases=[Phase.generate],
    database=None,
    suppress_health_check=list(HealthCheck),
)


def texts_fit_the_errors(_, response, __):
    """`tests.api.support.check_texts`, as a check of schemathesis."""
    if response.headers.get("content-type", [""])[0] == "application/problem+json":
        check_texts(response.json())


CHECKS = [
    texts_fit_the_errors,
    schemathesis.checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
ROW = b'{"id": 1, "time": "2026-11-21T09:00:00Z"}\n'


@schemathesis.serializer(
    "application/x-ndjson", "text/csv", "application/vnd.apache.arrow.stream", "application/toml"
)
def as_it_is(_, value):
    """What schemathesis makes up for a media type that it does not know."""
    return value if isinstance(value, bytes) else str(value).encode(errors="replace")


def document():
    """The OpenAPI document without the answer that never ends, and without credentials: made-up
    ones get 401 and nothing else; test_security has them."""
    made = copy.deepcopy(routes().openapi())
    del made["components"]["securitySchemes"]
    for operations in made["paths"].values():
        for operation in operations.values():
            operation.pop("security", None)
    del made["paths"]["/v1/events"]["get"]["responses"]["200"]["content"]["text/event-stream"]
    return made


SCHEMA = schemathesis.openapi.from_dict(document())
SCHEMA.config.update(base_url="http://localhost")
SCHEMA.config.phases.stateful.inference.algorithms = []  # the document's own links, no guesses
OPERATIONS = {
    operation.ok().definition.raw["operationId"]: operation.ok()
    for operation in SCHEMA.get_all_operations()
}


class _Connection(HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost")
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)


class _Pool(HTTPConnectionPool):
    def __init__(self, path):
        super().__init__("localhost")
        self.path = path

    def _new_conn(self):
        return _Connection(self.path)


class UnixAdapter(HTTPAdapter):
    """requests over one unix socket."""

    def __init__(self, path):
        super().__init__()
        self._pool = _Pool(path)

    def get_connection_with_tls_context(self, *_, **__):
        return self._pool

    def close(self):
        self._pool.close()


@pytest.fixture(scope="module")
def session(plant):
    with requests.Session() as session:
        session.trust_env = False
        session.mount("http://", UnixAdapter(str(plant[1].socket)))
        yield session


def sometimes_real(case, draw):
    """The names and documents of what is there in place of made-up ones, now and then."""
    names = case.path_parameters
    for key, real in (("name", ["extra", "readings"]), ("job", ["readings"]), ("id", ["big"]),
                      ("stream", ["power", "extra"])):  # fmt: skip
        if key in names and draw.draw(st.booleans()):
            names[key] = draw.draw(st.sampled_from(real))
    id = case.operation.definition.raw["operationId"]
    if id in ("put_job", "validate_job", "explain_job") and draw.draw(st.booleans()):
        case.media_type = "application/json"
        case.body = copy.deepcopy(READINGS if names.get("name") == "readings" else small())
    elif id == "send_tuples" and draw.draw(st.booleans()):
        case.media_type, case.body = "application/x-ndjson", ROW
    if "prefer" in case.operation.headers and draw.draw(st.booleans()):
        case.headers["prefer"] = draw.draw(st.sampled_from(["respond-async", "wait=1"]))
    return case


@pytest.mark.parametrize("id", sorted(OPERATIONS))
def test_every_answer_is_documented(session, plant, id):
    operation, sent = OPERATIONS[id], []
    strategy = st.one_of(
        operation.as_strategy(generation_mode=GenerationMode.POSITIVE),
        operation.as_strategy(generation_mode=GenerationMode.NEGATIVE),
    )

    takes_input = operation.definition.raw.get("parameters") or operation.body
    examples = EXAMPLES if takes_input else EXAMPLES_WITHOUT_INPUT

    @settings(SETTINGS, max_examples=examples)
    @given(st.data())
    def one(draw):
        case = sometimes_real(draw.draw(strategy), draw)
        response = case.call(session=session, timeout=60)
        sent.append(response.status_code)
        case.validate_response(response, checks=CHECKS)

    one()
    assert len(sent) >= (EXAMPLES if takes_input else 1)
    assert all(part.running() for part in plant)


def chains(schema, session, told, wrong):
    """A state machine of the schema's links.  `told` counts operations with their answers, and
    chains; what is wrong with an answer goes to `wrong`."""

    class Chain(schema.as_state_machine()):
        def setup(self):
            told["chains"] += 1
            self.turn, self.names = itertools.count(), itertools.cycle(NAMES[::-1])
            for name in NAMES:  # every other chain begins with a job, the others with none
                session.delete(f"{JOBS}/{name}?drain=false", timeout=60)
            if told["chains"] % 2:
                session.put(f"{JOBS}/{NAMES[0]}", json=small(NAMES[0]), timeout=60)

        def before_call(self, case):
            id, turn = case.operation.definition.raw["operationId"], next(self.turn)
            for key in {"name", "stream"} & set(case.path_parameters):
                if turn % 4 and case.path_parameters[key] not in ("readings", *NAMES):
                    case.path_parameters[key] = next(self.names)
            if turn % 2 and not case.headers.get("if-match", '"').startswith('"'):
                del case.headers["if-match"]
            if id in LONG and turn % 3 == 0:
                case.headers["prefer"] = "respond-async"
            if id in ("put_job", "validate_job", "explain_job"):
                name = case.path_parameters.get("name") or next(self.names)
                promises = {"latency": f"{100 + turn}ms"}  # another document each time
                case.media_type = "application/json"
                case.body = {**small(name), "promises": promises}
            elif id == "send_tuples":
                case.media_type, case.body = "application/x-ndjson", ROW

        def get_call_kwargs(self, case):
            return {"session": session, "timeout": 60}

        def after_call(self, response, case):
            super().after_call(response, case)
            told[case.operation.definition.raw["operationId"], response.status_code] += 1

        def validate_response(self, response, case, additional_checks=None, **_):
            try:
                case.validate_response(response, checks=CHECKS)
            except Exception as problem:
                wrong.append(problem)
                raise

    return Chain


def run_chains(schema, session, plant):
    """Run them; counts of (operation, status)."""
    told, wrong = Counter(), []
    chain = chains(schema, session, told, wrong)
    while (left := CHAINS - told["chains"]) > 0:
        # what a real daemon answers depends on the clock too, which hypothesis takes for a fault of
        # the test; schemathesis' own runner goes on in the same way
        with contextlib.suppress(Flaky):
            chain.run(settings=settings(SETTINGS, max_examples=left, stateful_step_count=STEPS))
        assert not wrong
    assert all(part.running() for part in plant)
    del told["chains"]
    return told


class Asked:
    """Operations by their ids; every answer is held against the document."""

    def __init__(self, session):
        self.session = session

    def __call__(self, status, id, /, headers=None, body=NOT_SET, media="application/json", **path):
        operation, kind = OPERATIONS[id], None if body is NOT_SET else media
        case = operation.Case(path_parameters=path, headers=headers, body=body, media_type=kind)
        response = case.call(session=self.session, timeout=60)
        assert response.status_code == status, (id, path, headers, response.text)
        case.validate_response(response, checks=CHECKS)
        return response


def test_the_life_of_a_job_gets_documented_answers(session, plant):
    ask, life = Asked(session), {"name": "life"}
    first = small("life")
    second = {**first, "promises": {"latency": "100ms"}}
    ask(200, "validate_job", body=first)
    ask(404, "job", **life)
    made = ask(201, "put_job", {"if-none-match": "*"}, first, **life)
    ask(412, "put_job", {"if-none-match": "*"}, first, **life)
    stale, read = {"if-match": made.headers["etag"][0]}, ask(200, "job", **life)
    assert read.headers["etag"][0] == stale["if-match"]
    ask(200, "put_job", stale, second, **life)
    for id in ("pause_job", "resume_job", "drain_job", "delete_job"):
        ask(412, id, stale, **life)
    ask(412, "put_job", stale, first, **life)
    ask(200, "pause_job", **life)
    ask(200, "resume_job", {"if-match": ask(200, "job", **life).headers["etag"][0]}, **life)
    ask(200, "stream", stream="life")
    for _ in range(2):  # the second is the first again
        ask(
            202, "send_tuples", {"idempotency-key": "1"}, ROW, "application/x-ndjson", stream="life"
        )
    later = ask(202, "validate_job", {"prefer": "respond-async"}, first)
    ask(200, "operation", id=later.json()["id"])
    ask(404, "operation", id="0" * 16)
    ask(200, "drain_job", **life)
    ask(200, "delete_job", {"prefer": "wait=60"}, **life)  # without, it is answered as it drains
    for id in ("job", "pause_job", "resume_job", "drain_job", "delete_job"):
        ask(404, id, **life)
    ask(404, "stream", stream="life")
    assert all(part.running() for part in plant)


def test_chains_over_the_links_of_jobs_get_documented_answers(session, plant):
    assert run_chains(SCHEMA.include(operation_id=OF_JOBS), session, plant)


def test_chains_over_all_links_get_documented_answers(session, plant):
    assert run_chains(SCHEMA, session, plant)
