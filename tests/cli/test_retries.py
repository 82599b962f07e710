"""The client retries after the announced time, and only requests that are safe to repeat."""

from types import SimpleNamespace

import httpx
import pytest

from edged.rest import ApiError, Client
from edged.rest import transport as module

DEVICE = {"device": "dev"}
ROWS = (b"{}", "application/x-ndjson")


@pytest.fixture
def pauses(monkeypatch):
    """The client's pauses; time passes only in its sleeps."""
    slept = []
    monkeypatch.setattr(module, "jitter", lambda: 0.0)
    clock = SimpleNamespace(sleep=slept.append, monotonic=lambda: float(sum(slept)))
    monkeypatch.setattr(module, "time", clock)  # the client's own clock; other threads keep theirs
    return slept


def client(answers, patience_s=60.0):
    """A client that receives these answers in turn, and the number of its requests."""
    asked, rest = [], iter(answers)

    def handler(request):
        asked.append(request)
        answer = next(rest)
        if isinstance(answer, Exception):
            raise answer
        return answer

    made = Client("http://turbine-7", patience_s=patience_s)
    made._http = httpx.Client(base_url="http://turbine-7", transport=httpx.MockTransport(handler))
    return made, asked


def refused(status, retry_after=None):
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    return httpx.Response(status, json={"status": status, "detail": "later"}, headers=headers)


@pytest.mark.parametrize("status", [429, 503])
def test_what_was_not_done_is_asked_again_when_the_answer_says(pauses, status):
    made, asked = client([refused(status, "7"), refused(status, "2"), httpx.Response(200, json={})])
    made.pause_job("a")
    assert (len(asked), pauses) == (3, [7, 2])


def test_clients_that_were_refused_together_do_not_come_again_together(pauses, monkeypatch):
    for share in (0.25, 0.75):
        monkeypatch.setattr(module, "jitter", lambda share=share: share)
        client([refused(503, "4"), httpx.Response(200, json=DEVICE)])[0].device()
    assert pauses == [5, 7]


def test_nobody_comes_again_unasked_or_later_than_the_patience_lasts(pauses):
    for patience_s, retry_after in ((0.0, "1"), (5.0, "6")):
        made, asked = client([refused(503, retry_after)], patience_s)
        with pytest.raises(ApiError) as found:
            made.device()
        assert (len(asked), pauses, found.value.exit_code) == (1, [], 69)
        assert found.value.retry_after_s == int(retry_after)


@pytest.mark.parametrize("lost", [refused(504, "2"), httpx.ReadError("reset")])
def test_what_may_have_been_done_is_repeated_only_where_it_counts_once(pauses, lost):
    made, asked = client([lost])
    with pytest.raises(ApiError):
        made.pause_job("a")
    assert len(asked) == 1
    made, asked = client([lost])
    with pytest.raises(ApiError):
        made.send_tuples("power", *ROWS)
    assert len(asked) == 1 and pauses == []
    accepted = httpx.Response(202, json={"rows": 1})
    made, asked = client([lost, accepted])
    assert made.send_tuples("power", *ROWS, idempotency_key="k") == {"rows": 1}
    made, asked = client([lost, httpx.Response(200, json=DEVICE)])
    assert made.device() == DEVICE and len(pauses) == 2


def test_a_refusal_that_time_does_not_heal_is_not_repeated(pauses):
    for answer in (refused(404), refused(409), refused(412), refused(422), refused(500)):
        made, asked = client([answer])
        with pytest.raises(ApiError):
            made.device()
        assert len(asked) == 1 and pauses == []


def test_an_operation_is_looked_at_as_often_as_it_says(pauses):
    told = {"id": "0" * 16, "kind": "jobs.drain", "progress": {}, "problem": None}

    def running(retry_after):
        headers = {"Retry-After": retry_after}
        return httpx.Response(200, json={**told, "state": "running"}, headers=headers)

    done = httpx.Response(200, json={**told, "state": "done", "result": {"state": "drained"}})
    made, asked = client([running("1"), running("3"), running("soon"), done])
    assert made.drain_job("a", prefer="respond-async") == {"state": "drained"}
    assert pauses == [1, 3, module.RETRY_S]
    assert [request.url.path for request in asked[1:]] == [f"/v1/operations/{'0' * 16}"] * 3
