"""The status page in headless Chromium, against a real API and a real daemon."""

from __future__ import annotations

import json
import os
import signal

import pytest

from tests.api.support import Api, Daemon, small
from tests.page.browser import Browser

HOSTILE = "<img src=x onerror=alert(1)>"
DOCUMENT = {
    "name": "readings",
    "promises": {"latency": "250ms"},
    "streams": {
        name: {
            "source": {"type": "generator", "rate": 2000, "key": "id"},
            "columns": {"id": "int64", "time": "timestamp", value: "float64"},
            "time": "time",
            "late": "dead_letter",
        }
        for name, value in (("power", "kw"), ("wind", "speed"))
    },
    "operators": {
        "joined": {
            "type": "interval_join", "left": "power", "right": "wind", "on": ["id"],
            "before": "10ms", "after": "10ms",
        },
        "some": {"type": "filter", "input": "joined", "where": "kw > 0.5"},
    },
    "sinks": {
        "all": {"type": "pages", "input": "some"},
        "late": {"type": "pages", "input": "wind.late"},
    },
}  # fmt: skip
LIVE = "document.body.className == 'live'"
FIGURE = "document.querySelector('#{} .figure b').textContent"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("browser") / "profile") as browser:
        yield browser


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with Daemon(tmp_path_factory.mktemp("page"), DOCUMENT) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def api(daemon):
    with Api(daemon.path, daemon.door, tcp=True) as api:
        yield api


def opened(browser, api, width=1280, height=900, dark=False):
    """The page, let in."""
    page = browser.page(width, height, dark)
    page.open(f"http://127.0.0.1:{api.port}/")
    page.until("!document.getElementById('ask').hidden")
    enter(page, api.token("read"))
    page.until(LIVE)
    return page


def enter(page, token):
    page.ask(f"document.getElementById('token').value = {json.dumps(token)}")
    page.ask("document.querySelector('#ask button').click()")


def test_it_asks_for_a_token_and_says_when_one_is_not_known(browser, api):
    page = browser.page(1280, 900)
    page.open(f"http://127.0.0.1:{api.port}/")
    page.until("!document.getElementById('ask').hidden")
    enter(page, "edged_nobody")
    notice = page.until("document.getElementById('notice').textContent")
    assert "this token is not known here" in notice
    enter(page, api.token("read"))
    page.until(f"{LIVE} && document.getElementById('ask').hidden")


def test_it_loads_from_its_origin_alone_and_nothing_complains(browser, api):
    page = opened(browser, api)
    page.until("document.querySelectorAll('#events li').length > 0")
    page.until("document.querySelector('.graph svg')")
    origin = f"http://127.0.0.1:{api.port}/"
    local = [url for url in page.requests if not url.startswith("data:")]
    assert len(local) >= 8 and all(url.startswith(origin) for url in local)
    assert [c for c in page.complaints if "401" not in c] == []
    with api.over_tcp() as client:
        policy = client.get("/").headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
    assert "unsafe" not in policy


def test_figures_change_while_a_job_runs_and_say_where_they_come_from(browser, api):
    page = opened(browser, api)
    for panel in ("power", "cost", "clocks", "rate", "latency", "backlog"):
        page.until(f"/\\d/.test({FIGURE.format(panel)})")
        page.until(f"document.querySelector('#{panel} figure path')")
    backlog = int(page.ask(FIGURE.format("backlog")).replace("\u202f", "").replace(" ", ""))
    page.until(f"parseInt({FIGURE.format('backlog')}.replace(/\\s/g, '')) > {backlog}")
    tags = (
        "[...document.querySelectorAll('#power, #cost, #energy h2, #rails td:first-child')]"
        ".map((one) => one.querySelector('.tag')?.textContent)"
    )
    page.until(f"{tags}.length >= 5 && {tags}.every((tag) => tag === 'simulated')")
    page.until("document.querySelector('#clocks .tag').textContent === 'simulated'")
    page.until("document.querySelector('#latency .tag').textContent === 'of this host'")
    shown = page.ask("document.querySelector('.graph').textContent")
    for text in ("power", "wind", "joined", "join on id", "kw > 0.5", "late", "/s"):
        assert text in shown
    links = "document.querySelectorAll('.graph .edge{}').length"
    assert (page.ask(links.format("")), page.ask(links.format(".dead"))) == (5, 1)


