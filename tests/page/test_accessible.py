"""The status page: contrast, texts for screen readers, keys, and whole texts on small phones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.api.support import Api, Daemon
from tests.page.browser import Browser
from tests.page.test_page import DOCUMENT, LIVE, opened

FOLDER = Path(__file__).parents[2] / "api" / "page"
STYLE = "".join((FOLDER / name).read_text() for name in ("page.css", "docs.css"))
RULES = [
    ([one.strip() for one in selectors.split(",")], dict(re.findall(r"([\w-]+):\s*([^;]+);", body)))
    for selectors, body in re.findall(
        r"([^{}]+)\{([^{}]*)\}", re.sub(r"/\*.*?\*/", "", STYLE, flags=re.DOTALL)
    )
]
ROOTS = [body for selectors, body in RULES if ":root" in selectors[0]]
SCHEMES = {"light": ROOTS[0], "dark": ROOTS[0] | ROOTS[1]}
TEXTS = ("svg text", "svg .read", ".node .name", ".node .amount")
"""Rules whose fill is a text's; `color` is one everywhere."""
GRAPHICS = {
    ".first": "stroke", ".other": "stroke", ".promise": "stroke", ".cross": "stroke",
    ".edge": "stroke", ".edge.busy": "stroke", ".node rect": "stroke",
    ".node.stream rect": "stroke", ".node.chosen rect": "stroke",
    "#pulse i": "background", ".live #pulse i": "background",
    ".stale #pulse i": "background", "#ask input": "border", "nav input": "border",
    ":focus-visible": "outline", "#notice": "border-left",
}  # fmt: skip
BARS = (".bar rect + rect", ".bar.floor rect + rect")
LONG = "with_a_really_quite_long_name_of_an_operator"
WHERE = "kw > 0.5 AND speed < 25.0 AND kw * 1000.0 > 12.5 OR speed IS NULL"
CUT = """[...document.querySelectorAll('.node')].filter((node) => {
  const box = node.querySelector('rect').getBoundingClientRect();
  const place = node.closest('.graph').getBoundingClientRect();
  const out = (a, b) => a.left < b.left || a.right > b.right || a.top < b.top
    || a.bottom > b.bottom;
  return out(box, { ...place.toJSON(), top: place.top - 1, left: place.left - 1 }) ||
    [...node.querySelectorAll('text')].some((text) => out(text.getBoundingClientRect(), box));
}).map((node) => node.textContent)"""


def rgb(text):
    return [int(text[at : at + 2], 16) for at in (1, 3, 5)]


def luminance(colour):
    """Relative luminance (WCAG 2.2)."""
    shares = [part / 255 for part in colour]
    linear = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
    return sum(weight * s for weight, s in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(a, b):
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def declared(selector, key):
    """The variable in the last declaration of `key` for exactly this selector."""
    values = [body[key] for selectors, body in RULES if selector in selectors and key in body]
    return re.findall(r"var\((--\w+)\)", values[-1])[0]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_texts_and_graphics_have_contrast(scheme):
    colours = {name: rgb(value) for name, value in SCHEMES[scheme].items() if "#" in value}
    grounds = [colours["--card"], colours["--ground"]]
    texts = {declared(selector, "fill") for selector in TEXTS}
    texts |= {
        found[0]
        for selectors, body in RULES
        if (found := re.findall(r"var\((--\w+)\)", body.get("color", "")))
        and selectors != ["#ask button"]
    }
    assert {"--ink", "--quiet", "--accent", "--warning", "--error"} <= texts
    low = {name: contrast(colours[name], ground) for name in texts for ground in grounds}
    assert {name: ratio for name, ratio in low.items() if ratio < 4.5} == {}
    assert contrast(colours["--card"], colours["--accent"]) >= 4.5  # the button
    for selector, key in GRAPHICS.items():
        colour = colours[declared(selector, key)]
        assert min(contrast(colour, ground) for ground in grounds) >= 3, selector
    track = colours[declared(".bar rect", "fill")]
    for selector in BARS:
        assert contrast(colours[declared(selector, "fill")], track) >= 3, selector


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_page_that_is_not_current_can_be_read(scheme):
    colours = {name: rgb(value) for name, value in SCHEMES[scheme].items() if "#" in value}
    stale = next(body for selectors, body in RULES if selectors == [".stale main"])
    for name in ("--quiet", "--accent", "--warning", "--error"):
        assert stale[name] == "var(--ink)"
    share, ground = float(stale["opacity"]), colours["--ground"]

    def faded(name):
        return [share * a + (1 - share) * b for a, b in zip(colours[name], ground, strict=True)]

    assert contrast(faded("--ink"), faded("--card")) >= 4.5
    assert contrast(faded("--ink"), ground) >= 4.5


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("browser") / "profile") as browser:
        yield browser


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    long = {LONG: {"type": "filter", "input": "joined", "where": WHERE}}
    sinks = {"longs": {"type": "pages", "input": LONG}}
    document = {**DOCUMENT, "operators": DOCUMENT["operators"] | long,
                "sinks": DOCUMENT["sinks"] | sinks}  # fmt: skip
    path = tmp_path_factory.mktemp("accessible")
    with Daemon(path, document) as daemon, Api(path, daemon.door, tcp=True) as api:
        yield api


