"""schemathesis against the real API and daemon over the unix socket, from the OpenAPI document.

No answer is a 5xx, none has a status, media type, header or body that is not documented.  Each
operation that takes any input gets EXAMPLES requests, right and wrong ones mixed; then chains of
operations on the same job.  The stream of live events does not end by itself: see test_live.
"""

from __future__ import annotations

import copy
import socket

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from requests.adapters import HTTPAdapter
from schemathesis import GenerationMode
from schemathesis.specs.openapi import checks
from urllib3.connection import HTTPConnection
from urllib3.connectionpool import HTTPConnectionPool

from api.app import routes
from tests.api.support import READINGS

EXAMPLES = 200
EXAMPLES_WITHOUT_INPUT = 5
SETTINGS = settings(
    phases=[Phase.generate],
    database=None,
    suppress_health_check=list(HealthCheck),
)
CHECKS = [
    schemathesis.checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
EXTRA = {
    "name": "extra",
    "streams": {
        "extra": {
            "source": {"type": "http"},
            "columns": {"id": "int64", "time": "timestamp"},
            "time": "time",
        }
    },
    "sinks": {"extras": {"type": "pages", "input": "extra"}},
}
ROW = b'{"id": 1, "time": "2026-11-21T09:00:00Z"}\n'


@schemathesis.serializer(
    "application/x-ndjson", "text/csv", "application/vnd.apache.arrow.stream", "application/toml"
)
def as_it_is(_, value):
    """What schemathesis makes up for a media type that it does not know."""
    return value if isinstance(value, bytes) else str(value).encode(errors="replace")


def document():
    """The OpenAPI document without the answer that never ends."""
    made = copy.deepcopy(routes().openapi())
    del made["paths"]["/v1/events"]["get"]["responses"]["200"]["content"]["text/event-stream"]
    return made


SCHEMA = schemathesis.openapi.from_dict(document())
SCHEMA.config.update(base_url="http://localhost")
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
        case.body = copy.deepcopy(READINGS if names.get("name") == "readings" else EXTRA)
    elif id == "send_tuples" and draw.draw(st.booleans()):
        case.media_type, case.body = "application/x-ndjson", ROW
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