def test_names_and_texts_cannot_become_markup(browser, api):
    extra = {
        "name": "extra",
        "streams": {"s": {"source": {"type": "http"}, "time": "t",
                          "columns": {"t": "timestamp", "text": "string"}}},
        "operators": {"f": {"type": "filter", "input": "s", "where": f"text <> '{HOSTILE}'"}},
        "sinks": {"all_extra": {"type": "pages", "input": "f"}},
    }  # fmt: skip
    page = opened(browser, api)
    with api.client() as client:
        assert client.put("/v1/jobs/extra", json=extra).status_code in (200, 201)
        page.until("document.getElementById('job extra')?.querySelector('.graph svg')")
        page.until("document.getElementById('events').textContent.includes('job.created')")
        title = page.ask("document.getElementById('job extra').querySelector('.graph').textContent")
        assert HOSTILE in title
        assert page.ask("document.querySelectorAll('img').length") == 0
        assert client.delete("/v1/jobs/extra", params={"drain": False}).status_code == 200
    page.until("!document.getElementById('job extra')")


def test_a_job_that_takes_the_name_of_a_deleted_one_is_drawn_as_it_is(browser, api):
    """Both are at version 1, and no snapshot need have come between."""
    page = opened(browser, api)
    graph = "document.getElementById('job extra')?.querySelector('.graph').textContent"
    with api.client() as client:
        for sink in ("before", "behind"):
            document = {**small(), "sinks": {sink: {"type": "pages", "input": "extra"}}}
            assert client.put("/v1/jobs/extra", json=document).status_code == 201
            page.until(f"{graph}?.includes('{sink}')")
            assert client.delete("/v1/jobs/extra", params={"drain": False}).status_code == 200


def test_a_phone_scrolls_down_only_and_a_dark_room_stays_dark(browser, api):
    phone = opened(browser, api, 375, 812, dark=True)
    phone.until("document.querySelector('.graph svg')")
    phone.until("document.querySelector('#energy .bar')")
    assert phone.ask("document.documentElement.scrollWidth") == 375
    wide = phone.ask(
        "[...document.querySelectorAll('body *')].filter((one) => "
        "one.getBoundingClientRect().right > 376).map((one) => one.outerHTML.slice(0, 80))"
    )
    assert wide == []
    grounds = [
        sum(map(int, page.ask("getComputedStyle(document.body).backgroundColor")[4:-1].split(",")))
        for page in (phone, opened(browser, api))
    ]
    assert grounds[0] < 100 and grounds[1] > 650


def test_what_was_is_still_drawn_after_a_reload(browser, api):
    page = opened(browser, api)
    page.until("document.querySelector('#power .first')?.getAttribute('d').split('L').length > 4")
    page.reload()
    page.until(LIVE)
    assert (
        page.ask("document.querySelector('#power .first').getAttribute('d').split('L').length") > 4
    )


def test_it_comes_again_when_the_api_says_and_tells_why_it_waits(browser, api):
    page = opened(browser, api)
    told = page.ask("""(async () => {
      const { Live } = await import("/page/live.js");
      const fetched = window.fetch, timed = window.setTimeout;
      const body = JSON.stringify({ detail: "32 live readers are there already" });
      const headers = { "Retry-After": "30" };
      window.fetch = async () => new Response(body, { status: 429, headers });
      try {
        return await new Promise((resolve) => {
          let why = "";
          window.setTimeout = (_, pause) => resolve([why, pause]);
          new Live((kind, data) => { why = `${kind}: ${data}`; }).start();
        });
      } finally {
        [window.fetch, window.setTimeout] = [fetched, timed];
      }
    })()""")
    why, pause_ms = told
    assert why.startswith("lost: ") and "32 live readers are there already" in why
    assert pause_ms == 30_000


def test_a_daemon_that_is_silent_or_gone_is_shown_as_such_until_it_is_back(browser, api, daemon):
    page = opened(browser, api)
    os.kill(daemon.process.pid, signal.SIGSTOP)
    page.until("document.body.className == 'stale'")
    assert "old" in page.ask("document.getElementById('pulse').textContent")
    assert "as of" in page.ask("document.getElementById('notice').textContent")
    daemon.kill()
    text = "document.getElementById('notice').textContent"
    page.until(f"{text}.includes('The daemon does not answer')")
    page.until("getComputedStyle(document.querySelector('main')).opacity < 1")
    daemon.restart()
    daemon.ready(300)
    page.until(f"{LIVE} && document.getElementById('notice').hidden")
    assert "1 restart" in page.until("document.getElementById('about').textContent")


def test_an_api_that_is_gone_is_shown_as_such_until_it_is_back(browser, api):
    page = opened(browser, api)
    api.kill()
    page.until("document.getElementById('notice').textContent.includes('The API does not answer')")
    page.until("document.body.className == 'stale'")
    api.restart()
    api.ready(300)
    page.until(LIVE)