@pytest.fixture(scope="module")
def page(browser, api):
    """One page for all tests: each that is open draws every second."""
    return opened(browser, api)


def press(page, key, code):
    for kind in ("keyDown", "keyUp"):
        page.call(
            "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code
        )


def test_only_what_changes_is_announced(page):
    """Elements that screen readers announce by themselves get a text once, not every second."""
    page.ask("""window.said = [], new MutationObserver((all) => said.push(...all.map(
      ({ target }) => target.textContent))).observe(document.body,
      { subtree: true, childList: true, characterData: true, attributes: false })""")
    regions = "[...document.querySelectorAll('[role=status], [role=alert], [aria-live]')]"
    assert page.ask(f"{regions}.map((one) => one.id)") == ["notice", "spoken"]
    assert page.ask("document.getElementById('spoken').textContent") == "live"
    page.until("said.length > 20")
    quiet = "!said.some((text) => text === document.getElementById('spoken').textContent)"
    assert page.ask(quiet)
    page.until(LIVE)


def test_charts_have_texts_and_keys_read_their_values(page):
    label = "document.querySelector('#{} figure').getAttribute('aria-label')"
    for panel, text in (("power", r"^Power, .*: last [\d.]+ W, from [\d.]+ W to [\d.]+ W$"),
                        ("rate", r": in last .*; out last "),
                        ("latency", r"promise 250 ms$")):  # fmt: skip
        page.until(f"/{text}/.test({label.format(panel)})")
    assert page.ask("document.querySelectorAll('figure[tabindex=\"0\"][role=img]').length") == 6
    page.until("document.querySelector('#power .first')?.getAttribute('d').split('L').length > 3")
    page.ask("document.querySelector('#power figure').focus()")
    read = "document.querySelector('#power .read')?.textContent"
    spoken = "document.getElementById('spoken').textContent"
    press(page, "End", 35)
    last = page.until(read)
    assert re.match(r"\d\d:\d\d:\d\d +[\d.]+ W$", last) and page.ask(spoken) == last
    press(page, "ArrowLeft", 37)
    before = page.until(f"{read} < {last!r} && {read}")
    assert page.ask(spoken) == before
    press(page, "ArrowRight", 39)
    assert page.ask(read) == last
    press(page, "Escape", 27)
    assert page.ask(f"{read} === undefined")


def test_graphs_have_texts_and_keys_choose_nodes(page):
    listed = "[...document.querySelectorAll('.job ul[role=list] li')].map((one) => one.textContent)"
    page.until(f"{listed}.length == 8")
    texts = page.ask(listed)
    assert f"operator {LONG}; from joined; {WHERE}" in texts
    page.ask("document.querySelector('.graph').focus()")
    press(page, "ArrowRight", 39)
    press(page, "ArrowRight", 39)
    assert page.ask("document.querySelector('.chosen .name').textContent") == "wind"
    assert page.ask("document.getElementById('spoken').textContent").startswith("stream wind;")


@pytest.mark.parametrize(("width", "dark"), [(320, False), (360, True), (390, False), (1280, True)])
def test_texts_of_nodes_are_whole(page, width, dark):
    page.prepare(width, 812, dark)
    page.until("document.querySelectorAll('.node').length == 8")
    assert page.ask("document.documentElement.scrollWidth") == width
    page.until(f"{CUT}.length == 0")
    shown = page.ask("document.querySelector('.graph').textContent")
    assert LONG in shown and WHERE in shown.replace("\u00a0", " ") and "…" not in shown
