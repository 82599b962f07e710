"""`/docs`, the reference of the API, in headless Chromium against a real API."""

from __future__ import annotations

import json

import pytest

from api.app import routes
from tests.api.support import Api
from tests.page.browser import Browser

SHOWN = "!document.querySelector('.reference').hidden"
VISIBLE = (
    "[...document.querySelectorAll('.part')].filter((one) => !one.hidden).map((one) => one.id)"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("browser") / "profile") as browser:
        yield browser


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    with Api(tmp_path_factory.mktemp("reference"), tcp=True) as api:
        yield api


@pytest.fixture(scope="module")
def page(browser, api):
    return opened(browser, api)


def opened(browser, api, part=""):
    page = browser.page(1280, 900)
    page.open(f"http://127.0.0.1:{api.port}/docs{part}")
    page.until("!document.getElementById('ask').hidden")
    page.ask(f"document.getElementById('token').value = {json.dumps(api.token('read'))}")
    page.ask("document.querySelector('#ask button').click()")
    page.until(SHOWN)
    return page


def press(page, key, code, text=""):
    for kind in ("keyDown", "keyUp"):
        page.call("Input.dispatchKeyEvent", type=kind, key=key, code=key,
                  windowsVirtualKeyCode=code, text=text)  # fmt: skip


def test_it_shows_every_operation_and_schema_and_loads_from_its_origin_alone(page, api):
    document = routes().openapi()
    named = {one["operationId"] for path in document["paths"].values() for one in path.values()}
    named |= {f"schema-{name}" for name in document["components"]["schemas"]}
    assert set(page.ask(VISIBLE)) == named
    links = "[...document.querySelectorAll('.reference a')].map((one) => one.getAttribute('href'))"
    assert {link.removeprefix("#") for link in page.ask(links)} == named
    text = page.ask("document.getElementById('put_job').textContent")
    for part in ("PUT", "/v1/jobs/{name}", "control", "if-none-match", "application/toml", "412"):
        assert part in text
    origin = f"http://127.0.0.1:{api.port}/"
    local = [url for url in page.requests if not url.startswith("data:")]
    assert len(local) >= 6 and all(url.startswith(origin) for url in local)
    assert [c for c in page.complaints if "401" not in c] == []
    with api.over_tcp() as client:
        assert "unsafe" not in client.get("/docs").headers["content-security-policy"]


def test_words_find_operations(page):
    every = len(page.ask(VISIBLE))
    for words, first in (("idempotency-key tuples", "send_tuples"), ("", "health")):
        page.ask(f"document.getElementById('find').value = '{words}'")
        page.ask("document.getElementById('find').dispatchEvent(new Event('input'))")
        assert page.ask(VISIBLE)[0] == first
        found = page.ask("document.querySelector('nav [role=status]').textContent")
        assert ("found" in found) == bool(words)
    assert len(page.ask(VISIBLE)) == every


def test_a_link_to_an_operation_leads_there_and_keys_follow_links(browser, api):
    page = opened(browser, api, part="#set_log")
    page.until("Math.abs(document.getElementById('set_log').getBoundingClientRect().top) < 100")
    page.ask("document.getElementById('find').focus()")
    press(page, "Tab", 9)
    first = page.ask("document.activeElement.getAttribute('href')")
    press(page, "Enter", 13, "\r")
    page.until(f"location.hash == {json.dumps(first)}")


@pytest.mark.parametrize(("width", "dark"), [(320, True), (390, False)])
def test_a_phone_scrolls_down_only(page, width, dark):
    page.prepare(width, 812, dark)
    page.ask("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert page.ask("document.documentElement.scrollWidth") == width


def test_one_setting_turns_it_off(tmp_path):
    with Api(tmp_path, docs=False) as api, api.client() as client:
        answer = client.get("/docs")
        assert answer.status_code == 404 and "api.docs" in answer.json()["do"]
        assert "docs" not in client.get("/v1").json()["links"]
        assert client.get("/").status_code == 200
        assert client.get("/v1/openapi.json").status_code == 200
