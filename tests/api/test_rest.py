"""The typed client: made from the OpenAPI document, and against the real API."""

from __future__ import annotations

import gc
import json

import pytest

from api import generate
from edged.rest import ApiError, Client, all_of
from tests.api.support import READINGS


def test_document_and_client_are_current():
    """`python -m api.generate` makes them."""
    text = generate.document()
    assert text == generate.document(), "not deterministic"
    assert generate.DOCUMENT.read_text() == text
    assert generate.METHODS.read_text() == generate.client(text)


def test_it_asks_what_its_methods_say(plant):
    _, api = plant
    with Client(str(api.socket)) as edged:
        assert edged.device()["device"] == "dev"
        assert edged.health() == {"api": "up", "daemon": "up"}
        assert edged.job("readings")["document"]["name"] == "readings"
        assert [job["name"] for job in all_of(edged.jobs, limit=1)] == ["readings"]
        assert edged.set_log("info")["level"] == "info"
        body = b'{"id": 1, "time": "2026-11-21T09:00:00Z"}'
        accepted = edged.send_tuples("power", body, "application/x-ndjson", idempotency_key="a")
        assert accepted == {"stream": "power", "rows": 1, "replayed": False, "lost": 0}


def test_it_waits_for_operations(plant):
    seen = []
    with Client(str(plant[1].socket)) as edged:
        explained = edged.explain_job(
            json.dumps(READINGS).encode(), "application/json", prefer="respond-async",
            on_progress=seen.append,
        )  # fmt: skip
    assert explained["plan"]["order"] == ["big"]
    assert seen[0]["kind"] == "jobs.explain"


def test_problems_become_errors_that_say_what_to_do(plant, tmp_path):
    _, api = plant
    with Client(str(api.socket)) as edged:
        with pytest.raises(ApiError, match=r"nobody") as missing:
            edged.job("nobody")
        assert (missing.value.status, missing.value.kind) == (404, "not-found")
        with pytest.raises(ApiError) as wrong:
            edged.explain_job(b'{"name": "x"}', "application/json")
        assert wrong.value.faults and wrong.value.exit_code == 65
        assert "streams: is missing" in str(wrong.value)
    with Client(f"http://127.0.0.1:{api.port}") as edged:
        with pytest.raises(ApiError) as stranger:
            edged.device()
        assert stranger.value.exit_code == 77
    with Client(f"http://127.0.0.1:{api.port}", api.token("read")) as edged:
        assert edged.device()["device"] == "dev"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # httpcore's socket
def test_an_api_that_is_not_there_is_named(tmp_path):
    with Client(str(tmp_path / "no.sock")) as edged:
        with pytest.raises(ApiError, match=r"no API answers at .*no\.sock") as nobody:
            edged.device()
        assert nobody.value.exit_code == 69
    del nobody  # and with its traceback the socket
    gc.collect()
